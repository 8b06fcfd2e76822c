"""The probe, top to bottom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from torch import Tensor

from mixplan.compiler.frontends import Captured, open_checkpoint
from mixplan.compiler.probing.advice import advise
from mixplan.compiler.probing.graph import probe_graph, tensor_names
from mixplan.compiler.probing.layers import head_records, layer_records
from mixplan.compiler.probing.limits import machine_limits
from mixplan.compiler.probing.record import ProbeReport, TensorRecord, tensor_record
from mixplan.compiler.probing.sensitivity import candidate_schemes, from_gradients, from_inputs, wants_gradients, with_bits
from mixplan.compiler.probing.watch import Watch
from mixplan.compiler.probing.weights import weight_stats
from mixplan.compiler.probing.work import stored_bits
from mixplan.compiler.probing.write import check_outputs, write_report
from mixplan.compiler.streaming import stream, text_windows
from mixplan.compiler.streaming.windows import batches
from mixplan.compiler.tuning import collector_paused
from mixplan.runtime.cost import Work
from mixplan.runtime.errors import OptionError
from mixplan.runtime.progress import Progress

if TYPE_CHECKING:
    from torch import nn

__all__ = ["probe"]


def probe(
    model: str | Path | nn.Module,
    *,
    text: str | None = None,
    token_ids: Sequence[Sequence[int]] | Tensor | None = None,
    output: str | Path | Sequence[str | Path] = (),
    tokens: int = 4096,
    window: int = 512,
    context: int | None = None,
    schemes: Sequence[str] | None = None,
    sensitivity: str = "auto",
    threads: int | None = None,
    batch_tokens: int = 1024,
    segment_bytes: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> ProbeReport:
    """Run text through a model, and report what its tensors, layers and heads are like, with advice on formats.

    model: a Hugging Face directory, a GGUF file, or an nn.Module; its code is not touched. text: cut into windows of `window` tokens, of
    which the first `tokens` tokens' worth are used; or token_ids [W, L], rows of one length. output: a path, or several, that end in .html
    or .json, written whole or not at all; `force` replaces files. context: tokens that a decode step attends to, for FLOPs and bytes, the
    window by default. schemes: candidate formats (W4A16:g32, ...). sensitivity: "fisher"
    (from gradients), "hessian" (from inputs alone), "kld" (every layer changed on its own, slow), or "auto": fisher for models of up to two
    billion parameters that have gradients, else hessian. threads: of torch; 1 makes statistics bitwise the same from run to run.
    progress(stage, fraction) is called now and then.

    Weights are read a segment of at most `segment_bytes` at a time (a 32nd of the model by default, 128 MiB to 1 GiB), two or three times
    in all: so a model need not fit into memory. Raises CheckpointError, UnsupportedError, OptionError, RequestError, OutputError.
    """
    if (text is None) == (token_ids is None):
        raise OptionError("A probe needs text or token_ids, one of them.")
    for name, value in (("tokens", tokens), ("context", context), ("window", window)):
        if value is not None and value < 2:
            raise OptionError(f"{name} is {value}; at least 2.")
    candidates = candidate_schemes(schemes)
    wants_gradients(sensitivity, 0)
    outputs = [Path(one) for one in ([output] if isinstance(output, str | Path) else output)]
    check_outputs(outputs, force)
    clock = _Clock(progress)
    with collector_paused():
        checkpoint = clock.run("open", lambda: open_checkpoint(model))
    try:
        with collector_paused():
            captured: Captured = clock.run("capture", checkpoint.capture)
            windows = text_windows(captured, text, tokens=tokens, length=window) if text is not None else _same_length(token_ids)
            batches(windows, batch_tokens, captured.model.vocab_size)
        losses, note = None, ""
        tell = clock.watch("sensitivity")
        if wants_gradients(sensitivity, captured.model.parameters):
            losses, note = clock.run("sensitivity", lambda: from_gradients(captured, candidates, windows, sensitivity, threads, tell))
        with collector_paused():
            module, layers = clock.run("graph", lambda: probe_graph(captured))
        length = int(windows.shape[1])
        names = tensor_names(module, layers)
        watch = Watch(names, length)
        weights = captured.weights
        told = clock.run(
            "run",
            lambda: stream(
                module,
                weights,
                windows,
                watch,
                threads=threads,
                batch_tokens=batch_tokens,
                segment_bytes=segment_bytes,
                progress=clock.watch("run"),
            ),
        )
        of_weights = clock.run("weights", lambda: weight_stats(weights, clock.watch("weights")))
        held = sum(int(stats.moments.count * stored_bits(weights.dtype(name)) / 8) for name, stats in of_weights.items())
        if losses is None:
            losses = clock.run("sensitivity", lambda: from_inputs(captured, candidates, watch.squares, tell, note))
        losses = with_bits(losses, layers, candidates)
        limits, basis = clock.run("ceilings", lambda: machine_limits(held))
        run = Work(((0, length),) * told.windows, told.tokens)
        decode = Work.decode((context or length) - 1)
        tensors: list[TensorRecord] = [
            tensor_record(name, "activation", _op(node), watch.tensors[name]) for node, name in names.items() if name in watch.tensors
        ]
        tensors += [tensor_record(name, "weight", weights.dtype(name), stats) for name, stats in of_weights.items()]
        records = layer_records(module, weights, layers, names, watch, told.seconds, run, decode, limits)
    finally:
        checkpoint.close()
    heads = head_records(watch)
    report = ProbeReport(
        model=captured.source.name,
        architecture=captured.model.architecture,
        parameters=captured.model.parameters,
        tokens=told.tokens,
        windows=told.windows,
        window=length,
        context=context or length,
        seconds=clock.seconds,
        time_basis=f"measured: torch in f32, {told.windows} windows of {length} tokens in batches of about {batch_tokens}",
        model_basis=f"modelled: one decode step at context {context or length}, weights as stored; {basis}",
        tensors=tuple(tensors),
        layers=records,
        heads=heads,
        sensitivity=asdict(losses),
        advice=advise(tensors, records, heads, losses),
    )
    for path in outputs:
        write_report(report, path)
    return report


def _same_length(token_ids: Sequence[Sequence[int]] | Tensor | None) -> Tensor:
    import torch

    try:
        windows = torch.as_tensor(token_ids, dtype=torch.long)
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionError(f"token_ids are not rows of whole numbers of one length: {error}") from None
    if windows.dim() != 2 or 0 in windows.shape:
        raise OptionError(f"token_ids have the shape {tuple(windows.shape)}; wanted are windows [W, L].")
    return windows


def _op(node: Any) -> str:
    return str(getattr(getattr(node.target, "overloadpacket", node.target), "__name__", node.target))


class _Clock:
    """Seconds by stage, and the progress of each."""

    def __init__(self, progress: Progress | None) -> None:
        self.seconds: dict[str, float] = {}
        self._progress = progress

    def run(self, stage: str, work: Callable[[], Any]) -> Any:
        if self._progress is not None:
            self._progress(stage, 0.0)
        started = perf_counter()
        result = work()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + perf_counter() - started
        if self._progress is not None:
            self._progress(stage, 1.0)
        return result

    def watch(self, stage: str) -> Callable[[float], None]:
        """Tells the progress of a stage."""
        return lambda fraction: None if self._progress is None else self._progress(stage, fraction)
