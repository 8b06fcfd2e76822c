"""What the CPU target leaves to the reference device, and indices that a plan's constants get wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mixplan.runtime.devices.cpu import CpuDevice
from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import RequestError, UnsupportedError
from mixplan.runtime.hal import CacheSpec, DeviceOptions
from mixplan.runtime.plan import Node, Sym, Value
from mixplan.targets.cpu.target import unsupported_reason

T = Sym("T")


@pytest.mark.parametrize("op", ["rms_norm_quant", "layer_norm_quant"])
def test_rows_that_would_not_fit_a_thread_s_stack_are_refused(op: str) -> None:
    def reason(columns: int) -> str:
        values = [Value(name="x", kind="input", dtype=DType.f32, shape=(1, T, columns))]
        return unsupported_reason(Node(op=op, inputs=(0,), outputs=()), values)

    assert reason(1 << 16) == ""
    assert "at most 65536" in reason((1 << 16) + 1)


def test_an_embedding_id_beyond_the_table_is_an_error(kit: Any) -> None:
    ids = kit.ids(11, T, least=10)
    kit.op("embedding", ids, kit.const(np.zeros((1, 8, 16), np.float32)), -1, -1, format="f32", rows=10, columns=8)
    region = kit.open("portable")
    with pytest.raises(RequestError, match=r"Op embedding .*out of range"):
        region.run(kit.step(7, 1), kit.data(7, 1))
    region.close()


def test_kernels_of_the_same_counts_but_other_shapes_are_refused(make_kit: Any) -> None:
    def toy(columns: int) -> Any:
        kit = make_kit()
        kit.op("rms_norm", kit.input(1, T, columns), kit.const(np.ones(columns, np.float32)), eps=1e-5)
        return kit.loaded("portable")

    mine, other = toy(16), toy(1 << 20)
    caches = CacheSpec(pages=1, page_size=32, max_sequences=1, max_pages_per_sequence=1)
    CpuDevice(DeviceOptions(threads=1, isa="portable")).load(mine, 0, caches).close()
    mine.libraries = other.libraries
    # Kernels compiled anew would take their place, but this plan has no folder to compile them from.
    with pytest.raises(
        UnsupportedError, match=r"made for other shapes or attributes.*cannot be compiled here: There is no plan at /nowhere"
    ):
        CpuDevice(DeviceOptions(threads=1, isa="portable")).load(mine, 0, caches)
