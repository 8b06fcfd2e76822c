"""Builds small regions by hand, compiles them at one ISA level and compares the CPU device with the reference device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixplan.runtime.devices.cpu import CpuDevice
from mixplan.runtime.devices.cpu_info import runnable_levels
from mixplan.runtime.devices.reference import ReferenceDevice
from mixplan.runtime.dtypes import DType
from mixplan.runtime.hal import CacheSpec, DeviceOptions, LoadedRegion, Step
from mixplan.runtime.ops import op_spec
from mixplan.runtime.plan import AttentionLayer, Model, Node, Plan, Provenance, Region, Shape, Sym, Value, dim_value
from mixplan.runtime.plan_io import LoadedPlan
from mixplan.targets.base import CompileOptions
from mixplan.targets.cpu.target import CpuTarget

T, R = Sym("T"), Sym("R")
_DTYPES = {np.dtype(np.uint16): DType.bf16, **{d.numpy: d for d in DType if d is not DType.bf16}}


@dataclass
class MemoryPlan(LoadedPlan):
    """A loaded plan whose kernels and constants never were on disk."""

    libraries: dict[str, bytes] = field(default_factory=dict)

    def read_file(self, path: str) -> bytes:
        return self.libraries[path]


class Kit:
    """A region under construction. Values are numbered; `run` compares both devices."""

    def __init__(self, max_tokens: int = 65) -> None:
        self.values: list[Value] = []
        self.nodes: list[Node] = []
        self.arrays: dict[int, np.ndarray] = {}
        self.outputs: list[int] = []
        self.layers: list[AttentionLayer] = []
        self.makers: dict[int, Callable[[tuple[int, ...], np.random.Generator], np.ndarray]] = {}
        self.max_tokens = max_tokens
        self.tolerances: dict[int, tuple[float, float]] = {}

    def _value(self, **fields: Any) -> int:
        self.values.append(Value(name=f"v{len(self.values)}", **fields))
        return len(self.values) - 1

    def input(self, *shape: Any, dtype: str = "f32", make: Any = None) -> int:
        """A region input; `make(shape, rng)` gives its elements, standard normal ones by default."""
        index = self._value(kind="input", dtype=DType(dtype), shape=tuple(shape))
        self.makers[index] = make or (lambda s, rng: rng.standard_normal(s))
        return index

    def ids(self, below: int, *shape: Any, least: int = 0, dtype: str = "i64") -> int:
        """Integers in [least, below)."""
        return self.input(*shape, dtype=dtype, make=lambda s, rng: rng.integers(least, below, s))

    def bools(self, *shape: Any) -> int:
        return self.input(*shape, dtype="bool", make=lambda s, rng: rng.random(s) < 0.5)

    def const(self, array: Any, dtype: str | None = None) -> int:
        array = np.ascontiguousarray(array)
        kind = DType(dtype) if dtype else _DTYPES[array.dtype]
        index = self._value(kind="const", dtype=kind, shape=array.shape)
        self.arrays[index] = array
        return index

    def fill(self, value: Any, *shape: Any, dtype: str = "f32") -> int:
        return self._value(kind="const", dtype=DType(dtype), shape=tuple(shape), fill=value)

    def op(
        self, name: str, *inputs: int, shape: Shape | None = None, dtype: str = "f32", out: bool = True, tol: Any = None, **attrs: Any
    ) -> Any:
        """A node; shapes are inferred, `shape` and `dtype` declared where the op needs it. out: compare its results."""
        given = [None if i < 0 else (self.values[i].dtype, self.values[i].shape) for i in inputs]
        declared = [] if shape is None else [(DType(dtype), tuple(shape))]
        if name == "cast":
            declared = [(DType(dtype), self.values[inputs[0]].shape)]
        made = [self._value(kind="node", dtype=kind, shape=tuple(dims)) for kind, dims in op_spec(name).infer(given, attrs, declared)]
        self.nodes.append(Node(op=name, inputs=inputs, outputs=tuple(made), attrs=attrs, name=f"{name}_{len(self.nodes)}"))
        if out:
            self.outputs += made
        if tol is not None:
            self.tolerances.update(dict.fromkeys(made, tol))
        return made[0] if len(made) == 1 else made

    def plan(self) -> Plan:
        inputs = tuple(i for i, v in enumerate(self.values) if v.kind == "input")
        region = Region("main", "cpu", 0, len(self.nodes), inputs, tuple(self.outputs))
        return Plan(
            schema_version=1,
            name="test",
            model=Model("test", 1, 1, 1),
            values=tuple(self.values),
            nodes=tuple(self.nodes),
            regions=(region,),
            outputs=tuple(self.outputs),
            attention=tuple(self.layers),
            max_step_tokens=self.max_tokens,
            decisions=(),
            effective_bits=32.0,
            provenance=Provenance("test", "test", {}, {}, {}),
        )

    def loaded(self, level: str) -> MemoryPlan:
        """The plan with kernels of one level."""
        import msgspec

        plan = self.plan()
        compiled = CpuTarget().compile(plan, plan.regions[0], CompileOptions((level,)))
        region = msgspec.structs.replace(plan.regions[0], kernels={level: "k.so"})
        plan = msgspec.structs.replace(plan, regions=(region,))
        loaded = MemoryPlan(plan, Path("/nowhere"), "", {}, {}, trusted=True, libraries={"k.so": compiled.kernels[level]})
        for index, value in enumerate(self.values):
            if index in self.arrays:
                loaded._constants[index] = self.arrays[index]
            elif value.kind == "const":
                shape = tuple(int(d) for d in value.shape)  # type: ignore[arg-type]
                loaded._constants[index] = np.broadcast_to(np.asarray(float(value.fill), value.dtype.numpy), shape)
        return loaded

    def step(self, tokens: int, rows: int, *, positions: Any = None, slots: Any = None, tables: Any = None) -> Step:
        positions = np.arange(tokens) if positions is None else np.asarray(positions)
        slots = np.zeros(tokens) if slots is None else np.asarray(slots)
        lengths = np.array([positions[slots == s].max() + 1 for s in slots])
        if tables is None:
            tables = np.arange(4 * 8).reshape(4, 8)
        as_i32 = [np.asarray(a, np.int32) for a in (np.zeros(tokens), positions, slots, np.arange(rows), lengths, tables)]
        return Step(*as_i32)

    def data(self, tokens: int, rows: int, seed: int = 0) -> dict[int, np.ndarray]:
        """Random arrays for all inputs."""
        rng = np.random.default_rng(seed)
        out = {}
        for index, make in self.makers.items():
            shape = tuple(dim_value(d, tokens=tokens, rows=rows) for d in self.values[index].shape)
            out[index] = np.ascontiguousarray(make(shape, rng), self.values[index].dtype.numpy)
        return out

    def compare(self, got: dict[int, np.ndarray], want: dict[int, np.ndarray], note: str) -> None:
        """Floats within the value's tolerance, everything else exactly."""
        for index in self.outputs:
            made = next(n for n in self.nodes if index in n.outputs)
            a, b = got[index], want[index]
            assert a.dtype == b.dtype and a.shape == b.shape, (note, made, a.dtype, b.dtype, a.shape, b.shape)
            rtol, atol = self.tolerances.get(index, (2e-6, 1e-6) if a.dtype == np.float32 else (0, 0))
            np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, equal_nan=True, err_msg=f"{note}: {made}")

    def check(
        self, level: str, threads: Sequence[int] = (1, 2), sizes: Sequence[tuple[int, int]] = ((1, 1), (7, 3), (65, 65), (7, 0))
    ) -> None:
        """Run both devices at several sizes and thread counts, and compare all outputs."""
        loaded = self.loaded(level)
        caches = CacheSpec(pages=32, page_size=32, max_sequences=4, max_pages_per_sequence=8)
        slow = ReferenceDevice(DeviceOptions()).load(loaded, 0, caches)
        for count in threads:
            fast = CpuDevice(DeviceOptions(threads=count, isa=level)).load(loaded, 0, caches)
            assert fast.isa == level
            for tokens, rows in sizes:
                data, step = self.data(tokens, rows, seed=tokens), self.step(tokens, rows)
                self.compare(fast.run(step, data), slow.run(step, data), f"{level}, {count} threads, T={tokens}, R={rows}")
            fast.close()
        slow.close()

    def open(self, level: str, threads: int = 2) -> LoadedRegion:
        caches = CacheSpec(pages=32, page_size=32, max_sequences=4, max_pages_per_sequence=8)
        return CpuDevice(DeviceOptions(threads=threads, isa=level)).load(self.loaded(level), 0, caches)


@pytest.fixture
def kit() -> Kit:
    return Kit()


@pytest.fixture(params=["portable", "x86-64-v3", "x86-64-v4-vnni"])
def level(request: pytest.FixtureRequest) -> str:
    """Levels to test at; those that this CPU lacks are skipped."""
    if request.param not in runnable_levels():
        pytest.skip(f"this CPU cannot run {request.param}")
    return str(request.param)


@pytest.fixture
def make_kit() -> type[Kit]:
    return Kit
