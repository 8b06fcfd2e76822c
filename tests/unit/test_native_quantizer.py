"""The native quantizer against the torch one: the same codes, but where sums in another order decide between equals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mixplan.compiler.calibration.statistics import InputStatistics
from mixplan.compiler.quantize import quantize_rows
from mixplan.compiler.quantizers import native
from mixplan.compiler.quantizers.gptq import compensated
from mixplan.compiler.scales import columns_weights, encode, search
from mixplan.passes.precision.schemes import parse_scheme
from mixplan.runtime.packing import Quantized, dequantize

SCHEMES = (
    *("W4A16:g32", "W4A16:g32,asym", "W4A16:g64,min", "W4A16:g32,s32", "W4A16:g64,nl,s8", "W4A16:g128,nl", "W2A16:g32,nl,s8"),
    *("W3A16:g32,nl,s8", "W5A16:g64,nl,s8", "W2A16:g32", "W3A16:g32,asym", "W5A16:g32,asym", "W6A16:g32,s8", "W6A16:g64,min"),
    *("W8A16", "W8A16:asym", "W8A16:g32", "W8A16:g32,s8", "W8A16:g64,asym", "W8A16:g32,min"),
)
ROWS, COLUMNS = 37, 256

pytestmark = pytest.mark.skipif(not native.available(), reason="no compiler here")


def _statistics(blocks: tuple[int, ...]) -> InputStatistics:
    torch.manual_seed(3)
    x = torch.randn(2048, COLUMNS) @ (torch.eye(COLUMNS) + 0.1 * torch.randn(COLUMNS, COLUMNS))
    whole = x.T @ x / len(x)
    starts = [sum(blocks[:i]) for i in range(len(blocks))]
    return InputStatistics(
        whole.diag().clone(), tuple(whole[at : at + n, at : at + n].contiguous() for at, n in zip(starts, blocks, strict=True))
    )


def _rows() -> Tensor:
    torch.manual_seed(5)
    rows = torch.distributions.StudentT(5.0).sample((ROWS, COLUMNS)) * 0.05
    rows[3] = 0.0
    rows[4, :64] = 0.0
    rows[5] *= 1e-7
    return rows


def _same(codes: Tensor, found: Tensor) -> float:
    return float((codes.reshape(ROWS, -1).to(torch.uint8) == found).float().mean())


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("known", [False, True])
def test_nearest_codes(name: str, known: bool) -> None:
    fmt, rows = parse_scheme(name).weight, _rows()
    group = fmt.group_size or COLUMNS
    grouped = rows.reshape(ROWS, -1, group)
    weights = columns_weights(_statistics((COLUMNS,)).moments, group) if known else None
    scale, zero = search(fmt, grouped, weights)
    found = native.quantize(fmt, rows, group, weights)
    assert _same(encode(fmt, grouped, scale, zero), found[0]) >= 0.995
    for one, other in ((scale, found[1]), (zero, found[2])):
        # Where errors are equal the order of sums decides.
        assert torch.isclose(one, other, rtol=2e-2).float().mean() >= 0.98


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("blocks", [(COLUMNS,), (128, 128)])
def test_compensated_codes_lose_as_little(name: str, blocks: tuple[int, ...]) -> None:
    # One code that falls the other way changes all later ones, so the loss is what must agree.
    fmt, rows, inputs = parse_scheme(name).weight, _rows(), _statistics(blocks)
    group = fmt.group_size or COLUMNS
    slow = compensated(fmt, rows.reshape(ROWS, -1, group), inputs.factors(), inputs.moments)
    fast = native.quantize(fmt, rows, group, columns_weights(inputs.moments, group), inputs.factors())
    assert _same(slow[0], fast[0]) >= 0.9
    losses = [inputs.loss(_decoded(name, found) - rows).sum() for found in (slow, fast)]
    torch.testing.assert_close(losses[1], losses[0], rtol=0.02, atol=0.0)


def _decoded(name: str, found: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    fmt = parse_scheme(name).weight
    codes, scales, zeros = found
    quantized = Quantized(codes.reshape(ROWS, COLUMNS).to(torch.uint8).numpy(), scales.numpy(), None if fmt.symmetric else zeros.numpy())
    return torch.from_numpy(dequantize(fmt, quantized))


def test_columns_that_fill_no_group() -> None:
    # 40 columns in groups of 32, and a Hessian of 40: the rest of the last group is padding.
    inputs = InputStatistics(torch.ones(40), (torch.eye(40) + 0.3,))
    rows = _rows()[:, :40].contiguous()
    found = quantize_rows(parse_scheme("W8A16:g32").weight, rows, "w", inputs)
    assert found.codes.shape == (ROWS, 40)
    back = torch.from_numpy(dequantize(parse_scheme("W8A16:g32").weight, found))
    assert (back - rows).abs().max() <= 0.02 * rows.abs().max()


@pytest.mark.parametrize("scheme", ["W4A16:g32", "W4A16:g32,min"])
def test_f16_scales_are_rounded_as_numpy_rounds(scheme: str) -> None:
    # Scales from the least subnormal up to what an f16 cannot hold.
    rows = torch.logspace(-8, 7.5, 64).repeat_interleave(32).reshape(64, 32) * torch.linspace(-1, 0.9, 32)
    _, scales, _ = native.quantize(parse_scheme(scheme).weight, rows, 32, None)
    torch.testing.assert_close(scales, scales.half().float(), rtol=0.0, atol=0.0)
    assert torch.isinf(scales[-1]).all() or scheme.endswith("min")
    assert (scales[:8] == 0).any()


def test_without_a_compiler_torch_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, fmt = _rows(), parse_scheme("W4A16:g32").weight
    fast = quantize_rows(fmt, rows, "w")
    monkeypatch.setattr(native, "available", lambda: False)
    slow = quantize_rows(fmt, rows, "w")
    assert (fast.codes == slow.codes).mean() > 0.995
