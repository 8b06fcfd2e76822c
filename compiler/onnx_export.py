"""`mixplan export --format onnx`: a whole plan as one self-contained ONNX model with a KV cache that goes in and comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mixplan.compiler.calibration.ranges import seen_ranges
from mixplan.compiler.output import new_directory, reporting_disk_errors
from mixplan.runtime import load
from mixplan.runtime.devices.npu_tensors import Placed, region_tensors, tensor_bytes
from mixplan.runtime.errors import MissingExtraError, OptionError, UnsupportedError
from mixplan.runtime.plan import Plan, Region
from mixplan.runtime.plan_io import LoadedPlan, read_plan
from mixplan.runtime.text.tokenizer import Tokenizer
from mixplan.targets.npu.lower.table import unsupported_reason
from mixplan.targets.npu.providers.base import ProviderRules
from mixplan.targets.npu.providers.table import activation_type, provider_rules
from mixplan.targets.npu.target import NpuTarget

__all__ = ["EXTERNAL_ABOVE", "FILE", "OnnxReport", "export_onnx"]

FILE = "model.onnx"
EXTERNAL_ABOVE = 1 << 30
"""Bytes of weights beyond which they stand in a file of their own: a protobuf cannot have more than 2 GiB."""

_DATA = "model.onnx.data"
_WINDOW = 512


@dataclass
class OnnxReport:
    """inputs, outputs: names with element types and dims. nbytes: of the weights; external: whether they stand in a file of their own.

    notes: which weights take more room than in the plan, and why.
    """

    output: Path
    plan: str
    plan_digest: str
    provider: str
    opset: int
    nodes: int
    nbytes: int
    external: bool
    static: bool
    inputs: dict[str, str]
    outputs: dict[str, str]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        return {**asdict(self), "output": str(self.output)}

    def render(self, table: Callable[..., Any]) -> list[Any]:
        """Rich tables, made by `table(title, *columns)`."""
        facts = table(f"{self.plan} -> {self.output}", "fact", "value")
        facts.add_row("opset, nodes", f"{self.opset}, {self.nodes:,}")
        facts.add_row("weights", f"{self.nbytes:,} bytes {'in ' + _DATA if self.external else 'in the model'}")
        facts.add_row("activations", "rounded with static scales" if self.static else "as the plan rounds them")
        ports = table("\nInputs and outputs", "name", "type")
        for name, text in (*self.inputs.items(), *self.outputs.items()):
            ports.add_row(name, text)
        return [facts, ports, *(f"note: {note}." for note in self.notes)]


def export_onnx(
    plan: str | Path,
    output: str | Path,
    *,
    provider: str = "cpu",
    activation_type_name: str = "",
    text: str | Path | None = None,
    external_above: int = EXTERNAL_ABOVE,
    force: bool = False,
) -> OnnxReport:
    """Write the plan as `output`/model.onnx, and beside it model.onnx.data where the weights have more than `external_above` bytes.

    Without a text, activations that the plan rounds are rounded row by row, as the plan does it, and logits are the plan's. With one they
    get QuantizeLinear and static scales of its ranges, which is what NPUs take. Inputs and outputs are described in
    docs/reference/onnx-model.md. Raises UnsupportedError naming what the provider does not take, OutputError, OptionError.
    """
    rules = provider_rules(provider)
    activation = activation_type(rules, activation_type_name)
    try:
        import onnx
    except ImportError:
        raise MissingExtraError("An ONNX export", "npu") from None
    from mixplan.targets.npu.graph import Range
    from mixplan.targets.npu.model import region_model
    from mixplan.targets.npu.notes import weight_notes

    target = NpuTarget(provider)
    ranges = {} if text is None else {name: Range(*pair) for name, pair in _ranges(Path(plan), Path(text), target).items()}
    with read_plan(plan) as loaded, new_directory(Path(output), force=force, kind="an ONNX export", marker=FILE) as root:
        region = _whole(loaded.plan)
        _check(loaded.plan, rules)
        model = region_model(loaded.plan, region, rules, ranges=ranges, activation=activation, static=text is not None, gives_stored=True)
        used = {one.name for one in model.graph.initializer}
        placed = [one for one in region_tensors(loaded.plan, region, rules.weights) if one.tensor.name in used]
        nbytes = sum(one.tensor.nbytes for one in placed)
        external = nbytes > external_above
        with reporting_disk_errors(root, nbytes):
            _fill(model, placed, loaded, root / _DATA if external else None)
            _describe(model, loaded)
            (root / FILE).write_bytes(model.SerializeToString(deterministic=True))
        onnx.checker.check_model(str(root / FILE), full_check=True)
        return OnnxReport(
            output=Path(output),
            plan=loaded.plan.name,
            plan_digest=loaded.digest,
            provider=provider,
            opset=rules.opset,
            nodes=len(model.graph.node),
            nbytes=nbytes,
            external=external,
            static=text is not None,
            inputs={one.name: _typed(one) for one in model.graph.input},
            outputs={one.name: _typed(one) for one in model.graph.output},
            notes=weight_notes(loaded.plan, region, rules),
        )


def _whole(plan: Plan) -> Region:
    read = {index for node in plan.nodes for index in node.inputs if index >= 0}
    inputs = tuple(i for i, value in enumerate(plan.values) if value.kind == "input" and i in read)
    return Region(name=plan.name, device="npu", start=0, stop=len(plan.nodes), inputs=inputs, outputs=plan.outputs)


def _check(plan: Plan, rules: ProviderRules) -> None:
    refused: dict[str, list[str]] = {}
    for node in plan.nodes:
        if reason := unsupported_reason(node, plan.values, rules):
            refused.setdefault(reason, []).append(node.name)
    if refused:
        groups = (f"{', '.join(names[:4])}{', ...' if len(names) > 4 else ''} ({reason})" for reason, names in refused.items())
        raise UnsupportedError(
            f"{sum(map(len, refused.values()))} nodes of {plan.name} cannot be put into an ONNX model for the provider {rules.name}: "
            f"{'; '.join(groups)}.",
            hint="Compile with formats that it takes (see docs/reference/npu.md), or export for another --provider.",
        )


def _ranges(plan: Path, text: Path, target: NpuTarget) -> dict[str, tuple[float, float]]:
    with load(plan, device="reference", max_sequences=1, kv_tokens=_WINDOW) as model:
        try:
            ids = Tokenizer.from_plan(model.loaded).encode(text.read_text(encoding="utf-8"), add_special_tokens=False)
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"text {text} cannot be read: {error}.") from None
        windows = [ids[start : start + _WINDOW] for start in range(0, len(ids), _WINDOW)]
        if len(ids) < 16:
            raise OptionError(f"text {text} has {len(ids)} tokens; at least 16 are needed.", hint="Give a longer text.")
        wanted = {model.plan.values[node.outputs[0]].name for node in model.plan.nodes if target.needs_range(node)}
        return seen_ranges(model, windows, wanted)


def _fill(model: Any, placed: list[Placed], loaded: LoadedPlan, data: Path | None) -> None:
    """Give the tensors their bytes: in the model, or one after another in `data`."""
    tensors = {one.name: one for one in model.graph.initializer}
    if data is None:
        for one in placed:
            tensor = tensors[one.tensor.name]
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = tensor_bytes(one.tensor, loaded.constant)
        return
    with data.open("wb") as file:
        for one in placed:
            file.seek(one.offset)
            file.write(tensor_bytes(one.tensor, loaded.constant))
            next(entry for entry in tensors[one.tensor.name].external_data if entry.key == "location").value = data.name


def _describe(model: Any, loaded: LoadedPlan) -> None:
    plan = loaded.plan
    model.doc_string = "A decoder with its KV cache as inputs and outputs; see mixplan's docs/reference/onnx-model.md."
    facts = {
        "mixplan.plan": plan.name,
        "mixplan.digest": loaded.digest,
        "architecture": plan.model.architecture,
        "vocab_size": str(plan.model.vocab_size),
        "context_length": str(plan.model.context_length),
        "eos_token_ids": " ".join(map(str, plan.model.eos_token_ids)),
    }
    for key, text in facts.items():
        model.metadata_props.add(key=key, value=text)


def _typed(port: Any) -> str:
    kind = {1: "f32", 7: "i64", 10: "f16"}.get(port.type.tensor_type.elem_type, str(port.type.tensor_type.elem_type))
    dims = ", ".join(dim.dim_param or str(dim.dim_value) for dim in port.type.tensor_type.shape.dim)
    return f"{kind} [{dims}]"
