"""Programs for GPUs: their file, their memory, how values are seen, and what each architecture is asked for. No GPU, torch or triton."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from mixplan.runtime.devices.gpu_program import Affine, Argument, Kernel, Launch, Program, Sizes, decode_program, encode_program
from mixplan.runtime.devices.gpu_region import stretches_of
from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import OptionError, PlanError
from mixplan.runtime.hal import Step
from mixplan.runtime.plan import Sym
from mixplan.targets.gpu.arch import ARCHS, resolve_archs
from mixplan.targets.gpu.lower.arena import ALIGNMENT, Buffer, place
from mixplan.targets.gpu.lower.views import Refused, View, broadcast, contiguous_strides, outer_dims, reshaped, rows_of
from mixplan.targets.gpu.tiles import SIZES, gemm_tile
from mixplan.targets.levels import check_levels, levels_for

T = Sym("T")


def _program() -> Program:
    kernel = Kernel("norm", ("*fp32", ""), {"K": 4, "EPS": 1e-6}, 4, 3, "norm", 16, 128, 32, 0, 2, 3)
    launch = Launch(0, 0, ((Affine(tokens=1),),), (Argument("arena", "*fp32", offset=256), Argument("none")))
    return Program(1, "sm_90", "triton", 7, 512, 32, 64, 128, {"3": 0}, (kernel,), (launch,))


def test_a_program_comes_back_with_its_binaries() -> None:
    program, binaries = decode_program(encode_program(_program(), [b"ab", b"cde"]), "x.bin")
    assert program == _program()
    assert bytes(binaries[2:5]) == b"cde"


def _changed(**changes: object) -> bytes:
    return encode_program(msgspec.structs.replace(_program(), **changes), [b"abcde"])


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "not a file of GPU kernels"),
        (b"MPGPU1\0\0" + (1 << 40).to_bytes(8, "little"), "not a file of GPU kernels"),
        (b"MPGPU1\0\0" + (2).to_bytes(8, "little") + b"{}", "malformed"),
        (encode_program(_program(), [b"ab"]), "binary of norm lies outside"),
        (_changed(format=2), "format is 2"),
        (_changed(launches=(msgspec.structs.replace(_program().launches[0], kernel=1),)), "names kernel 1 of 1"),
        (_changed(launches=(msgspec.structs.replace(_program().launches[0], arguments=()),)), "has 0 arguments"),
        (_changed(launches=(msgspec.structs.replace(_program().launches[0], grid=((),)),)), "a grid is not one"),
        (_changed(arena=256), "argument lies outside the arena"),
        (_changed(values={"3": 512}), "value lies outside the arena"),
    ],
)
def test_malformed_programs(data: bytes, told: str) -> None:
    with pytest.raises(PlanError, match=told):
        decode_program(data, "x.bin")


def test_sizes_of_a_step() -> None:
    sizes = Sizes(tokens=5, rows=2, stretches=3)
    assert Affine(tokens=3, add=1, div=4).at(sizes) == 4
    assert Affine(rows=16, div=16).at(sizes) == 2
    assert Affine(stretches=2).at(sizes) == 6


def test_buffers_that_live_together_do_not_overlap() -> None:
    rng = np.random.default_rng(0)
    buffers = []
    for _ in range(60):
        first = int(rng.integers(-1, 40))
        buffers.append(Buffer(int(rng.integers(0, 5000)), first, first + int(rng.integers(0, 8))))
    size = place(buffers)
    for i, a in enumerate(buffers):
        assert a.offset % ALIGNMENT == 0
        assert a.offset >= 0
        assert a.offset + a.nbytes <= size
        for b in buffers[:i]:
            if a.first <= b.last and b.first <= a.last:
                assert a.offset + max(a.nbytes, 1) <= b.offset or b.offset + max(b.nbytes, 1) <= a.offset
    assert size < sum(buffer.nbytes for buffer in buffers) / 2


def _walk(view: View, tokens: int) -> list[int]:
    """Every element's place, in order."""
    shape = [tokens if isinstance(dim, Sym) else dim for dim in view.shape]
    return [view.offset + sum(i * s for i, s in zip(index, view.strides, strict=True)) for index in np.ndindex(*shape)]


def test_views_of_a_merged_projection() -> None:
    """What numpy says of a slice's reshape; where elements would have to move, there is no view."""
    whole = View(0, DType.f32, (1, T, 96), contiguous_strides((1, T, 96)))
    part = View(0, DType.f32, (1, T, 32), whole.strides, 48)
    array = np.arange(3 * 96).reshape(1, 3, 96)[..., 48:80]
    heads = reshaped(part, (1, T, 4, 8))
    assert heads is not None
    assert _walk(heads, 3) == array.ravel().tolist()
    assert reshaped(heads, (1, T, 32)) is not None
    assert reshaped(part, (T, 8, 1, 4)) is not None
    assert reshaped(part, (Sym("T", 4), 8)) is None
    assert rows_of(part) == (T, 96, 32)
    assert rows_of(heads) is None
    outer, dims, strides = outer_dims([heads, broadcast(View(1, DType.f32, (8,), (1,)), heads.shape)])
    assert (outer, dims, strides) == (T, (4, 8), [(96, 8, 1), (0, 0, 1)])
    assert outer_dims([heads])[1] == (32,)
    with pytest.raises(Refused, match="before the tokens"):
        contiguous_strides((4, T))


def test_stretches_end_with_their_sequence() -> None:
    slots = np.array([3, 3, 3, 3, 3, 0, 1, 1], np.int32)
    step = Step(*(slots,) * 3, np.zeros(1, np.int32), slots, np.zeros((4, 1), np.int32))
    assert stretches_of(step, 2).tolist() == [[0, 2], [2, 2], [4, 1], [5, 1], [6, 2]]


def test_levels_go_to_their_target() -> None:
    levels = ("portable", "sm_90")
    assert levels_for("gpu", levels) == ("sm_90",)
    assert levels_for("cpu", (*levels, "native")) == ("portable", "native")
    check_levels(("cpu", "gpu"), levels)
    with pytest.raises(OptionError, match="'portable' is for none of the targets gpu"):
        check_levels(("gpu",), levels)
    assert resolve_archs(()) == ("sm_80", "sm_90", "sm_100", "gfx942")
    with pytest.raises(OptionError, match="no GPU architecture 'sm_75'"):
        resolve_archs(("sm_75",))


@pytest.mark.parametrize("arch", ARCHS)
def test_tiles_suit_the_kernels(arch: str) -> None:
    """Tensor cores take 16 rows and 32 columns of int8 at least; a step of integers must not straddle groups."""
    for name, _, _ in SIZES:
        for kind in ("a16", "a16x", "f32", "a8", "fp8"):
            for group in (0, 32, 128):
                tile = gemm_tile(ARCHS[arch], name, kind, 4096, 4096, group)
                assert tile.m % 16 == 0
                assert tile.n % 32 == 0
                assert tile.k % 32 == 0
                assert kind != "a8" or group == 0 or group % tile.k == 0
                assert tile.split & (tile.split - 1) == 0
    assert gemm_tile(ARCHS[arch], "decode", "a16", 1024, 4096, 128).split > 1  # 16 programs would leave most units idle
    assert gemm_tile(ARCHS[arch], "large", "a16", 1024, 4096, 128).split == 1


def test_the_runtime_half_needs_no_target_package(tmp_path: Path) -> None:
    """gpu.py names the compile half by strings only; the layer check of CI says the same of imports."""
    import mixplan.runtime.devices.gpu as gpu

    text = Path(gpu.__file__).read_text()
    assert "import mixplan.targets" not in text
    assert "from mixplan.targets" not in text
