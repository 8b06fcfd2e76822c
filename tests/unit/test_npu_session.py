"""Providers: chosen, refused, and told what the user says; nodes that run elsewhere than asked. onnxruntime is played by a stand-in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mixplan.runtime.devices.npu_buckets import Bucket
from mixplan.runtime.devices.npu_providers import PROVIDERS
from mixplan.runtime.devices.npu_session import CPU, Sessions, choose_provider, provider_options
from mixplan.runtime.errors import (
    CapacityError,
    InternalError,
    MixplanError,
    OptionError,
    PlanError,
    ProviderError,
    RequestError,
    UnsupportedError,
)

QNN = next(one for one in PROVIDERS if one.name == "qnn")
BUCKET = Bucket(16, 1, 128)


class _Options:
    def __init__(self) -> None:
        self.dims: dict[str, int] = {}
        self.entries: dict[str, str] = {}

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        self.dims[name] = size

    def add_session_config_entry(self, name: str, text: str) -> None:
        self.entries[name] = text


class _Runtime:
    """Gives nodes to the providers named in `where`, or fails with `error`."""

    SessionOptions = _Options

    def __init__(self, where: dict[str, str], error: str = "") -> None:
        self.where, self.error, self.made = where, error, []  # type: ignore[var-annotated]

    def InferenceSession(self, model: bytes, options: _Options, **chosen: Any) -> Any:  # noqa: N802 - onnxruntime's name
        if self.error:
            raise RuntimeError(self.error)
        self.made.append((options, chosen))
        parts = [
            SimpleNamespace(ep_name=provider, get_nodes=lambda name=name: [SimpleNamespace(name=name, op_type="MatMul")])
            for name, provider in self.where.items()
        ]
        return SimpleNamespace(get_provider_graph_assignment_info=lambda: parts, get_providers=list)


def _sessions(runtime: _Runtime, *, allow_cpu: bool = False) -> Sessions:
    return Sessions(runtime, b"", "weights-1.bin", np.zeros(0, np.uint8), QNN, threads=1, allow_cpu=allow_cpu)


def test_the_provider_is_the_wanted_one_or_an_error_that_names_the_package() -> None:
    assert choose_provider(QNN, ["QNNExecutionProvider", "CPUExecutionProvider"], allow_cpu=False) is QNN
    assert choose_provider(QNN, ["CPUExecutionProvider"], allow_cpu=True) is CPU
    with pytest.raises(ProviderError, match="it has AzureExecutionProvider, CPUExecutionProvider") as caught:
        choose_provider(QNN, ["AzureExecutionProvider", "CPUExecutionProvider"], allow_cpu=False)
    assert "onnxruntime-qnn" in str(caught.value)


def test_shapes_are_fixed_and_a_fallback_forbidden() -> None:
    runtime = _Runtime({"a/MatMul": "QNNExecutionProvider"})
    sessions = _sessions(runtime)
    assert sessions.get(BUCKET) is sessions.get(BUCKET) and sessions.made == 1
    ((options, chosen),) = runtime.made
    assert options.dims == {"T": 16, "R": 1, "L": 128, "S": 144}
    assert options.entries["session.disable_cpu_ep_fallback"] == "1"
    assert chosen["providers"] == ["QNNExecutionProvider"] and chosen["provider_options"] == [{"backend_type": "htp"}]
    assert sessions.nodes == {"QNNExecutionProvider": 1} and sessions.where == {"a/MatMul": "QNNExecutionProvider"}


def test_nodes_on_the_cpu_are_an_error_unless_allowed() -> None:
    where = {"a/MatMul": "QNNExecutionProvider", "b/Sin": "CPUExecutionProvider"}
    with pytest.raises(ProviderError, match="1 run on CPUExecutionProvider rather than on QNN"):
        _sessions(_Runtime(where)).get(BUCKET)
    allowed = _sessions(_Runtime(where), allow_cpu=True)
    allowed.get(BUCKET)
    assert allowed.nodes == {"QNNExecutionProvider": 1, "CPUExecutionProvider": 1}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            "graph nodes are assigned to the default CPU EP, but fallback to CPU EP has been disabled",
            ProviderError,
        ),
        ("no external initializer weights-0123.bin", PlanError),
        ("Could not find an implementation for Sin(7)", UnsupportedError),
    ],
)
def test_errors_of_onnxruntime_get_a_type(text: str, kind: type[MixplanError]) -> None:
    with pytest.raises(kind) as caught:
        _sessions(_Runtime({}, text)).get(BUCKET)
    assert text[:40] in str(caught.value)


def test_sessions_used_last_are_kept() -> None:
    runtime = _Runtime({"a": "QNNExecutionProvider"})
    sessions = _sessions(runtime)
    for past in range(9):
        sessions.get(Bucket(1, 1, past))
    sessions.get(Bucket(1, 1, 8))
    assert sessions.made == 9
    sessions.get(Bucket(1, 1, 0))
    assert sessions.made == 10


def test_options_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIXPLAN_NPU_OPTIONS", "backend_type=gpu,soc_model=60")
    assert provider_options(QNN) == {"backend_type": "gpu", "soc_model": "60"}
    assert provider_options(CPU, stands_in=True) == {}
    with pytest.raises(OptionError, match="is 'backend_type=gpu,soc_model=60', but the plan is for the provider 'cpu'") as caught:
        provider_options(CPU)
    assert "--provider" in str(caught.value.hint)
    monkeypatch.setenv("MIXPLAN_NPU_OPTIONS", "fast")
    with pytest.raises(OptionError, match="key=value"):
        provider_options(QNN)
    monkeypatch.delenv("MIXPLAN_NPU_OPTIONS")
    assert provider_options(CPU) == {}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("BFCArena::Extend: Failed to allocate memory for requested buffer of size 123"), CapacityError),
        (MemoryError("std::bad_alloc"), CapacityError),
        (RuntimeError("Gather: indices element out of data bounds, idx=7 must be within [-5,4]"), RequestError),
        (RuntimeError("device was lost"), InternalError),
    ],
)
def test_what_fails_in_a_step_has_a_type(error: Exception, kind: type[MixplanError]) -> None:
    sessions = _sessions(_Runtime({"a": QNN.execution}))

    def run(outputs: Any, inputs: Any) -> Any:
        raise error

    sessions.get(BUCKET).run = run
    with pytest.raises(kind, match=str(error)[-20:].replace("[", r"\[")):
        sessions.run(BUCKET, ["y"], {})
