"""What there is to tune in a region: each tile that its nodes ask for, with one node that asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from mixplan.runtime.devices.gpu_program import Launch, Program
from mixplan.runtime.plan import Plan, Region
from mixplan.targets.gpu.arch import Arch
from mixplan.targets.gpu.builds import BuildRequest
from mixplan.targets.gpu.lower.gemm import PRODUCTS
from mixplan.targets.gpu.lower.region import lower_region
from mixplan.targets.gpu.tile import Tile
from mixplan.targets.gpu.tiles import SIZES

__all__ = ["Work", "find_work"]

_TUNABLE = (*PRODUCTS, "attention")


@dataclass(frozen=True)
class Work:
    """key: of the tile. table: the table's tile. plan: one whose only region is the node (and what it is fused with)."""

    key: str
    table: Tile
    plan: Plan

    @property
    def kind(self) -> str:
        """Which launches it is about: decode, small or large of products, "attention decode" or "attention prefill"."""
        words = self.key.split()
        return words[1] if words[0] == "gemm" else " ".join(words[:2])

    def lowered(self, arch: Arch) -> tuple[Program, tuple[BuildRequest, ...]]:
        """The launches that this work takes, with the tiles of `arch`, and what to build for them."""
        program, requests = lower_region(self.plan, self.plan.regions[0], arch)
        launches = [launch for launch in program.launches if self._needs(launch)]
        used = sorted({launch.kernel for launch in launches})
        place = {kernel: number for number, kernel in enumerate(used)}
        moved = tuple(msgspec.structs.replace(launch, kernel=place[launch.kernel]) for launch in launches)
        kernels = tuple(program.kernels[kernel] for kernel in used)
        return msgspec.structs.replace(program, kernels=kernels, launches=moved), tuple(requests[kernel] for kernel in used)

    def _needs(self, launch: Launch) -> bool:
        """Launches of other classes of steps, or of the other kind of attention, are not this work's."""
        if launch.mode not in ("", "decode" if self.kind == "attention decode" else "prefill"):
            return False
        limits = {name: (least, most) for name, least, most in SIZES}
        least, most = limits.get(self.kind, (1, 1 << 30))
        return launch.rows is None or (launch.least <= most and launch.most >= least)

    def takes(self, tile: Tile) -> bool:
        """Whether the kernel takes it: a step of products in 8 bits must not straddle groups."""
        words = self.key.split()
        group = int(words[5]) if words[0] == "gemm" and words[2] in ("a8", "fp8") else 0
        return group == 0 or group % tile.k == 0


class _Recorder:
    """Tiles that gives the table's, and writes down who asked for what."""

    def __init__(self) -> None:
        self.asked: dict[str, Tile] = {}

    def get(self, key: str, default: Tile, /) -> Tile:
        self.asked.setdefault(key, default)
        return default


def find_work(plan: Plan, region: Region, arch: Arch) -> list[Work]:
    """One for each tile, in the order of the nodes."""
    found: dict[str, Work] = {}
    seen: set[tuple[object, ...]] = set()
    for index in range(region.start, region.stop):
        node = plan.nodes[index]
        if node.op not in _TUNABLE:
            continue
        # Layers repeat: equal nodes on equal shapes ask for the same.
        attrs = {name: value for name, value in node.attrs.items() if name != "layer"}
        facts = [(plan.values[v].dtype, plan.values[v].shape) if v >= 0 else None for v in (*node.inputs, *node.outputs)]
        layers = [plan.attention[int(str(node.attrs["layer"]))].runs] if node.op == "attention" else []
        kind = (node.op, repr(sorted(attrs.items())), repr(facts), repr(layers))
        if kind in seen:
            continue
        seen.add(kind)
        recorder, alone = _Recorder(), _alone(plan, region, index)
        lower_region(alone, alone.regions[0], replace(arch, tuned=recorder))
        for key, tile in recorder.asked.items():
            found.setdefault(key, Work(key, tile, alone))
    return list(found.values())


def _alone(plan: Plan, region: Region, index: int) -> Plan:
    """The plan with one region of the node, and of the one behind it where that quantizes its result."""
    last = index + 1
    if last < region.stop and plan.nodes[last].op == "quantize_act" and plan.nodes[last].inputs[0] in plan.nodes[index].outputs:
        last += 1
    nodes = plan.nodes[index:last]
    made = [value for node in nodes for value in node.outputs]
    read = dict.fromkeys(v for node in nodes for v in node.inputs if v >= 0 and plan.values[v].kind != "const" and v not in made)
    outputs = _needed(plan.nodes[index].outputs if last == index + 1 else plan.nodes[last - 1].outputs)
    only = Region(name="tuned", device="gpu", start=index, stop=last, inputs=tuple(read), outputs=outputs)
    return msgspec.structs.replace(plan, regions=(only,))


def _needed(outputs: Sequence[int]) -> tuple[int, ...]:
    return tuple(value for value in outputs if value >= 0)
