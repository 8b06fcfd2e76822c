"""A kernel by itself on a target: a plan of its nodes in one region, compiled and loaded as any other.

A plan's inputs are those of a decoder. So that a kernel can be given any arrays, they are declared as outputs of another region, on the
reference device, which is never run: the kernel's region is called with arrays in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mixplan.compiler.constants import Constants
from mixplan.compiler.evaluate import constant_array
from mixplan.compiler.lowering import Lowered
from mixplan.runtime.devices.registry import create_device
from mixplan.runtime.errors import OptionError, UnsupportedError
from mixplan.runtime.hal import CacheSpec, DeviceOptions, LoadedRegion, Step
from mixplan.runtime.plan import SCHEMA_VERSION, Model, Node, Plan, Provenance, Region, Tensor, Value
from mixplan.runtime.plan_io import LoadedPlan, read_plan, write_manifest
from mixplan.targets.base import CompiledRegion, CompileOptions, Target
from mixplan.targets.constants_file import write_constants
from mixplan.targets.kernel_files import write_kernels
from mixplan.targets.registry import get_target

__all__ = ["Standalone", "build"]

_WEIGHTS = "weights.safetensors"
_CACHES = CacheSpec(pages=1, page_size=32, max_sequences=1, max_pages_per_sequence=1)
Array = NDArray[Any]


class Standalone:
    """A kernel's region on its device.

    used: which of the kernel's tensors its inputs are, by their place. source: what the target generated, "" if nothing.
    """

    def __init__(self, plan: LoadedPlan, region: LoadedRegion, used: Sequence[int], source: str) -> None:
        self._plan, self._region, self._used, self.source = plan, region, used, source
        self._inputs, self._outputs = plan.plan.regions[-1].inputs, plan.plan.regions[-1].outputs

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Of all of the kernel's tensors. Results as f32, integers or booleans, in new arrays."""
        one = np.zeros(1, np.int32)
        step = Step(one, one, one, one, one + 1, np.zeros((1, 1), np.int32))
        given = [arrays[place] for place in self._used]
        found = self._region.run(step, dict(zip(self._inputs, given, strict=True)))
        return [np.array(found[index]) for index in self._outputs]

    def close(self) -> None:
        """Give its memory back."""
        self._region.close()
        self._plan.close()


def build(
    name: str, lowered: Lowered, constants: Constants, used: Sequence[int], target_name: str, root: Path, isa: str | None = None
) -> Standalone:
    """Compile for a target, in the empty folder `root`, and load on the device of that name. used: which tensors the inputs are.

    Raises UnsupportedError for an op that the target has not, and where it does not compile or run on this machine.
    """
    target = get_target(target_name)
    available = target.capabilities().available
    if not available.ok:
        raise UnsupportedError(f"The target {target_name!r} does not compile on this machine: {available.reason}.")
    for node in lowered.nodes:
        support = target.supports(node, lowered.values)
        if not support.ok:
            raise UnsupportedError(
                f"Kernel {name} needs {node.op}, which the target {target_name!r} has not: {support.reason}.",
                hint="`mixplan targets --conformance NAME` lists the ops of a target.",
            )
    plan, arrays = _plan(name, lowered, constants, target_name)
    compiled = target.compile(plan, plan.regions[-1], CompileOptions(_levels(target, isa)))
    _write(root, plan, arrays, compiled)
    device = create_device(target_name, DeviceOptions(isa=isa))
    runs = device.supported()
    if not runs.ok:
        raise UnsupportedError(f"The device {target_name!r} does not run on this machine: {runs.reason}.")
    loaded = read_plan(root)
    loaded.trusted, loaded.trust_reason = True, "compiled just now"
    try:
        return Standalone(loaded, device.load(loaded, len(plan.regions) - 1, _CACHES), used, compiled.source)
    except BaseException:
        loaded.close()
        raise


def _levels(target: Target, isa: str | None) -> tuple[str, ...]:
    if isa is not None:
        return target.resolve_levels((isa,))
    try:
        return target.resolve_levels(("native",))
    except OptionError:
        return target.resolve_levels(())


def _plan(name: str, lowered: Lowered, constants: Constants, target: str) -> tuple[Plan, dict[str, Array]]:
    """The plan without its files, and its constants by name."""
    values = list(lowered.values)
    nodes: list[Node] = []
    arrays: dict[str, Array] = {}
    offset = 0
    for index, value in enumerate(lowered.values):
        if value.kind == "input":
            source = len(values)
            values.append(Value(f"zero{index}", "const", value.dtype, (), fill=False if value.dtype.value == "bool" else 0))
            values[index] = msgspec.structs.replace(value, kind="node")
            nodes.append(Node("expand", (source,), (index,), name=f"make_{value.name}"))
        elif value.kind == "const" and value.fill is None:
            array = np.ascontiguousarray(constant_array(lowered, constants, index, value))
            arrays[f"c{index}"] = array
            values[index] = msgspec.structs.replace(value, tensor=Tensor(_WEIGHTS, f"c{index}", offset, array.nbytes))
            offset += array.nbytes
    start = len(nodes)
    given = tuple(node.outputs[0] for node in nodes)
    regions = [Region("given", "reference", 0, start, (), given)] if nodes else []
    regions.append(Region("kernel", target, start, start + len(lowered.nodes), given, lowered.outputs))
    plan = Plan(
        schema_version=SCHEMA_VERSION,
        name=f"kernel-{name}",
        model=Model("kernel", 1, 256, 1),
        values=tuple(values),
        nodes=(*nodes, *lowered.nodes),
        regions=tuple(regions),
        outputs=lowered.outputs,
        attention=(),
        max_step_tokens=1,
        decisions=(),
        effective_bits=32.0,
        provenance=Provenance("kernel", name, {}, {}, {}),
    )
    return plan, arrays


def _write(root: Path, plan: Plan, arrays: dict[str, Array], compiled: CompiledRegion) -> None:
    dtypes = {value.tensor.key: value.dtype for value in plan.values if value.tensor is not None}
    write_constants(root / _WEIGHTS, {key: (array, dtypes[key]) for key, array in arrays.items()})
    region = write_kernels(root, plan.regions[-1], compiled)
    write_manifest(root, msgspec.structs.replace(plan, regions=(*plan.regions[:-1], region)))
