"""A hand-written plan: a builder, a toy decoder made with it, and the same decoder in straightforward numpy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mixplan.runtime.dtypes import DType, f32_to_bf16
from mixplan.runtime.formats import F32
from mixplan.runtime.kv_format import KvFormat
from mixplan.runtime.ops import op_spec
from mixplan.runtime.packing import interleave_gated, pack
from mixplan.runtime.plan import (
    SCHEMA_VERSION,
    AttentionLayer,
    Decision,
    Model,
    Node,
    Plan,
    Provenance,
    Region,
    Shape,
    Sym,
    Tensor,
    Value,
)
from mixplan.runtime.plan_io import write_manifest
from mixplan.targets.base import CompileOptions
from mixplan.targets.cpu.target import CpuTarget

T, R = Sym("T"), Sym("R")
_BY_NUMPY = {dtype.numpy: dtype for dtype in DType if dtype is not DType.bf16}


def write_safetensors(path: Path, tensors: dict[str, tuple[DType, np.ndarray]]) -> dict[str, Tensor]:
    """A safetensors file with tensors on 64-byte borders (sizes permitting), and where each lies."""
    header: dict[str, Any] = {}
    places: dict[str, Tensor] = {}
    offset = 0
    for key, (dtype, array) in tensors.items():
        header[key] = {"dtype": dtype.safetensors, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        places[key] = Tensor(file=path.name, key=key, offset=offset, nbytes=array.nbytes)
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % 64)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(np.ascontiguousarray(a).tobytes() for _, a in tensors.values()))
    return places


@dataclass
class PlanBuilder:
    """Collects values and nodes; output shapes come from the ops' own shape rules unless declared."""

    values: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    attention: list[AttentionLayer] = field(default_factory=list)
    tensors: dict[str, tuple[DType, np.ndarray]] = field(default_factory=dict)
    cuts: list[tuple[str, int]] = field(default_factory=list)
    vocab: int = 0
    context_length: int = 256
    max_step_tokens: int = 64
    # Other files of the plan, by path.
    files: dict[str, bytes] = field(default_factory=dict)

    def add(self, value: Value) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def input(self, name: str) -> int:
        return self.add(Value(name, "input", DType.i64, (R,) if name == "logit_rows" else (1, T)))

    def const(self, name: str, array: np.ndarray, dtype: DType | None = None) -> int:
        dtype = dtype or _BY_NUMPY[array.dtype]
        self.tensors[name] = (dtype, array)
        return self.add(Value(name, "const", dtype, array.shape, tensor=Tensor("", name, 0, array.nbytes)))

    def fill(self, name: str, number: Any, dtype: DType = DType.f32, shape: Shape = ()) -> int:
        return self.add(Value(name, "const", dtype, shape, fill=number))

    def node(self, op: str, *inputs: int, name: str = "", out: tuple[DType, Shape] | None = None, **attrs: Any) -> int:
        name = name or f"{op}_{len(self.nodes)}"
        typed = [None if i < 0 else (self.values[i].dtype, self.values[i].shape) for i in inputs]
        inferred = op_spec(op).infer(typed, attrs, [out] if out else [])
        made = [
            self.add(Value(name if k == 0 else f"{name}.{k}", "node", dtype, tuple(shape))) for k, (dtype, shape) in enumerate(inferred)
        ]
        self.nodes.append(Node(op, tuple(inputs), tuple(made), attrs, name=name))
        return made[0]

    def linear(self, x: int, name: str, weight: np.ndarray, residual: int = -1) -> int:
        packed = self.const(f"{name}.weight", pack(F32, weight)["weight"])
        rows, columns = weight.shape
        return self.node("linear", x, packed, -1, -1, -1, residual, name=name, format="f32", rows=rows, columns=columns)

    def region(self, device: str) -> None:
        """Everything since the last region runs on `device`."""
        self.cuts.append((device, len(self.nodes)))

    def _regions(self, outputs: tuple[int, ...]) -> tuple[Region, ...]:
        regions, start = [], 0
        for device, stop in self.cuts or [("reference", len(self.nodes))]:
            inside = {v for n in self.nodes[start:stop] for v in n.outputs}
            used = {v for n in self.nodes[start:stop] for v in n.inputs if v >= 0 and self.values[v].kind != "const"}
            later = {v for n in self.nodes[stop:] for v in n.inputs} | set(outputs)
            regions.append(
                Region(f"{device}_{len(regions)}", device, start, stop, tuple(sorted(used - inside)), tuple(sorted(inside & later)))
            )
            start = stop
        return tuple(regions)

    def plan(self, *outputs: int) -> Plan:
        return Plan(
            schema_version=SCHEMA_VERSION,
            name="toy",
            model=Model("Toy", self.vocab, self.context_length, 1000, 1, (2,), {"temperature": 0.5}),
            values=tuple(self.values),
            nodes=tuple(self.nodes),
            regions=self._regions(outputs),
            outputs=outputs,
            attention=tuple(self.attention),
            max_step_tokens=self.max_step_tokens,
            decisions=(Decision("head", "FP32", "scheme", 100, 32.0, "FP32"),),
            effective_bits=32.0,
            provenance=Provenance("memory", "toy", {}, {}, {"mixplan": "0"}),
        )

    def write(self, root: Path, *outputs: int) -> Plan:
        """Write the plan directory; gives the plan as written."""
        root.mkdir(parents=True)
        places = write_safetensors(root / "weights.safetensors", self.tensors)
        for index, value in enumerate(self.values):
            if value.tensor is not None:
                self.values[index] = Value(value.name, value.kind, value.dtype, value.shape, tensor=places[value.name])
        for name, content in self.files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
        plan = self.plan(*outputs)
        write_manifest(root, plan)
        return plan


@dataclass
class Toy:
    """A one-layer decoder: RMSNorm, rotary attention with grouped heads, gated MLP, head. Sizes are small and odd on purpose."""

    seed: int = 0
    hidden: int = 24
    heads: int = 4
    kv_heads: int = 2
    size: int = 6
    inner: int = 20
    vocab: int = 37
    window: int = 0
    eps: float = 1e-5

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)

        def make(*shape: int) -> np.ndarray:
            return (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

        self.w = {
            "embed": make(self.vocab, self.hidden) * 3,
            "q": make(self.heads * self.size, self.hidden),
            "k": make(self.kv_heads * self.size, self.hidden),
            "v": make(self.kv_heads * self.size, self.hidden),
            "o": make(self.hidden, self.heads * self.size),
            "gate": make(self.inner, self.hidden),
            "up": make(self.inner, self.hidden),
            "down": make(self.hidden, self.inner),
            "norm": 1 + 0.1 * make(self.hidden),
            "head": make(self.vocab, self.hidden),
        }
        self.frequency = (10000.0 ** (-np.arange(0, self.size, 2) / self.size)).astype(np.float32)

    def build(self, devices: Sequence[str] = ("reference",), kv_dtype: KvFormat = KvFormat.f32, **settings: Any) -> tuple[PlanBuilder, int]:
        """The decoder's graph, cut into as many regions as devices are given (at most 3), and the index of its logits."""
        b = PlanBuilder(vocab=self.vocab, **settings)
        ids, places, rows = b.input("token_ids"), b.input("position_ids"), b.input("logit_rows")
        b.attention.append(AttentionLayer(self.kv_heads, self.size, self.size, kv_dtype, self.window))
        table = b.const("embed.weight", pack(F32, self.w["embed"])["weight"])
        x = b.node("embedding", ids, table, -1, -1, name="embed", format="f32", rows=self.vocab, columns=self.hidden)
        norm = b.const("norm.weight", self.w["norm"])
        if len(devices) > 1:
            b.region(devices[0])
        at = b.node("cast", places, out=(DType.f32, (1, T)))
        at = b.node("reshape", at, out=(DType.f32, (1, T, 1)))
        angle = b.node("mul", at, b.const("frequency", self.frequency))
        angle = b.node("cat", angle, angle, axis=2)
        cos, sin = b.node("cos", angle), b.node("sin", angle)
        h = b.node("rms_norm", x, norm, eps=self.eps)
        parts = {}
        for key, count in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads)):
            part = b.node("reshape", b.linear(h, key, self.w[key]), out=(DType.f32, (1, T, count, self.size)))
            parts[key] = part if key == "v" else b.node("rope", part, cos, sin, style="half")
        mixed = b.node("attention", *parts.values(), -1, -1, name="attention", layer=0, scale=self.size**-0.5, window=self.window)
        mixed = b.node("reshape", mixed, out=(DType.f32, (1, T, self.heads * self.size)))
        x = b.linear(mixed, "o", self.w["o"], residual=x)
        if len(devices) > 2:
            b.region(devices[1])
        h = b.node("rms_norm", x, norm, eps=self.eps)
        gated = interleave_gated(pack(F32, self.w["gate"]), pack(F32, self.w["up"]))["weight"]
        packed = b.const("gated.weight", gated)
        inner = b.node("gated_linear", h, packed, -1, -1, -1, format="f32", rows=self.inner, columns=self.hidden, activation="silu")
        x = b.linear(inner, "down", self.w["down"], residual=x)
        x = b.node("take", x, rows, axis=1)
        x = b.node("rms_norm", x, norm, eps=self.eps)
        logits = b.linear(x, "head", self.w["head"])
        b.region(devices[-1])
        return b, logits

    def write(self, root: Path, devices: Sequence[str] = ("reference",), **settings: Any) -> Plan:
        builder, logits = self.build(devices, **settings)
        return builder.write(root, logits)

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """Straightforward numpy, one whole sequence: [len(tokens), vocab]."""
        w, count = self.w, len(tokens)
        x = w["embed"][np.asarray(tokens)]

        def norm(x: np.ndarray) -> np.ndarray:
            return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps) * w["norm"]

        def heads(x: np.ndarray, key: str, rotate: bool) -> np.ndarray:
            y = (x @ w[key].T).reshape(count, -1, self.size)
            if rotate:
                angle = np.arange(count)[:, None, None] * self.frequency
                low, high = y[..., : self.size // 2], y[..., self.size // 2 :]
                y = np.concatenate([low * np.cos(angle) - high * np.sin(angle), high * np.cos(angle) + low * np.sin(angle)], -1)
            return y

        h = norm(x)
        q, k, v = heads(h, "q", True), heads(h, "k", True), heads(h, "v", False)
        out = np.zeros_like(q)
        for head in range(self.heads):
            shared = head * self.kv_heads // self.heads
            scores = q[:, head] @ k[:, shared].T * self.size**-0.5
            distance = np.arange(count)[:, None] - np.arange(count)
            scores[(distance < 0) | ((distance >= self.window) if self.window else False)] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, head] = weights / weights.sum(-1, keepdims=True) @ v[:, shared]
        x = x + out.reshape(count, -1) @ w["o"].T
        h = norm(x)
        gate = h @ w["gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w["up"].T)) @ w["down"].T
        return norm(x) @ w["head"].T


@dataclass
class Editor:
    """Changes a written plan's JSON and vouches for the result, so that what is tested is the check behind the digest."""

    root: Path

    def load(self) -> Any:
        return json.loads((self.root / "plan.json").read_text())

    def save(self, data: Any) -> None:
        self.save_bytes(json.dumps(data).encode())

    def save_bytes(self, text: bytes) -> None:
        (self.root / "plan.json").write_bytes(text)
        (self.root / "plan.sha256").write_text(f"{hashlib.sha256(text).hexdigest()}  plan.json\n")

    def edit(self, change: Callable[[Any], None]) -> None:
        data = self.load()
        change(data)
        self.save(data)

    def rehash(self, name: str) -> None:
        """Enter the present size and digest of a file into the manifest."""
        content = (self.root / name).read_bytes()
        self.edit(lambda plan: plan["files"].__setitem__(name, {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}))


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the user's ledger and keys."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


@pytest.fixture
def builder() -> PlanBuilder:
    return PlanBuilder()


@pytest.fixture
def make_toy() -> type[Toy]:
    return Toy


@pytest.fixture(scope="session")
def toy() -> Toy:
    return Toy()


@pytest.fixture
def toy_plan(toy: Toy, tmp_path: Path) -> Path:
    """A written plan of the toy decoder, all of it on the reference device."""
    root = tmp_path / "toy.plan"
    toy.write(root, files={"tokenizer.json": b"{}", "kernels/main.v3.so": b"not really", "sources/main.cpp": b"// nothing"})
    return root


@pytest.fixture
def editor(toy_plan: Path) -> Editor:
    return Editor(toy_plan)


@pytest.fixture
def cpu_plan(toy: Any, tmp_path: Path) -> Callable[..., Path]:
    """write(levels, kernels=None): a plan of the toy decoder for the CPU, with binaries of these levels (or these bytes)."""

    def write(levels: tuple[str, ...], kernels: dict[str, bytes] | None = None) -> Path:
        builder, logits = toy.build(("cpu",))
        plan = builder.plan(logits)
        if kernels is None:
            kernels = CpuTarget().compile(plan, plan.regions[0], CompileOptions(levels)).kernels if levels else {}
        builder.files = {f"kernels/{level}.so": data for level, data in kernels.items()}
        regions = builder._regions((logits,))
        paths = {level: f"kernels/{level}.so" for level in kernels}
        builder._regions = lambda outputs: tuple(msgspec.structs.replace(region, kernels=paths) for region in regions)
        builder.write(tmp_path / "cpu.plan", logits)
        return tmp_path / "cpu.plan"

    return write


@pytest.fixture(scope="session")
def to_bf16() -> Callable[[np.ndarray], np.ndarray]:
    return f32_to_bf16
