"""A plan as a model of lm-eval (EleutherAI's evaluation harness), so that its tasks run on what the runtime computes.

Imported only when tasks are asked for: it needs the package lm_eval.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate, utils
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs
from lm_eval.tasks import TaskManager

from mixplan.compiler.tokenizer.chat_render import render_plan_chat
from mixplan.runtime.errors import MissingExtraError, OptionError, RequestError
from mixplan.runtime.evaluation.likelihood import continuation_likelihoods, longest_request
from mixplan.runtime.generate import collect, generate_batch
from mixplan.runtime.model import Model
from mixplan.runtime.progress import Progress
from mixplan.runtime.sampling import SamplingParams

__all__ = ["PlanLM", "run_tasks"]

_LOG = logging.getLogger("mixplan.evaluation")
_MAX_NEW_TOKENS = 256
# Settings of generation that mean the same here, and those that change nothing.
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
_WITHOUT_EFFECT = ("do_sample", "num_beams", "num_return_sequences", "use_cache")


class PlanLM(TemplateLM):
    """Answers lm-eval's requests by a loaded plan. Text is tokenized as the plan's tokenizer does, with what it puts before a text."""

    def __init__(self, model: Model, *, progress: Progress | None = None) -> None:
        super().__init__()
        self.model = model
        self._progress = progress
        first = model.plan.model.bos_token_id
        self._bos = None if first is None else model.tokenizer.id_to_token(first)

    @property
    def eot_token_id(self) -> int:
        """The model's first end token; token 0 where it has none."""
        return next(iter(self.model.plan.model.eos_token_ids), 0)

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text that has no context: the first token that the model expects, or its end token."""
        first = self.model.plan.model.bos_token_id
        return self.eot_token_id if first is None else first

    @property
    def max_length(self) -> int:
        """Tokens of context."""
        return longest_request(self.model) - 1

    @property
    def max_gen_toks(self) -> int:
        """New tokens, where a task does not say."""
        return _MAX_NEW_TOKENS

    @property
    def tokenizer_name(self) -> str:
        """Names the tokenizer in lm-eval's own caches."""
        return self.model.plan.files["tokenizer.json"].sha256

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **settings: Any) -> list[int]:
        """Token ids. add_special_tokens: None adds what the tokenizer puts around a text, unless the text begins with it."""
        if add_special_tokens is None:
            add_special_tokens = not (self._bos and string.startswith(self._bos))
        return self.model.tokenizer.encode(string, add_special_tokens=add_special_tokens)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The plan's template, which only names it."""
        return self.tokenizer_name if chat_template else ""

    def apply_chat_template(self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """The messages in the model's chat template."""
        form = self.model.tokenizer.chat
        if form is None:
            raise RequestError("This model has no chat template.", hint="Leave out --chat.")
        try:
            return form.render(chat_history, add_generation_prompt=add_generation_prompt)
        except MissingExtraError:  # only the Jinja template itself can render these messages
            return render_plan_chat(self.model.loaded, chat_history, add_generation_prompt=add_generation_prompt)

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation, and whether it is greedy."""
        found: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=True)
        for request, answer in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood", request.args, answer)
        return found

    def _loglikelihood_tokens(self, requests: Sequence[tuple[Any, list[int], list[int]]], **settings: Any) -> list[tuple[float, bool]]:
        found = continuation_likelihoods(self.model, [(a, b) for _, a, b in requests], progress=self._progress)
        return [(one.log_likelihood, one.greedy) for one in found]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = True) -> list[float]:
        """Log-likelihood of each whole text, in windows of the model's context."""
        windows: list[tuple[None, list[int], list[int]]] = []
        owners: list[int] = []
        for index, request in enumerate(requests):
            pairs = utils.get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]), prefix_token=self.prefix_token_id, max_seq_len=self.max_length, context_len=1
            )
            for pair in pairs:
                windows.append((None, *utils.make_disjoint_window(pair)))
                owners.append(index)
        totals = [0.0] * len(requests)
        for index, (log_likelihood, _) in zip(owners, self._loglikelihood_tokens(windows), strict=True):
            totals[index] += log_likelihood
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: list[Any], disable_tqdm: bool = True) -> list[str]:
        """Generated texts, up to the strings that end them."""
        prompts, settings = [], []
        for request in requests:
            context, given = request.args
            params = self._params(given)
            room = self.max_length - (params.max_tokens or 0)
            if room < 1:
                raise RequestError(f"A task wants {params.max_tokens} new tokens; the model's context is {self.max_length}.")
            prompts.append(self.tok_encode(context)[-room:])
            settings.append(params)
        texts: list[str] = []
        step = max(self.model.caches.max_sequences, 1)
        for start in range(0, len(prompts), step):
            part = slice(start, start + step)
            texts += [made.text for made in collect(generate_batch(self.model, prompts[part], settings[part]))]
            if self._progress is not None:
                self._progress("generation", len(texts) / len(prompts))
        for request, text in zip(requests, texts, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, text)
        return texts

    def _params(self, given: Mapping[str, Any]) -> SamplingParams:
        end = self.model.tokenizer.id_to_token(self.eot_token_id)
        known = normalize_gen_kwargs(dict(given), self.max_gen_toks)
        stop = handle_stop_sequences(known.pop("until", None), eos=end)
        count = known.pop("max_gen_toks")
        ignored = sorted(set(known) - {*_SAMPLING, *_WITHOUT_EFFECT})
        if ignored:
            _LOG.warning("generation settings without effect on a plan: %s", ", ".join(ignored))
        values = {name: known[name] for name in _SAMPLING if known.get(name) is not None}
        return SamplingParams(stop=tuple(text for text in stop if text), max_tokens=int(count), **values)


def run_tasks(
    lm: PlanLM,
    tasks: Sequence[str],
    *,
    include_path: Path | None = None,
    num_fewshot: int | None = None,
    limit: int | None = None,
    chat: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """lm-eval's results for tasks, groups and tags by name, or by the path of a YAML file.

    include_path: a folder of tasks of one's own. num_fewshot: examples before each question, where the task lets one say. limit: questions
    of each task, at most. OptionError for a task that lm-eval does not know or cannot load.
    """
    manager = TaskManager(include_path=None if include_path is None else str(include_path))
    unknown = [name for name in tasks if name not in manager.all_tasks and not Path(name).is_file()]
    if unknown:
        raise OptionError(
            f"lm-eval has no task named {', '.join(map(repr, unknown))}.",
            hint="`lm-eval ls tasks` lists them; --include-path adds a folder of your own, and a YAML file may be named by its path.",
        )
    try:
        manager.load(list(tasks))
    except Exception as error:  # whatever a task's own code and its data set raise
        raise OptionError(f"lm-eval cannot load {', '.join(tasks)}: {type(error).__name__}: {error}") from error
    made = simple_evaluate(
        lm,
        tasks=list(tasks),
        task_manager=manager,
        num_fewshot=num_fewshot,
        limit=limit,
        apply_chat_template=chat,
        random_seed=seed,
        numpy_random_seed=seed,
        torch_random_seed=seed,
        fewshot_random_seed=seed,
        log_samples=False,
    )
    return {name: made[name] for name in ("results", "versions", "n-shot", "n-samples", "higher_is_better") if name in made}
