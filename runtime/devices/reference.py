"""The reference device: any region, by each op's numpy reference. Slow, and always there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from mixplan.runtime.devices.reference_kv import ReferenceCache
from mixplan.runtime.errors import InternalError, RequestError
from mixplan.runtime.hal import Array, CacheSpec, DeviceOptions, LoadedRegion, Step, Support
from mixplan.runtime.ops import OpSpec, StepContext, op_spec
from mixplan.runtime.plan import Node, Value, dim_value
from mixplan.runtime.plan_io import LoadedPlan

__all__ = ["ReferenceDevice"]


class ReferenceDevice:
    """Runs every op of the plan with numpy, one node after another."""

    name = "reference"

    def __init__(self, options: DeviceOptions) -> None:
        del options  # numpy's threads are numpy's business, and there is one ISA

    def supported(self) -> Support:
        """Everywhere."""
        return Support(True, "needs numpy alone")

    def load(self, plan: LoadedPlan, region_index: int, caches: CacheSpec) -> LoadedRegion:
        """Look up the ops and set KV storage aside for the region's attention nodes."""
        return _ReferenceRegion(plan, region_index, caches)


@dataclass(frozen=True)
class _Operation:
    """A node, ready to run. `dead` are the values that nobody reads after it."""

    node: Node
    spec: OpSpec
    outputs: tuple[Value, ...]
    dead: tuple[int, ...]


class _ReferenceRegion:
    isa = "numpy"

    def __init__(self, plan: LoadedPlan, region_index: int, caches: CacheSpec) -> None:
        region = plan.plan.regions[region_index]
        nodes = plan.plan.nodes[region.start : region.stop]
        self._plan = plan
        self._outputs = region.outputs
        self._constants = {value for node in nodes for value in node.inputs if value >= 0 and plan.plan.values[value].kind == "const"}
        last = {value: index for index, node in enumerate(nodes) for value in (*node.outputs, *node.inputs)}
        kept = {*region.outputs, *self._constants, -1}
        self._operations = [
            _Operation(
                node=node,
                spec=op_spec(node.op),
                outputs=tuple(plan.plan.values[value] for value in node.outputs),
                dead=tuple(value for value in dict.fromkeys((*node.inputs, *node.outputs)) if last[value] == index and value not in kept),
            )
            for index, node in enumerate(nodes)
        ]
        layers = {int(str(node.attrs["layer"])) for node in nodes if node.op == "attention"}
        self._cache = ReferenceCache({layer: plan.plan.attention[layer] for layer in sorted(layers)}, caches)

    def run(self, step: Step, inputs: Mapping[int, Array]) -> dict[int, Array]:
        """See LoadedRegion.run."""
        return self._run(step, inputs, None)

    def run_tapped(self, step: Step, inputs: Mapping[int, Array], tap: Callable[[str, Array], Array | None]) -> dict[int, Array]:
        """See TappableRegion.run_tapped."""
        return self._run(step, inputs, tap)

    def metrics(self) -> dict[str, float]:
        """`kv_bytes` set aside (of which the system gives memory only for what is used)."""
        return {"kv_bytes": float(self._cache.nbytes)}

    def close(self) -> None:
        """Release the KV storage."""
        self._cache.close()

    def _run(self, step: Step, inputs: Mapping[int, Array], tap: Callable[[str, Array], Array | None] | None) -> dict[int, Array]:
        live: dict[int, Array] = dict(inputs)
        live.update((value, self._plan.constant(value)) for value in self._constants)
        self._cache.begin(step.block_tables)
        for operation in self._operations:
            node = operation.node
            made = self._compute(operation, step, [None if value < 0 else live[value] for value in node.inputs])
            for value, array, declared in zip(node.outputs, made, operation.outputs, strict=True):
                live[value] = array
                if tap is not None and (other := tap(declared.name, array)) is not None:
                    live[value] = _same_form(other, array, declared.name)
            for value in operation.dead:
                del live[value]
        return {value: np.asarray(live[value], order="C") for value in self._outputs}

    def _compute(self, operation: _Operation, step: Step, arguments: list[Array | None]) -> list[Array]:
        node = operation.node
        shapes = tuple(tuple(dim_value(dim, tokens=step.tokens, rows=step.rows) for dim in value.shape) for value in operation.outputs)
        context = StepContext(
            sequences=step.sequences,
            positions=step.positions,
            cache=self._cache,
            out_shapes=shapes,
            out_dtypes=tuple(value.dtype for value in operation.outputs),
        )
        # Infinities and NaN are values like others in a model (masks, overflow); whether they are right is not numpy's to say.
        with np.errstate(all="ignore"):
            made = [np.asarray(array) for array in operation.spec.reference(context, node.attrs, arguments)]
        for array, value, shape in zip(made, operation.outputs, shapes, strict=True):
            if array.shape != shape or array.dtype != value.dtype.numpy:
                raise InternalError(
                    f"The reference of {node.op!r} (node {node.name!r}) gave {array.dtype} {list(array.shape)} for {value.name!r}, "
                    f"declared {value.dtype.value} {list(shape)}."
                )
        return made


def _same_form(other: Array, array: Array, name: str) -> Array:
    if other.shape != array.shape or other.dtype != array.dtype:
        raise RequestError(f"A tap gave {other.dtype} {list(other.shape)} for {name!r}, which is {array.dtype} {list(array.shape)}.")
    return other
