"""What a plan must satisfy before anything in it is used.

`check_plan` needs only the parsed plan, `check_tensors` also the headers of its safetensors files. The parts are in plan_check_values
(sizes, shapes), plan_check_graph (indices, SSA, ops, regions) and plan_check_model (attention, inputs and outputs of a decoder). Each
raises PlanError naming the value, node, region or file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod

from mixplan.runtime.errors import PlanError
from mixplan.runtime.plan import FileEntry, Plan, Region
from mixplan.runtime.plan_check_graph import check_nodes, check_regions
from mixplan.runtime.plan_check_model import check_attention, check_decoder, check_model
from mixplan.runtime.plan_check_values import check_values
from mixplan.runtime.plan_files import check_path
from mixplan.runtime.safetensors_header import Header

__all__ = ["check_decoder", "check_plan", "check_tensors"]

_DIGEST = re.compile(r"[0-9a-f]{64}")
_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+-]{0,79}")


def check_plan(plan: Plan) -> None:
    """Check everything that the parsed plan alone can show. `files` may still be empty only if no region or constant names a file."""
    check_model(plan)
    _check_names(plan)
    for path, entry in plan.files.items():
        _check_file(path, entry)
    check_values(plan)
    check_nodes(plan)
    check_regions(plan)
    for region in plan.regions:
        _check_region_files(plan, region)
    check_attention(plan)


def check_tensors(plan: Plan, headers: Mapping[str, Header]) -> None:
    """Check each constant against the header of its file: key, dtype, offset, size and room."""
    for index, value in enumerate(plan.values):
        if value.tensor is None:
            continue
        place, where = value.tensor, f"Constant {index} {value.name!r}"
        header = headers.get(place.file)
        if header is None:
            raise PlanError(
                f"{where} lies in {place.file!r}, which is not one of the plan's safetensors files: {', '.join(sorted(headers))}."
            )
        held = header.tensors.get(place.key)
        if held is None:
            raise PlanError(f"{where}: {place.file} has no tensor {place.key!r}.")
        if (held.offset, held.nbytes) != (place.offset, place.nbytes):
            raise PlanError(
                f"{where}: plan.json has {place.nbytes} bytes at offset {place.offset}, but {place.file} has tensor {place.key!r} "
                f"with {held.nbytes} bytes at {held.offset}."
            )
        if held.dtype is not value.dtype or prod(held.shape) * held.dtype.itemsize != place.nbytes:
            raise PlanError(f"{where} is {value.dtype.value}, but tensor {place.key!r} of {place.file} is {held.dtype.value}.")
        if (header.data_start + place.offset) % value.dtype.itemsize:
            raise PlanError(f"{where}: offset {place.offset} in {place.file} is not aligned to its {value.dtype.itemsize}-byte elements.")


def _check_names(plan: Plan) -> None:
    """Names go to terminals and into generated source, so they are printable; those of regions also name files."""
    for region in plan.regions:
        for what, name in (("name", region.name), ("device", region.device)):
            if not _LABEL.fullmatch(name):
                raise PlanError(
                    f"A region has the {what} {name[:80]!r}; allowed are 1 to 80 letters, digits and _ . : + -, "
                    "beginning with a letter, a digit or _."
                )
    named = (("plan", plan.name), ("architecture", plan.model.architecture), *(("value", value.name) for value in plan.values))
    for what, name in (*named, *(("node", text) for node in plan.nodes for text in (node.name, node.op, node.origin, node.rule))):
        if not name.isprintable():
            raise PlanError(f"A {what} has the name {name[:80]!r}; names must be printable.")


def _check_file(path: str, entry: FileEntry) -> None:
    check_path(path, named_by="plan.json")
    if not _DIGEST.fullmatch(entry.sha256):
        raise PlanError(f"The SHA-256 of {path} in plan.json is {entry.sha256[:80]!r}; it must be 64 lowercase hex digits.")
    if not 0 <= entry.size < 1 << 60:
        raise PlanError(f"plan.json says that {path} has {entry.size} bytes, which cannot be.")


def _check_region_files(plan: Plan, region: Region) -> None:
    for isa, path in region.kernels.items():
        if not _LABEL.fullmatch(isa):
            raise PlanError(f"Region {region.name!r} has a kernel for {isa[:80]!r}, which is not the name of an ISA level.")
        if path not in plan.files:
            raise PlanError(f"Region {region.name!r} has its {isa} kernel in {path[:200]!r}, which plan.json does not list under files.")
    if region.source and region.source not in plan.files:
        raise PlanError(f"Region {region.name!r} has its source in {region.source[:200]!r}, which plan.json does not list under files.")
