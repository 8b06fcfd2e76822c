"""What the figures say, in words: one rule a function, each with its threshold beside it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mixplan.compiler.probing.record import Advice, HeadRecord, LayerRecord, TensorRecord
from mixplan.compiler.probing.sensitivity import Sensitivity

__all__ = ["advise"]

# A layer is out of line where its loss is more than this many times the median layer's, or less than the inverse.
_LOSS_FACTOR = 4.0
# Dynamic int8 with a scale for each token is as good as lossless above, doubtful below (dB).
_GOOD_SNR, _POOR_SNR = 35.0, 25.0
_FP16_LARGEST = 65504.0
_HEAVY_TAILS = 100.0
_WIDE_CHANNELS = 20.0
_WIDE_ROWS = 20.0
# Sparse: issue-wide definition, all three of it.
_SPARSE_SKEW, _SPARSE_ZEROS, _SPARSE_INTENSITY = 3.0, 0.6, 0.5
# A row of softmax inputs that spans more than this in int8 has steps of which one changes a weight by more than an eighth.
_SPAN = 30.0
_LISTED = 8


@dataclass(frozen=True)
class _Findings:
    tensors: Sequence[TensorRecord]
    layers: Sequence[LayerRecord]
    heads: Sequence[HeadRecord]
    sensitivity: Sensitivity

    @property
    def activations(self) -> list[TensorRecord]:
        return [tensor for tensor in self.tensors if tensor.kind == "activation"]

    @property
    def by_name(self) -> Mapping[str, TensorRecord]:
        return {tensor.name: tensor for tensor in self.activations}

    @property
    def weighted(self) -> list[LayerRecord]:
        return [layer for layer in self.layers if layer.parameters]


def advise(
    tensors: Sequence[TensorRecord], layers: Sequence[LayerRecord], heads: Sequence[HeadRecord], sensitivity: Sensitivity
) -> tuple[Advice, ...]:
    """All advice, by rule in the order below. Rules that find nothing say nothing, except on sparsity, where that is an answer."""
    findings = _Findings(tensors, layers, heads, sensitivity)
    return tuple(advice for rule in _RULES for advice in rule(findings))


def _broken(found: _Findings) -> Iterable[Advice]:
    """Values that are not finite."""
    names = [tensor.name for tensor in found.tensors if tensor.nonfinite]
    if names:
        yield Advice(
            "broken",
            tuple(names),
            f"NaN or infinity, already in f32, in {_some(names)}: mend the model before any format is chosen.",
        )


def _must_stay_wide(found: _Findings) -> Iterable[Advice]:
    """Layers whose loss is far above the median."""
    scheme, losses = _reference(found)
    if not losses:
        return
    median = statistics.median(losses.values())
    wide = sorted((name for name, loss in losses.items() if loss > _LOSS_FACTOR * median), key=lambda name: -losses[name])
    if wide:
        times = f", {losses[wide[0]] / median:.0f} times in {wide[0]}" if median > 0 else ""
        yield Advice(
            "stay wide",
            tuple(wide),
            f"Keep {_some(wide)} wide: in {scheme} each loses more than {_LOSS_FACTOR:g} times what the median layer does"
            f"{_for_each(found)}{times}.",
        )


def _may_shrink(found: _Findings) -> Iterable[Advice]:
    """Layers that lose far less than the median, or that lose no more in the narrowest format than the median in the usual one."""
    scheme, losses = _reference(found)
    if not losses:
        return
    median = statistics.median(losses.values())
    small = sorted((name for name, loss in losses.items() if loss < median / _LOSS_FACTOR), key=lambda name: losses[name])
    if small:
        yield Advice(
            "may shrink",
            tuple(small),
            f"{_some(small)} may shrink first: in {scheme} each loses less than a quarter of what the median layer does{_for_each(found)}.",
        )
    narrower = found.sensitivity.schemes[found.sensitivity.schemes.index(scheme) + 1 :]
    for narrow in reversed(narrower):
        fits = [name for name, loss in _losses(found, narrow).items() if loss <= median]
        if fits:
            yield Advice(
                "may shrink",
                tuple(fits),
                f"No more is lost in {narrow} by {_some(fits)} than by the median layer in {scheme}.",
            )
            return


def _int8_inputs(found: _Findings) -> Iterable[Advice]:
    """Layer inputs that int8 holds badly, or only with the right scales."""
    known = [layer for layer in found.weighted if layer.input_snr]
    bad = [layer for layer in known if layer.input_snr["token"] < _POOR_SNR]
    if bad:
        saved = [layer.name for layer in bad if layer.input_snr["group"] >= _GOOD_SNR]
        lost = [layer.name for layer in bad if layer.input_snr["group"] < _GOOD_SNR]
        if saved:
            yield Advice(
                "activations",
                tuple(saved),
                f"The inputs of {_some(saved)} have less than {_POOR_SNR:g} dB left in int8 with a scale for each token, and more than "
                f"{_GOOD_SNR:g} dB with one for each group of 32: use grouped schemes (g32) there, or 16-bit activations.",
            )
        if lost:
            worst = min(bad, key=lambda layer: layer.input_snr["token"])
            yield Advice(
                "activations",
                tuple(lost),
                f"Keep the inputs of {_some(lost)} in 16 bits (A16), or smooth them: int8 leaves less than {_POOR_SNR:g} dB with a scale "
                f"for each token ({worst.name}: {worst.input_snr['token']:.0f} dB), and groups of 32 do not mend it.",
            )
    fine = [layer.name for layer in known if layer.input_snr["token"] >= _GOOD_SNR]
    if fine:
        share = len(fine) / len(known)
        yield Advice(
            "activations",
            tuple(fine),
            f"Dynamic int8 with a scale for each token keeps {_GOOD_SNR:g} dB or more of the inputs of {len(fine)} of {len(known)} layers "
            f"({share:.0%}): A8 schemes suit them.",
        )
    static = [layer.name for layer in known if layer.input_snr["token"] - layer.input_snr["tensor"] > 10]
    if static:
        yield Advice(
            "activations",
            tuple(static),
            f"One scale for the whole tensor would cost the inputs of {_some(static)} more than 10 dB against one for each token: "
            "their range is made by a few tokens.",
        )


def _outliers(found: _Findings) -> Iterable[Advice]:
    """Channels and tokens far above the rest, and heavy tails."""
    channels = sorted((t for t in found.activations if t.channel_ratio > _WIDE_CHANNELS), key=lambda t: -t.channel_ratio)
    if channels:
        first = channels[0]
        yield Advice(
            "outliers",
            tuple(t.name for t in channels),
            f"{len(channels)} activations have channels of more than {_WIDE_CHANNELS:g} times the median channel; the widest is "
            f"{first.name} (channel {first.outlier_channels[0]}, {first.channel_ratio:.0f} times). Scales that such a channel shares with "
            "others are coarse for these: prefer groups, or smooth that channel into the weights.",
        )
    rows = sorted((t for t in found.activations if t.row_ratio > _WIDE_ROWS), key=lambda t: -t.row_ratio)
    if rows:
        first = rows[0]
        yield Advice(
            "outliers",
            tuple(t.name for t in rows),
            f"In {len(rows)} activations single tokens are more than {_WIDE_ROWS:g} times the median token (most in {first.name}, "
            f"{first.row_ratio:.0f} times; the first token of a text, as a rule): scales must be dynamic, for each token.",
        )
    heavy = sorted((t for t in found.activations if t.kurtosis > _HEAVY_TAILS), key=lambda t: -t.kurtosis)
    if heavy:
        yield Advice(
            "outliers",
            tuple(t.name for t in heavy),
            f"{len(heavy)} activations have heavy tails (kurtosis above {_HEAVY_TAILS:g}; most {heavy[0].name}, {heavy[0].kurtosis:.0f}): "
            "clip by error, not at the largest value.",
        )
    large = [t.name for t in found.tensors if t.absmax > _FP16_LARGEST]
    if large:
        yield Advice(
            "range",
            tuple(large),
            f"Above fp16's largest number ({_FP16_LARGEST:g}): {_some(large)}. Keep bf16 or f32 there.",
        )


def _sparse(found: _Findings) -> Iterable[Advice]:
    """Inputs that are sparse in the sense that pays: skewed, zero in long runs, and met by a layer that waits for memory."""
    fed: dict[str, list[LayerRecord]] = {}
    for layer in found.layers:
        if layer.input in found.by_name:
            fed.setdefault(layer.input, []).append(layer)
    zeros = [
        t for t in found.activations if t.skew > _SPARSE_SKEW and t.zero_fraction > _SPARSE_ZEROS and t.long_run_fraction > _SPARSE_ZEROS
    ]
    true = [t for t in zeros if any(layer.decode.flops_per_byte < _SPARSE_INTENSITY for layer in fed.get(t.name, ()))]
    for t in true:
        readers = [layer.name for layer in fed[t.name]]
        yield Advice(
            "sparse",
            (t.name, *readers),
            f"{t.name} is truly sparse: {t.zero_fraction:.0%} zeros, {t.long_run_fraction:.0%} of all values in runs longer than 32 "
            f"(longest {t.longest_zero_run}), skew {t.skew:.1f}, and less than {_SPARSE_INTENSITY:g} FLOP is done for each byte "
            f"read by {_some(readers)}: skipping the zeros' weights saves time.",
        )
    for t in zeros:
        if t not in true:
            yield Advice(
                "sparse",
                (t.name,),
                f"{t.name} is {t.zero_fraction:.0%} zeros in long runs, but what reads it does {_SPARSE_INTENSITY:g} FLOP for each byte or "
                "more: skipping would save memory traffic only where weights are stored wider.",
            )
    if not zeros:
        most = max(found.activations, key=lambda t: t.zero_fraction, default=None)
        words = (
            "" if most is None else f" The most zeros are in {most.name}: {most.zero_fraction:.1%}, longest run {most.longest_zero_run}."
        )
        yield Advice(
            "sparse",
            (),
            f"No activation is sparse in the sense that pays (skew above {_SPARSE_SKEW:g}, more than {_SPARSE_ZEROS:.0%} zeros in runs "
            f"longer than 32, read at less than {_SPARSE_INTENSITY:g} FLOP a byte).{words}",
        )


def _heads(found: _Findings) -> Iterable[Advice]:
    """Whether 8-bit scores can hold what the softmax gets."""
    if not found.heads:
        return
    wide = sorted((head for head in found.heads if head.span > _SPAN), key=lambda head: -head.span)
    names = tuple(f"attention.{head.layer} head {head.head}" for head in wide)
    if wide:
        yield Advice(
            "attention",
            names,
            f"Scores of {len(wide)} of {len(found.heads)} heads span more than {_SPAN:g} in one row of the softmax input (most: "
            f"{names[0]}, {wide[0].span:.0f}): int8 scores with one scale for a row would have steps above {_SPAN / 255:.2f}; keep these "
            "heads wide, or let the scale cover only what is near the row's largest.",
        )
    if len(wide) < len(found.heads):
        rest = len(found.heads) - len(wide)
        yield Advice(
            "attention",
            (),
            f"Scores of {rest} of {len(found.heads)} heads span at most {_SPAN:g} in any row: with a dynamic scale int8 holds them in "
            f"steps of at most {_SPAN / 255:.2f}, and no exponential saturates.",
        )


def _time(found: _Findings) -> Iterable[Advice]:
    """Where the time goes."""
    order = sorted(found.weighted, key=lambda layer: -layer.modelled_share)[:5]
    if order and order[0].modelled_share > 0:
        total = sum(layer.modelled_share for layer in order)
        yield Advice(
            "time",
            tuple(layer.name for layer in order),
            f"Of a decode step, as modelled, {total:.0%} goes to {_some([layer.name for layer in order])}; bytes saved there count most.",
        )


_RULES: tuple[Callable[[_Findings], Iterable[Advice]], ...] = (
    _broken,
    _must_stay_wide,
    _may_shrink,
    _int8_inputs,
    _outliers,
    _sparse,
    _heads,
    _time,
)


def _reference(found: _Findings) -> tuple[str, Mapping[str, float]]:
    """The scheme that layers are compared in, the one nearest to 4.5 bits, and the losses by layer."""
    sensitivity = found.sensitivity
    first = next(iter(sensitivity.bits.values()), None)
    if not sensitivity.schemes or first is None:
        return "", {}
    scheme = min(sensitivity.schemes, key=lambda name: (abs(first[name] - 4.5), name))
    return scheme, _losses(found, scheme)


def _losses(found: _Findings, scheme: str) -> Mapping[str, float]:
    """Losses that can be compared between layers: those that add up, for each weight."""
    sizes = {layer.name: layer.parameters for layer in found.weighted}
    additive = found.sensitivity.additive
    return {name: row[scheme] / (sizes.get(name, 1) if additive else 1) for name, row in found.sensitivity.loss.items()}


def _for_each(found: _Findings) -> str:
    return ", for each of its weights" if found.sensitivity.additive else ""


def _some(names: Sequence[str]) -> str:
    shown = list(names[:_LISTED])
    more = len(names) - len(shown)
    if more:
        return f"{', '.join(shown)} and {more} more"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
