"""The run half: loads a region's program and runs it. Imports no compiler."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from mixplan.runtime.errors import UnsupportedError
from mixplan.runtime.hal import Array, CacheSpec, DeviceOptions, Step, Support
from mixplan.runtime.plan_io import LoadedPlan


def linear(attrs: Any, x: Array, weight: Array, _scales: Any = None, _zeros: Any = None, bias: Any = None, residual: Any = None) -> Array:
    """x W^T: the packed weight is [rows / 16, columns, 16], its last rows padding."""
    rows = weight.transpose(0, 2, 1).reshape(-1, weight.shape[1])[: attrs["rows"]]
    y = x @ rows.T
    y = y if bias is None else y + bias
    return y if residual is None else y + residual


def rms_norm(attrs: Any, x: Array, weight: Array | None = None) -> Array:
    y = x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(attrs["eps"]))
    return y if weight is None else y * weight


OPS = {"linear": linear, "rms_norm": rms_norm}


class ToyDevice:
    name = "toy"

    def __init__(self, options: DeviceOptions) -> None:
        pass  # threads and an ISA level to choose, where there are any

    def supported(self) -> Support:
        return Support(True, "numpy in place of a chip")

    def load(self, plan: LoadedPlan, region_index: int, caches: CacheSpec) -> "ToyRegion":
        region = plan.plan.regions[region_index]
        if "toy1" not in region.kernels:
            raise UnsupportedError(f"Region {region.name!r} has no program for the toy.")
        program = json.loads(plan.read_file(region.kernels["toy1"]))  # its digest is checked; it is data, so it needs no trust
        used = {index for step in program for index in step["inputs"] if index >= 0}
        constants = {index: plan.constant(index) for index in used if plan.plan.values[index].kind == "const"}
        return ToyRegion(program, constants, region.outputs)


class ToyRegion:
    isa = "toy1"

    def __init__(self, program: list[Any], constants: dict[int, Array], outputs: tuple[int, ...]) -> None:
        self.program, self.constants, self.outputs, self.steps = program, constants, outputs, 0

    def run(self, step: Step, inputs: Mapping[int, Array]) -> dict[int, Array]:
        values: dict[int, Any] = {-1: None, **self.constants, **inputs}
        for one in self.program:
            made = OPS[one["op"]](one["attrs"], *(values[index] for index in one["inputs"]))
            values[one["output"]] = np.ascontiguousarray(made, np.float32)
        self.steps += 1
        return {index: values[index] for index in self.outputs}

    def metrics(self) -> dict[str, float]:
        return {"steps": float(self.steps)}

    def close(self) -> None:
        self.constants = {}
