"""`mixplan eval`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from mixplan.runtime.terminal import emit_json, plain_table, show

__all__ = ["eval_command"]


@click.command(name="eval")
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--text", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Measure on this text (UTF-8).")
@click.option("--against", metavar="MODEL", help="With --text: compare with the original, run in float32 by torch.")
@click.option("--windows", type=click.IntRange(1), help="Windows of the text. Default: 16, or as many as it fills.")
@click.option("--context", type=click.IntRange(2), help="Tokens of a window. Default: 512, or the model's context where that is shorter.")
@click.option("--tasks", metavar="NAMES", help="Run these tasks of lm-eval, by comma: names, or paths of YAML files.")
@click.option(
    "--include-path", type=click.Path(exists=True, file_okay=False, path_type=Path), help="With --tasks: a folder of your own tasks."
)
@click.option("--num-fewshot", type=click.IntRange(0), help="With --tasks: examples before each question. Default: the task's.")
@click.option("--limit", type=click.IntRange(1), help="With --tasks: questions of each task, at most.")
@click.option("--chat", is_flag=True, help="With --tasks: put the questions into the model's chat template.")
@click.option("--seed", type=int, default=0, show_default=True, help="With --tasks: which examples are drawn.")
@click.option("--threads", type=click.IntRange(1), help="Default: the cores this process may use.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, gpu, npu or reference.")
@click.option("--isa", help="Force an ISA level; one that the plan lacks is compiled on the spot.")
@click.option("--trust", is_flag=True, help="Load the plan's own kernels although they were not built here.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def eval_command(plan: Path, text: Path | None, against: str | None, tasks: str | None, as_json: bool, **options: Any) -> None:
    """Measure how good PLAN is, as the runtime runs it: perplexity, divergence from the original, lm-eval tasks.

    The text is tokenized once and cut into windows that do not overlap. Perplexity is over the predicted tokens, KL divergence (KLD) and
    the share of equal most probable tokens over all positions.

    \b
    mixplan eval smol.plan --text wiki.test.txt
    mixplan eval smol.plan --text wiki.test.txt --against ./SmolLM2-135M-Instruct --json
    mixplan eval smol.plan --tasks arc_easy,hellaswag --limit 100
    """
    if text is None and against is not None:
        raise click.UsageError("--against needs --text, to compare on.")
    if text is None and tasks is None:
        raise click.UsageError("Nothing to measure: give --text, --tasks or both.")
    if tasks is None:
        for name in ("include_path", "num_fewshot", "limit", "chat"):
            if options[name]:
                raise click.UsageError(f"--{name.replace('_', '-')} needs --tasks.")
    results: dict[str, Any] = {}
    shown: list[Any] = []
    # First, so that a missing package is told before anything is measured.
    run_tasks = _tasks(tasks, options) if tasks is not None else None
    if text is not None:
        evaluation = _text(plan, text, against, options)
        for warning in evaluation.warnings:
            click.echo(f"warning: {warning}", err=True)
        results |= evaluation.to_dict()
        shown += evaluation.render(plain_table)
    if run_tasks is not None:
        results["tasks"] = run_tasks(plan)
        shown += _task_tables(results["tasks"])
    if as_json:
        emit_json(results)
        return
    show(*shown)


def _text(plan: Path, text: Path, against: str | None, options: dict[str, Any]) -> Any:
    from mixplan.runtime.evaluation.evaluate import EvalOptions, evaluate_text
    from mixplan.runtime.progress import terminal_progress

    names = ("windows", "context", "device", "threads", "isa", "trust")
    asked = EvalOptions(**{name: options[name] for name in names})
    with terminal_progress() as progress:
        if against is None:
            return evaluate_text(plan, text, asked, progress=progress)
        from mixplan.compiler.evaluation.against import evaluate_against

        return evaluate_against(plan, text, against, asked, progress=progress)


def _tasks(tasks: str, options: dict[str, Any]) -> Callable[[Path], dict[str, Any]]:
    """A function that runs the tasks on a plan; MissingExtraError where lm-eval is not installed."""
    from mixplan.runtime.errors import MissingExtraError, OptionError

    names = [name.strip() for name in tasks.split(",") if name.strip()]
    if not names:
        raise OptionError("--tasks names no task.", hint="Give names by comma, such as arc_easy,hellaswag.")
    try:
        from mixplan.compiler.evaluation.harness import PlanLM, run_tasks
    except ModuleNotFoundError as error:
        raise MissingExtraError("`mixplan eval --tasks`", "eval") from error

    def run(plan: Path) -> dict[str, Any]:
        from mixplan.runtime import load
        from mixplan.runtime.progress import terminal_progress

        runtime = {name: options[name] for name in ("device", "threads", "isa", "trust")}
        chosen = {name: options[name] for name in ("include_path", "num_fewshot", "limit", "chat", "seed")}
        with load(plan, **runtime) as model, terminal_progress() as progress:
            return run_tasks(PlanLM(model, progress=progress), names, **chosen)

    return run


def _task_tables(made: dict[str, Any]) -> list[Any]:
    table = plain_table("\nTasks", "task", "metric", "filter", "value:r", "±:r")
    for task, figures in made["results"].items():
        for key, value in sorted(figures.items()):
            metric, _, how = key.partition(",")
            if not how or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            error = figures.get(f"{metric}_stderr,{how}")
            table.add_row(task, metric, how, f"{value:.4f}", f"{error:.4f}" if isinstance(error, int | float) else "")
    return [table]
