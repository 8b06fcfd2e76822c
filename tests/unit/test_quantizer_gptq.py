"""Error compensation against a plain numpy account of the method, and what it wins."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mixplan.compiler.calibration.statistics import InputStatistics
from mixplan.compiler.quantize import dequantized, quantize_rows
from mixplan.compiler.quantizers.gptq import compensated
from mixplan.compiler.scales import decode
from mixplan.passes.precision.schemes import parse_scheme
from mixplan.runtime.packing import dequantize, pack, unpack

SCHEMES = ("W4A16:g32", "W4A16:g32,asym", "W3A16:g64,nl,s8", "W4A16:g32,nl,s8", "W5A16:g32", "W2A16:g32,min", "W6A16:g64,s8")


def related_inputs(columns: int, seed: int = 0, block: int = 0) -> tuple[InputStatistics, torch.Tensor]:
    """Inputs whose columns hang together, and their statistics."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(columns, columns, generator=generator) / columns**0.5 + torch.eye(columns)
    x = torch.randn(4 * columns, columns, generator=generator) @ mix
    hessian = x.T @ x / len(x)
    size = block or columns
    blocks = tuple(hessian[at : at + size, at : at + size].clone() for at in range(0, columns, size))
    return InputStatistics(x.square().mean(0), blocks), x


@pytest.mark.parametrize("text", SCHEMES)
@pytest.mark.parametrize("columns", [128, 100])
def test_compensation_lowers_the_error_of_the_output(text: str, columns: int) -> None:
    """On the inputs that it saw, by at least a tenth; and what is stored is what the quantizer says."""
    fmt = parse_scheme(text).weight
    inputs, x = related_inputs(columns)
    rows = torch.randn(48, columns, generator=torch.Generator().manual_seed(1))
    errors = []
    for compensate in (False, True):
        made = dequantized(fmt, rows, "w", inputs, compensate=compensate)
        errors.append(float(((made - rows) @ x.T).square().mean()))
    assert errors[1] < 0.9 * errors[0]
    quantized = quantize_rows(fmt, rows, "w", inputs)
    np.testing.assert_array_equal(unpack(fmt, pack(fmt, quantized), *rows.shape), dequantize(fmt, quantized))


def test_against_a_plain_account_of_the_method() -> None:
    """Column by column in float64, with the groups' scales taken from the product."""
    fmt = parse_scheme("W4A16:g32").weight
    inputs, _ = related_inputs(64)
    rows = torch.randn(8, 64, generator=torch.Generator().manual_seed(2))
    codes, scales, zeros = compensated(fmt, rows.reshape(8, 2, 32), inputs.factors(), inputs.moments)
    damped = inputs.blocks[0].double().numpy() + 0.01 * float(inputs.blocks[0].diagonal().mean()) * np.eye(64)
    rest = rows.double().numpy()
    for i in range(64):
        inverse = np.linalg.inv(damped[i:, i:])
        stored = (codes[:, i // 32, i % 32] - zeros[:, i // 32]) * scales[:, i // 32]
        nearest = decode(
            fmt, torch.from_numpy(rest[:, i]).float().reshape(8, 1, 1), scales[:, i // 32 : i // 32 + 1], zeros[:, i // 32 : i // 32 + 1]
        )
        assert np.mean(np.abs(nearest[:, 0, 0].numpy() - stored.numpy()) < 1e-6) > 0.85, "most roundings agree; ties may fall either way"
        rest[:, i:] -= np.outer(rest[:, i] - stored.double().numpy(), inverse[0] / inverse[0, 0])


def test_rows_do_not_depend_on_each_other_and_blocks_on_columns() -> None:
    """A weight is packed in chunks of rows; diagonal blocks compensate within themselves; a dead column does no harm."""
    fmt = parse_scheme("W4A16:g32,nl,s8").weight
    inputs, _ = related_inputs(256, block=128)
    inputs.blocks[0][5], inputs.blocks[0][:, 5], inputs.moments[5] = 0, 0, 0
    rows = torch.randn(32, 256, generator=torch.Generator().manual_seed(3))
    whole = dequantized(fmt, rows, "w", inputs)
    parts = torch.cat([dequantized(fmt, part, "w", inputs) for part in rows.split(16)])
    assert float((whole - parts).abs().max()) < 0.2 and float((whole != parts).float().mean()) < 0.01
    changed = rows.clone()
    changed[:, :128] += 1
    torch.testing.assert_close(
        dequantized(fmt, changed, "w", InputStatistics(inputs.moments, inputs.blocks))[:, 128:].std(),
        whole[:, 128:].std(),
        rtol=0.05,
        atol=0,
    )
    assert bool(torch.isfinite(whole).all())
