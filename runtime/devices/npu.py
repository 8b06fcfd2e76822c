"""The NPU device: regions as ONNX models, run by onnxruntime with the execution provider that the plan was compiled for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.devices.npu_attention import attention_inputs, past_of
from mixplan.runtime.devices.npu_buckets import Bucket, bucket_of
from mixplan.runtime.devices.npu_names import dim_name, layer_names, mask_of, past_kind, region_attention, value_names
from mixplan.runtime.devices.npu_providers import PROVIDERS
from mixplan.runtime.devices.npu_session import CPU, Sessions, choose_provider, import_onnxruntime
from mixplan.runtime.devices.npu_tensors import data_file, region_tensors, tensor_bytes
from mixplan.runtime.devices.reference_kv import ReferenceCache
from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import ProviderError, UnsupportedError
from mixplan.runtime.hal import Array, CacheSpec, DeviceOptions, LoadedRegion, Step, Support
from mixplan.runtime.ops import StepContext
from mixplan.runtime.plan import Region, Sym, dim_value
from mixplan.runtime.plan_io import LoadedPlan

__all__ = ["NpuDevice"]


class NpuDevice:
    """Runs regions that were compiled to ONNX. What the provider refuses is an error, unless the CPU may take it."""

    name = "npu"

    def __init__(self, options: DeviceOptions) -> None:
        self._threads = options.threads or len(os.sched_getaffinity(0))
        self._allow_cpu = options.allow_cpu_fallback

    def supported(self) -> Support:
        """Where onnxruntime is installed; the reason names the providers that it has."""
        if find_spec("onnxruntime") is None:
            return Support(False, "onnxruntime is not installed; pip install 'mixplan[npu]'")
        ort = import_onnxruntime()
        here = set(ort.get_available_providers())
        return Support(
            True, f"onnxruntime {ort.__version__} with {' '.join(p.name for p in PROVIDERS if p.execution in here) or 'no provider'}"
        )

    def load(self, plan: LoadedPlan, region_index: int, caches: CacheSpec) -> LoadedRegion:
        """Make the tensors of the ONNX model and its first session.

        ProviderError where the plan's provider is not here or does not run all of it, and the CPU may not.
        """
        region = plan.plan.regions[region_index]
        if not any(one.name in region.kernels for one in PROVIDERS):
            raise UnsupportedError(f"Region {region.name!r} was not compiled for the NPU.", hint="Compile with --target npu.")
        if not plan.trusted:
            # A parser of models in native code is given this file.
            raise ProviderError(
                f"The plan's ONNX models are not loaded, since it is not trusted ({plan.trust_reason}).",
                hint="Load it with trust=True (--trust) if you know who made it, or compile it here.",
            )
        ort = import_onnxruntime()
        wanted, path = next((one, region.kernels[one.name]) for one in PROVIDERS if one.name in region.kernels)
        used = choose_provider(wanted, ort.get_available_providers(), allow_cpu=self._allow_cpu)
        placed = region_tensors(plan.plan, region, wanted.weights)
        size = max((one.offset + one.tensor.nbytes for one in placed), default=0)
        data: NDArray[np.uint8] = np.zeros(size, np.uint8)
        for one in placed:
            data[one.offset : one.offset + one.tensor.nbytes] = np.frombuffer(tensor_bytes(one.tensor, plan.constant), np.uint8)
        sessions = Sessions(
            ort,
            plan.read_file(path),
            data_file(placed),
            data,
            used,
            threads=self._threads,
            allow_cpu=self._allow_cpu or used is CPU,
            stands_in=used is not wanted,
        )
        return _NpuRegion(plan, region, caches, sessions, used.execution)


class _NpuRegion:
    def __init__(self, plan: LoadedPlan, region: Region, caches: CacheSpec, sessions: Sessions, execution: str) -> None:
        self._plan, self._region, self._sessions = plan.plan, region, sessions
        self._execution = execution
        self._names = value_names(plan.plan, region)
        attention = region_attention(plan.plan, region)
        self._masks = tuple(dict.fromkeys(mask_of(node) for node in attention.values()))
        self._alibi = any(len(node.inputs) > 4 and node.inputs[4] >= 0 for node in attention.values())
        self._kinds = {layer: DType(past_kind(plan.plan.attention[layer])).numpy for layer in attention}
        self._cache = ReferenceCache({layer: plan.plan.attention[layer] for layer in sorted(attention)}, caches)
        values = [plan.plan.values[index] for index in (*region.inputs, *region.outputs)]
        self._has_rows = any(isinstance(dim, Sym) and dim.sym == "R" for value in values for dim in value.shape)
        self._outputs = [self._names[index] for index in region.outputs]
        self._outputs += [name for layer in self._kinds for name in layer_names(layer)[2:]]
        self._check_borders()
        self._padding = 0
        self._sessions.get(bucket_of(1, 1, 1, has_rows=self._has_rows, has_past=bool(attention)))

    @property
    def isa(self) -> str:
        """The provider."""
        return f"onnxruntime {self._execution}"

    @property
    def origin(self) -> str:
        """Where the nodes run, read back from onnxruntime."""
        return "; ".join(f"{count} ONNX nodes on {name}" for name, count in sorted(self._sessions.nodes.items()))

    def run(self, step: Step, inputs: Mapping[int, Array]) -> dict[int, Array]:
        """See LoadedRegion.run."""
        past = past_of(step)
        bucket = bucket_of(step.tokens, step.rows, past.tokens, has_rows=self._has_rows, has_past=bool(self._kinds))
        self._padding += bucket.tokens - step.tokens
        feeds = {self._names[index]: self._padded(index, inputs[index], bucket) for index in self._region.inputs}
        feeds |= self._sessions.extents(bucket)
        if self._kinds:
            self._cache.begin(step.block_tables)
            feeds |= attention_inputs(step, past, bucket, self._cache, self._kinds, self._masks, self._alibi)
        made = dict(zip(self._outputs, self._sessions.run(bucket, self._outputs, feeds), strict=True))
        self._store(step, made)
        return {index: self._cut(index, made[self._names[index]], step) for index in self._region.outputs}

    def metrics(self) -> dict[str, float]:
        """`kv_bytes` set aside; sessions made, and the seconds that took; tokens of padding; ONNX nodes by provider."""
        nodes = {f"onnx_nodes_{name}": float(count) for name, count in self._sessions.nodes.items()}
        return {
            "kv_bytes": float(self._cache.nbytes),
            "sessions": float(self._sessions.made),
            "session_seconds": self._sessions.seconds,
            "padding_tokens": float(self._padding),
            **nodes,
        }

    def node_providers(self) -> dict[str, str]:
        """The provider that runs each ONNX node, by the node's name."""
        return dict(self._sessions.where)

    def close(self) -> None:
        """Release sessions and KV storage."""
        self._sessions.close()
        self._cache.close()

    def _check_borders(self) -> None:
        """Padding at the end of an axis must be padding at the end of the memory's rows: T and R stand alone in the dims of borders."""
        for index in (*self._region.inputs, *self._region.outputs):
            value = self._plan.values[index]
            if any(isinstance(dim, Sym) and dim_name(dim) != dim.sym for dim in value.shape):
                raise UnsupportedError(f"The value {value.name!r} at the border of region {self._region.name!r} folds tokens together.")

    def _padded(self, index: int, array: Array, bucket: Bucket) -> Array:
        value = self._plan.values[index]
        shape = tuple(dim_value(dim, tokens=bucket.tokens, rows=bucket.rows) for dim in value.shape)
        if array.shape == shape:
            return array
        out = np.zeros(shape, array.dtype)
        out[tuple(slice(0, size) for size in array.shape)] = array
        return out

    def _cut(self, index: int, array: Array, step: Step) -> Array:
        shape = (dim_value(dim, tokens=step.tokens, rows=step.rows) for dim in self._plan.values[index].shape)
        # A number stays one: ascontiguousarray would give it a dim.
        return np.asarray(array[tuple(slice(0, size) for size in shape)], order="C")

    def _store(self, step: Step, made: Mapping[str, Array]) -> None:
        context = StepContext(sequences=step.sequences, positions=step.positions)
        for layer in self._kinds:
            keys, values = (made[name][: step.tokens] for name in layer_names(layer)[2:])
            self._cache.append(layer, keys, values, context)
