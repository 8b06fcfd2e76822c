"""onnxruntime sessions of one region's model: one for each bucket of shapes, made when it is first needed."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.devices.npu_buckets import Bucket
from mixplan.runtime.devices.npu_names import EXTENTS
from mixplan.runtime.devices.npu_providers import PROVIDERS, Provider
from mixplan.runtime.errors import (
    CapacityError,
    InternalError,
    MissingExtraError,
    MixplanError,
    OptionError,
    PlanError,
    ProviderError,
    RequestError,
    UnsupportedError,
)
from mixplan.runtime.hal import Array

__all__ = ["CPU", "Sessions", "choose_provider", "import_onnxruntime", "provider_options"]

CPU = PROVIDERS[0]
_KEPT = 8
# How onnxruntime's arenas and the C++ library tell it.
_NO_MEMORY = ("failed to allocate", "bad_alloc", "bad allocation", "out of memory")
_NO_FALLBACK = "session.disable_cpu_ep_fallback"


def import_onnxruntime() -> Any:
    """The package, imported when an NPU region is first loaded. MissingExtraError where it is not installed."""
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError("The NPU device", "npu") from None
    # Running a plan is no reason to report to anybody.
    getattr(onnxruntime, "disable_telemetry_events", lambda: None)()
    return onnxruntime


def choose_provider(wanted: Provider, available: Sequence[str], *, allow_cpu: bool) -> Provider:
    """The provider that is used: the wanted one, or the CPU's where that is allowed. ProviderError where neither can be."""
    if wanted.execution in available:
        return wanted
    if allow_cpu:
        return CPU
    raise ProviderError(
        f"The plan is for the provider {wanted.name!r} ({wanted.execution}), which this onnxruntime does not have; it has "
        f"{', '.join(available)}.",
        hint=f"Install the package {wanted.package}. Or run it on onnxruntime's CPU provider with --allow-cpu-fallback.",
    )


def provider_options(provider: Provider, *, stands_in: bool = False) -> dict[str, str]:
    """The provider's options, and those of the environment: MIXPLAN_NPU_OPTIONS="key=value,key=value".

    OptionError for what is no pair, and for any where the plan is for the CPU's provider, which has none. stands_in: that provider stands
    in for the plan's own, whose options they then are.
    """
    given = dict(provider.options)
    text = os.environ.get("MIXPLAN_NPU_OPTIONS", "")
    for pair in filter(None, text.split(",")):
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise OptionError(f"MIXPLAN_NPU_OPTIONS has {pair!r}; it must be key=value,key=value, as the provider names them.")
        given[key] = value
    if text and provider is CPU and not stands_in:
        raise OptionError(
            f"MIXPLAN_NPU_OPTIONS is {text!r}, but the plan is for the provider {CPU.name!r}, which takes no options.",
            hint="Unset it, or compile with --provider for the NPU that the options are for.",
        )
    return {} if provider is CPU else given


class Sessions:
    """`model` is the ONNX file's bytes, `data` those of its external data, in the file that it calls `data_file`.

    allow_cpu: whether nodes that the provider refuses may run on the CPU. Where not, making a session raises ProviderError.
    stands_in: see `provider_options`.
    """

    def __init__(
        self,
        ort: Any,
        model: bytes,
        data_file: str,
        data: NDArray[np.uint8],
        provider: Provider,
        *,
        threads: int,
        allow_cpu: bool,
        stands_in: bool = False,
    ) -> None:
        self._ort, self._model, self._data_file, self._data = ort, model, data_file, data
        self._provider, self._threads, self._allow_cpu = provider, threads, allow_cpu
        self._options = provider_options(provider, stands_in=stands_in)
        self._sessions: OrderedDict[Bucket, Any] = OrderedDict()
        self.made = 0
        self.seconds = 0.0
        self.nodes: dict[str, int] = {}
        """ONNX nodes by the provider that runs them, in the session made last."""
        self.where: dict[str, str] = {}
        """The provider of each ONNX node, by its name; nodes that onnxruntime made of several have a name of its own."""

    def run(self, bucket: Bucket, outputs: Sequence[str], inputs: Mapping[str, Array]) -> list[Array]:
        """The outputs of these names. CapacityError where memory is short, RequestError for an index that is out of range."""
        session = self.get(bucket)
        try:
            made: list[Array] = session.run(list(outputs), dict(inputs))
        except Exception as error:  # onnxruntime's errors share no class of their own
            raise self._failed(error) from error
        return made

    def _failed(self, error: Exception) -> MixplanError:
        text = " ".join(str(error).split())[:600]
        if isinstance(error, MemoryError) or any(words in text.lower() for words in _NO_MEMORY):
            words = f"The provider {self._provider.name!r} has no memory for the step: {text}"
            return CapacityError(words, hint="Load with fewer kv_tokens or max_step_tokens.")
        if "out of data bounds" in text:
            return RequestError(f"An index is out of range: {text}")
        return InternalError(f"onnxruntime ({self._provider.execution}) failed in a step: {text}")

    def get(self, bucket: Bucket) -> Any:
        """The session for a bucket."""
        session = self._sessions.get(bucket)
        if session is None:
            started = perf_counter()
            session = self._make(bucket)
            self.seconds += perf_counter() - started
            self.made += 1
            while len(self._sessions) >= _KEPT:
                self._sessions.popitem(last=False)
            self._sessions[bucket] = session
        self._sessions.move_to_end(bucket)
        return session

    def extents(self, bucket: Bucket) -> dict[str, Array]:
        """What the model's inputs are given that only have a length."""
        known = {port.name for port in self.get(bucket).get_inputs()}
        return {name: np.zeros(bucket.dims[sym], np.int64) for name, sym in EXTENTS.items() if name in known}

    def close(self) -> None:
        """Release all sessions."""
        self._sessions.clear()
        self._data = np.zeros(0, np.uint8)

    def _make(self, bucket: Bucket) -> Any:
        options = self._ort.SessionOptions()
        options.log_severity_level = 4  # errors are raised, which tells enough
        options.intra_op_num_threads = self._threads
        for name, size in bucket.dims.items():
            options.add_free_dimension_override_by_name(name, size)
        if self._provider is not CPU and not self._allow_cpu:
            options.add_session_config_entry(_NO_FALLBACK, "1")
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        # Products with 4-bit weights in f32, as the plan's activations are, rather than in int8.
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        if self._data.size:
            options.add_external_initializers_from_files_in_memory([self._data_file], [self._data], [self._data.nbytes])
        try:
            session = self._ort.InferenceSession(
                self._model, options, providers=[self._provider.execution], provider_options=[self._options]
            )
        except Exception as error:  # onnxruntime's errors share no class of their own
            raise self._explained(error) from error
        self._count(session)
        return session

    def _explained(self, error: Exception) -> Exception:
        text = " ".join(str(error).split())[:600]
        if "fallback" in text.lower() and self._provider is not CPU:
            return ProviderError(
                f"The provider {self._provider.name!r} does not run every node of the region: {text}",
                hint="Run the rest on the CPU with --allow-cpu-fallback, or compile with --target cpu+npu.",
            )
        if "weights-" in text and self._data_file not in text:
            return PlanError(f"The region's ONNX model does not fit its weights: {text}", hint="Compile the plan again.")
        return UnsupportedError(f"onnxruntime ({self._provider.execution}) does not take the region's model: {text}")

    def _count(self, session: Any) -> None:
        if not hasattr(session, "get_provider_graph_assignment_info"):
            self.nodes = dict.fromkeys(session.get_providers(), 0)
            return
        self.nodes, self.where = {}, {}
        for part in session.get_provider_graph_assignment_info():
            for node in part.get_nodes():
                self.nodes[part.ep_name] = self.nodes.get(part.ep_name, 0) + 1
                self.where[node.name or node.op_type] = part.ep_name
        strangers = {name: count for name, count in self.nodes.items() if name != self._provider.execution}
        if strangers and not self._allow_cpu:
            raise ProviderError(
                f"Of the region's ONNX nodes, {sum(strangers.values())} run on {', '.join(strangers)} rather than on "
                f"{self._provider.execution}.",
                hint="Allow it with --allow-cpu-fallback, or compile with --target cpu+npu.",
            )
