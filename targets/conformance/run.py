"""Runs cases on a target through its public interface: `supports`, `compile`, and the device of the same name."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from mixplan.runtime.devices.cpu_info import allowed_cores
from mixplan.runtime.devices.reference import ReferenceDevice
from mixplan.runtime.devices.registry import create_device
from mixplan.runtime.errors import MixplanError, OptionError, UnsupportedError
from mixplan.runtime.hal import Array, CacheSpec, Device, DeviceOptions, Step
from mixplan.runtime.plan import Plan, Region, Value, dim_value
from mixplan.runtime.plan_io import LoadedPlan, read_plan
from mixplan.runtime.progress import Progress
from mixplan.targets.base import CompiledRegion, CompileOptions, Target
from mixplan.targets.conformance.case import Case, Given, Steps
from mixplan.targets.conformance.cases.table import cases_of, choose_ops
from mixplan.targets.conformance.compare import Distance, distance
from mixplan.targets.conformance.plans import case_node, case_plan, write_case
from mixplan.targets.kernel_files import write_kernels
from mixplan.targets.registry import get_target

__all__ = ["CaseResult", "Status", "run_conformance"]

Status: TypeAlias = Literal["passed", "failed", "refused"]

_CACHES = CacheSpec(pages=32, page_size=32, max_sequences=4, max_pages_per_sequence=8)


@dataclass(frozen=True)
class CaseResult:
    """refused: the target says that it does not support the node; `reason` is its. Of a failed case it is what went wrong.

    error and ratio are the worst of all outputs and steps; see Distance.
    """

    op: str
    label: str
    status: Status
    reason: str = ""
    error: float = 0.0
    ratio: float = 0.0


def run_conformance(name: str, ops: Sequence[str] = (), *, isa: str | None = None, progress: Progress | None = None) -> list[CaseResult]:
    """Every case of the ops (of all of them where none is named) on the target `name`, in the order of the op table.

    isa: a level to compile for and to run; by default the target's "native" one, or what it makes by default. Raises UnsupportedError where
    the target does not compile or its device does not run on this machine, OptionError for a target, op or level that does not exist.
    """
    chosen = [case for op in choose_ops(ops) for case in cases_of(op)]
    target, device = _open(name, isa)
    levels = _levels(target, isa)
    errors = target.capabilities().factor_errors
    factor_error = max((errors.get(level, 0.0) for level in levels), default=errors.get("", 0.0))
    results: list[CaseResult] = []
    # Compilers run beside one another; what is loaded runs alone.
    with tempfile.TemporaryDirectory(prefix="mixplan-conformance-") as folder, ThreadPoolExecutor(allowed_cores()) as pool:
        compiled = [pool.submit(_compile, target, case, levels) for case in chosen]
        try:
            for number, (case, made) in enumerate(zip(chosen, compiled, strict=True)):
                results.append(_result(Path(folder) / str(number), device, case, made.result(), factor_error))
                if progress is not None:
                    progress("conformance", (number + 1) / len(chosen))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return results


def _open(name: str, isa: str | None) -> tuple[Target, Device]:
    target = get_target(name)
    available = target.capabilities().available
    if not available.ok:
        raise UnsupportedError(f"The target {name!r} does not compile on this machine: {available.reason}.")
    device = create_device(name, DeviceOptions(isa=isa))
    support = device.supported()
    if not support.ok:
        raise UnsupportedError(f"The device {name!r} does not run on this machine: {support.reason}.")
    return target, device


def _levels(target: Target, isa: str | None) -> tuple[str, ...]:
    if isa is not None:
        return target.resolve_levels((isa,))
    try:
        return target.resolve_levels(("native",))
    except OptionError:
        return target.resolve_levels(())


@dataclass(frozen=True)
class _Compiled:
    """A plan and what its tested region became; `refusal` or `failure` where it became nothing."""

    plan: Plan
    region: CompiledRegion | None = None
    refusal: str = ""
    failure: str = ""


def _compile(target: Target, case: Case, levels: tuple[str, ...]) -> _Compiled:
    plan = case_plan(case, target.name)
    try:
        support = target.supports(case_node(plan), plan.values)
        if not support.ok:
            return _Compiled(plan, refusal=support.reason or "no reason given")
        return _Compiled(plan, target.compile(plan, plan.regions[-1], CompileOptions(levels, jobs=1)))
    except Exception as error:  # another package's code: whatever it raises is a result
        return _Compiled(plan, failure=f"compile: {_words(error)}")


def _result(root: Path, device: Device, case: Case, made: _Compiled, factor_error: float) -> CaseResult:
    if made.region is None:
        status: Status = "refused" if made.refusal else "failed"
        return CaseResult(case.op, case.label, status, made.refusal or made.failure)
    root.mkdir()
    write_case(root, case, made.plan, write_kernels(root, made.plan.regions[-1], made.region))
    with _loaded(root) as plan:
        try:
            found = _run(plan, device, case, factor_error if case.products else 0.0)
        except _WrongFormError as error:
            return CaseResult(case.op, case.label, "failed", str(error))
        except Exception as error:  # a device may raise anything: its case has failed, and the others go on
            return CaseResult(case.op, case.label, "failed", f"run: {_words(error)}")
    if found.ratio > 1:
        reason = f"off by up to {found.error:.3g}, {found.ratio:.3g} times what is allowed"
        return CaseResult(case.op, case.label, "failed", reason, found.error, found.ratio)
    return CaseResult(case.op, case.label, "passed", "", found.error, found.ratio)


class _WrongFormError(Exception):
    """A result that is no result of the op: missing, or of another shape or dtype."""


@contextmanager
def _loaded(root: Path) -> Iterator[LoadedPlan]:
    with read_plan(root) as plan:
        plan.trusted, plan.trust_reason = True, "compiled just now"
        yield plan


def _run(plan: LoadedPlan, device: Device, case: Case, factor_error: float) -> Distance:
    index = len(plan.plan.regions) - 1
    region, values = plan.plan.regions[index], plan.plan.values
    tolerances = case.tolerances * len(region.outputs) if len(case.tolerances) == 1 else case.tolerances
    slow = ReferenceDevice(DeviceOptions()).load(plan, index, _CACHES)
    fast = device.load(plan, index, _CACHES)
    worst = Distance()
    try:
        for number, shape in enumerate(case.steps):
            step, inputs = _step(shape), _inputs(case, plan.plan, region, shape, number)
            want = slow.run(step, {key: array.copy() for key, array in inputs.items()})
            got = fast.run(step, inputs)
            for output, tolerance in zip(region.outputs, tolerances, strict=True):
                array = _checked(got, output, values[output], want[output])
                worst = worst.worse(distance(array, want[output], values[output].dtype, tolerance, factor_error))
    finally:
        fast.close()
        slow.close()
    return worst


def _checked(got: dict[int, Array], output: int, value: Value, want: Array) -> Array:
    if output not in got:
        raise _WrongFormError(f"run gave no array for output {value.name!r}")
    array = np.asarray(got[output])
    if array.shape != want.shape or array.dtype != want.dtype:
        raise _WrongFormError(f"output {value.name!r} is {array.dtype} {list(array.shape)}, not {want.dtype} {list(want.shape)}")
    return array


def _step(shape: Steps) -> Step:
    positions, slots = np.asarray(shape.positions, np.int32), np.asarray(shape.slots, np.int32)
    lengths = np.asarray([positions[slots == slot].max() + 1 for slot in slots], np.int32)
    # Pages in no order, as they are after some sequences have come and gone.
    tables = np.random.default_rng(0).permutation(_CACHES.pages).reshape(4, 8).astype(np.int32)
    return Step(np.zeros(len(positions), np.int32), positions, slots, np.arange(shape.rows, dtype=np.int32), lengths, tables)


def _inputs(case: Case, plan: Plan, region: Region, shape: Steps, seed: int) -> dict[int, Array]:
    rng = np.random.default_rng(seed)
    given = [one for one in case.inputs if isinstance(one, Given)]
    made = {}
    for index, one in zip(region.inputs, given, strict=True):
        size = tuple(dim_value(dim, tokens=len(shape.positions), rows=shape.rows) for dim in plan.values[index].shape)
        made[index] = np.ascontiguousarray(one.make(size, rng), one.dtype.numpy)
    if case.complete is not None:
        case.complete([made[index] for index in region.inputs])
    return made


def _words(error: Exception) -> str:
    if isinstance(error, MixplanError):
        return error.message
    return f"{type(error).__name__}: {error}"
