"""What `mixplan eval --against` does: the plan as the runtime runs it, beside the original in float32."""

from __future__ import annotations

from pathlib import Path

from mixplan.compiler.evaluation.reference import replay_reference, streamed_reference
from mixplan.compiler.frontends import open_checkpoint
from mixplan.compiler.sources import SourceHashes
from mixplan.compiler.verify_report import source_warnings
from mixplan.runtime.evaluation.evaluate import EvalOptions, load_for_windows, plan_windows
from mixplan.runtime.evaluation.measure import measure
from mixplan.runtime.evaluation.report import Evaluation
from mixplan.runtime.progress import Progress
from mixplan.runtime.reading import available_memory

__all__ = ["evaluate_against"]


def evaluate_against(plan: Path, text: Path, original: str, options: EvalOptions, *, progress: Progress | None = None) -> Evaluation:
    """Perplexity of both, and the plan's divergence. Holds the original's weights in memory where they take at most half of what is
    available, and streams them otherwise. That it is not the plan's source is a warning, that it has another vocabulary RequestError."""
    with load_for_windows(plan, options) as model:
        # What is wrong with the text is said before minutes are spent on the original.
        windows = plan_windows(model, text, options)
        checkpoint = open_checkpoint(original)
        try:
            captured = checkpoint.capture()
            with SourceHashes(captured.source.files) as hashes:
                if captured.model.parameters * 4 <= available_memory() // 2:
                    with replay_reference(captured, windows, keep=False) as reference:
                        figures = measure(model, windows, reference, progress=progress)
                else:
                    figures = measure(model, windows, streamed_reference(captured, windows, progress=progress), progress=progress)
                digests = hashes.result()
        finally:
            checkpoint.close()
        warnings = source_warnings(model.plan, digests)
        return Evaluation(model.plan.name, model.plan.effective_bits, model.placement, figures, captured.source.name, warnings)
