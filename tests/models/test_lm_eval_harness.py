"""lm-eval's requests and tasks on a plan, against torch. Needs lm-eval, which is an extra."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from transformers import AutoModelForCausalLM, AutoTokenizer

from mixplan.cli import main
from mixplan.runtime import load

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'mixplan[eval]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # those of lm-eval's own dependencies

_YAML = """\
task: weather
dataset_path: json
dataset_kwargs:
  data_files: {{test: "{data}"}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
_DOCS = [
    {"question": "The wind comes from the", "choices": [" north", " barometer", " log"], "answer": 0},
    {"question": "Rain fell before", "choices": [" midnight", " 365 pages"], "answer": 1},
    {"question": "He wrote it", "choices": [" down", " up", " under"], "answer": 2},
]


@pytest.fixture
def lm(tiny_llama_plan: Path) -> Iterator[Any]:
    from mixplan.compiler.evaluation.harness import PlanLM

    with load(tiny_llama_plan) as model:
        yield PlanLM(model)


@pytest.fixture(scope="module")
def torch_model(tiny_llama_dir: Path) -> tuple[Any, Any]:
    return AutoModelForCausalLM.from_pretrained(tiny_llama_dir, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(tiny_llama_dir)


def _requests(*arguments: tuple[Any, ...]) -> list[Any]:
    return [SimpleNamespace(args=given) for given in arguments]


def _torch(torch_model: tuple[Any, Any], context: list[int], continuation: list[int]) -> tuple[float, bool]:
    with torch.no_grad():
        logits = torch_model[0](torch.tensor([[*context, *continuation]])).logits[0, len(context) - 1 : -1]
    wanted = torch.tensor(continuation)
    return float(torch.log_softmax(logits, -1).gather(1, wanted[:, None]).sum()), bool((logits.argmax(-1) == wanted).all())


def test_loglikelihoods_are_those_of_torch(lm: Any, torch_model: tuple[Any, Any]) -> None:
    encode = torch_model[1].encode
    pairs = [(doc["question"], choice) for doc in _DOCS for choice in doc["choices"]]
    for (context, continuation), found in zip(pairs, lm.loglikelihood(_requests(*pairs)), strict=True):
        wanted = _torch(torch_model, encode(context), encode(continuation))
        assert found[0] == pytest.approx(wanted[0], rel=1e-5) and found[1] == wanted[1]
    # A context that is empty is the token that stands before a text; blanks at its end belong to the continuation.
    (empty, blanks) = lm.loglikelihood(_requests(("", "rain"), ("rain ", "fell")))
    assert empty[0] == pytest.approx(_torch(torch_model, [lm.prefix_token_id], encode("rain"))[0], rel=1e-5)
    assert blanks[0] == pytest.approx(_torch(torch_model, encode("rain"), encode(" fell"))[0], rel=1e-5)


def test_rolling_windows_predict_each_token_once(lm: Any, torch_model: tuple[Any, Any]) -> None:
    text = "A record with a gap in it is half a record. " * 30
    ids = torch_model[1].encode(text)
    most = lm.max_length
    assert len(ids) > 2 * most
    wanted, at = 0.0, 0
    while at < len(ids):
        part = ids[at : at + most]
        context = [lm.prefix_token_id] if at == 0 else ids[max(at + len(part) - most - 1, 0) : at]
        wanted += _torch(torch_model, context, part)[0]
        at += len(part)
    (found, short) = lm.loglikelihood_rolling(_requests((text,), ("rain",)))
    assert found == pytest.approx(wanted, rel=1e-5)
    assert short == pytest.approx(_torch(torch_model, [lm.prefix_token_id], torch_model[1].encode("rain"))[0], rel=1e-5)


def test_generation_stops_where_it_is_told(lm: Any) -> None:
    (whole,) = lm.generate_until(_requests(("The wind", {"max_gen_toks": 30})))
    assert whole and lm.generate_until(_requests(("The wind", {"max_gen_toks": 30, "do_sample": False})))[0] == whole
    stop = next(letter for letter in whole[1:] if letter.isascii())
    (cut, same) = lm.generate_until(_requests(("The wind", {"until": [stop], "max_gen_toks": 30}), ("The wind", {"max_gen_toks": 30})))
    assert cut == whole[: whole.index(stop)] and same == whole


def test_the_chat_template_is_the_plans(lm: Any, torch_model: tuple[Any, Any]) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    assert lm.apply_chat_template(messages) == torch_model[1].apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def _eval(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["eval", *map(str, arguments)])


def test_a_task_of_ones_own(tiny_llama_plan: Path, tmp_path: Path, torch_model: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "docs.jsonl"
    data.write_text("\n".join(json.dumps(doc) for doc in _DOCS), encoding="utf-8")
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    (tasks / "weather.yaml").write_text(_YAML.format(data=data), encoding="utf-8")
    encode = torch_model[1].encode
    right = 0
    for doc in _DOCS:
        scores = [_torch(torch_model, encode(doc["question"]), encode(choice))[0] for choice in doc["choices"]]
        right += scores.index(max(scores)) == doc["answer"]
    done = _eval(tiny_llama_plan, "--tasks", "weather", "--include-path", tasks, "--json")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)["tasks"]["results"]["weather"]
    assert figures["acc,none"] == pytest.approx(right / len(_DOCS))
    done = _eval(tiny_llama_plan, "--tasks", tasks / "weather.yaml", "--limit", 1)
    assert done.exit_code == 0 and "acc_norm" in done.stdout


def test_tasks_that_cannot_be_had(tiny_llama_plan: Path, tmp_path: Path) -> None:
    done = _eval(tiny_llama_plan, "--tasks", "no_such_task_at_all")
    assert done.exit_code == 2 and "no task named 'no_such_task_at_all'" in done.stderr
    broken = tmp_path / "broken.yaml"
    broken.write_text(_YAML.format(data=tmp_path / "none.jsonl"), encoding="utf-8")
    done = _eval(tiny_llama_plan, "--tasks", broken)
    assert done.exit_code == 2 and "lm-eval cannot load" in done.stderr
