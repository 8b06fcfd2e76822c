"""What `mixplan eval` does where only the plan is needed: load it, cut windows from the text, measure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixplan.runtime.evaluation.measure import measure_perplexity
from mixplan.runtime.evaluation.report import Evaluation
from mixplan.runtime.evaluation.windows import CONTEXT, Windows, text_windows
from mixplan.runtime.loading import load
from mixplan.runtime.model import Model
from mixplan.runtime.progress import Progress

__all__ = ["EvalOptions", "evaluate_text", "load_for_windows", "plan_windows"]


@dataclass(frozen=True)
class EvalOptions:
    """Of the text: windows (None: 16, or as many as it fills) of `context` tokens (None: 512, or the model's whole context where that is
    shorter). Of the runtime: see `load`."""

    windows: int | None = None
    context: int | None = None
    device: str = "auto"
    threads: int | None = None
    isa: str | None = None
    trust: bool = False

    def runtime(self) -> dict[str, Any]:
        """The options that `load` takes."""
        return {"device": self.device, "threads": self.threads, "isa": self.isa, "trust": self.trust}


def load_for_windows(plan: Path, options: EvalOptions) -> Model:
    """The plan, loaded for one sequence at a time."""
    return load(plan, max_sequences=1, **options.runtime())


def plan_windows(model: Model, text: Path, options: EvalOptions) -> Windows:
    """The windows of a text, by the plan's own tokenizer."""
    context = min(CONTEXT, model.plan.model.context_length) if options.context is None else options.context
    return text_windows(model.tokenizer, text, context=context, windows=options.windows)


def evaluate_text(plan: Path, text: Path, options: EvalOptions, *, progress: Progress | None = None) -> Evaluation:
    """The perplexity of the plan on the text, without anything to compare with."""
    with load_for_windows(plan, options) as model:
        windows = plan_windows(model, text, options)
        return Evaluation(
            model.plan.name, model.plan.effective_bits, model.placement, measure_perplexity(model, windows, progress=progress)
        )
