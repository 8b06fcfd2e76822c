"""Reading a plan from its directory, every byte checked before use, and writing its manifest."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import prod
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from mixplan.runtime.dtypes import DType, f32_to_bf16
from mixplan.runtime.errors import OptionError, PlanError
from mixplan.runtime.plan import FileEntry, Plan, Value
from mixplan.runtime.plan_check import check_plan, check_tensors
from mixplan.runtime.plan_files import MANIFEST, MANIFEST_DIGEST, RESERVED, PlanDirectory, PlanFile, check_path, hash_file
from mixplan.runtime.plan_json import MAX_MANIFEST_BYTES, decode_plan, encode_plan, fill_number
from mixplan.runtime.safetensors_header import Header, parse_header

__all__ = ["LoadedPlan", "Verify", "open_plan", "read_plan", "write_manifest"]

Array: TypeAlias = NDArray[Any]
Verify: TypeAlias = Literal["full", "manifest"]


@dataclass
class LoadedPlan:
    """A plan that passed every check, with its files open. Constants are read-only views of the mapped weights.

    `trusted` says whether native code from the plan may be loaded, `trust_reason` why; both are set by `runtime.load`, and a plan starts
    untrusted.
    """

    plan: Plan
    root: Path
    digest: str
    """SHA-256 of plan.json, which stands for the whole plan."""
    files: dict[str, PlanFile]
    headers: dict[str, Header]
    trusted: bool = False
    trust_reason: str = "nobody vouches for it"
    _checks: Callable[[], None] | None = field(default=None, repr=False)
    _constants: dict[int, Array] = field(default_factory=dict, repr=False)

    def finish(self) -> None:
        """Wait for what is still being read and verified; PlanError where it is not what the manifest says. For plans opened by `load`."""
        checks, self._checks = self._checks, None
        if checks is not None:
            checks()

    def constant(self, index: int, *, complete: bool = True) -> Array:
        """Constant `index`, read-only, of its declared shape; bf16 is uint16 bit patterns. A fill takes no memory (zero strides).

        complete: False gives it at once, for those who only look at it after `finish`.
        """
        if complete:
            self.finish()
        array = self._constants.get(index)
        if array is None:
            array = self._constants[index] = self._make_constant(self.plan.values[index])
        return array

    def read_file(self, path: str) -> bytes:
        """The verified content of a file that the manifest lists."""
        file = self.files.get(path)
        if file is None:
            raise PlanError(f"{self.root} has no file {path!r}; it has {', '.join(sorted(self.files))}.")
        data = file.read()
        # Hashed again: what is used must be what was verified, and under verify="manifest" it was not hashed before.
        if sha256(data).hexdigest() != self.plan.files[path].sha256:
            raise PlanError(f"{self.root}/{path} does not match its SHA-256 in plan.json.", hint="Copy or compile the plan again.")
        return data

    def close(self) -> None:
        """Close the files. Arrays from `constant` stay valid."""
        for file in self.files.values():
            file.close()

    def __enter__(self) -> LoadedPlan:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _make_constant(self, value: Value) -> Array:
        if value.kind != "const":
            raise PlanError(f"Value {value.name!r} is of kind {value.kind!r}, not a constant.")
        shape = tuple(dim for dim in value.shape if isinstance(dim, int))
        if value.tensor is None:
            return np.broadcast_to(_fill(value), shape)
        count = prod(shape)
        if count == 0:
            return np.broadcast_to(np.zeros((), value.dtype.numpy), shape)
        start = self.headers[value.tensor.file].data_start + value.tensor.offset
        array = np.frombuffer(self.files[value.tensor.file].map(), value.dtype.numpy, count=count, offset=start).reshape(shape)
        array.flags.writeable = False
        return array


def read_plan(path: str | os.PathLike[str], *, verify: Verify = "full") -> LoadedPlan:
    """Open the plan at `path` and check everything about it: digests, schema, bounds, graph, shapes, tensors.

    verify: "full" hashes every file; "manifest" trusts the content of the safetensors files, whose size and header are still checked, and
    hashes the rest. Raises PlanError for anything wrong with the plan.
    """
    loaded = open_plan(path, {}, verify=verify)
    try:
        loaded.finish()
    except BaseException:
        loaded.close()
        raise
    return loaded


def open_plan(path: str | os.PathLike[str], ahead: dict[str, PlanFile], *, verify: Verify = "full") -> LoadedPlan:
    """As `read_plan`, but files may still be being read, and their digests are compared by `LoadedPlan.finish`, which must be called.

    ahead: files of the plan that were opened before; those that the plan names are taken out of it.
    """
    if verify not in ("full", "manifest"):
        raise OptionError(f"verify is {verify!r}; allowed are 'full' and 'manifest'.")
    root = Path(path)
    directory = PlanDirectory(root)
    files: dict[str, PlanFile] = {}
    try:
        data = _read_manifest(directory)
        plan = decode_plan(data, source=f"{root}/{MANIFEST}")
        for name, entry in plan.files.items():
            if name in RESERVED:
                raise PlanError(f"{root}/{MANIFEST} lists {name}, which cannot vouch for itself.")
            files[name] = file = ahead.pop(name, None) or directory.open(name, named_by=MANIFEST)
            if file.size != entry.size:
                raise PlanError(
                    f"{root}/{name} has {file.size} bytes; plan.json says {entry.size}.",
                    hint="It is truncated or was changed: copy it again.",
                )
        check_plan(plan)
        headers = {name: _header(file, f"{root}/{name}") for name, file in files.items() if name.endswith(".safetensors")}
        check_tensors(plan, headers)
        checks = _start_checks(plan, files, root, verify)
    except BaseException:
        for file in files.values():
            file.close()
        raise
    finally:
        directory.close()
    return LoadedPlan(plan=plan, root=root, digest=sha256(data).hexdigest(), files=files, headers=headers, _checks=checks)


def write_manifest(root: str | os.PathLike[str], plan: Plan, *, known: Mapping[str, FileEntry] | None = None) -> str:
    """Write plan.json and plan.sha256 into `root`, which holds all other files of the plan already; gives the SHA-256 of plan.json.

    Every file below `root` is entered into the manifest. `known` saves hashing again what was hashed while it was written. The plan is
    checked, so that what cannot be read back is not written.
    """
    root = Path(root)
    entries: dict[str, FileEntry] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_dir() or name in RESERVED:
            continue
        check_path(name, named_by=str(root))
        entries[name] = known[name] if known is not None and name in known else hash_file(path)
    plan = msgspec.structs.replace(plan, files=entries)
    check_plan(plan)
    data = encode_plan(plan)
    digest = sha256(data).hexdigest()
    (root / MANIFEST).write_bytes(data)
    (root / MANIFEST_DIGEST).write_text(f"{digest}  {MANIFEST}\n", encoding="ascii")
    return digest


def _read_manifest(directory: PlanDirectory) -> bytes:
    """plan.json, checked against plan.sha256."""
    data = _read_small(directory, MANIFEST, MAX_MANIFEST_BYTES)
    recorded = _read_small(directory, MANIFEST_DIGEST, 4096)
    digest = sha256(data).hexdigest()
    if recorded != f"{digest}  {MANIFEST}\n".encode():
        raise PlanError(
            f"{directory.root}/{MANIFEST} does not match its SHA-256 in {MANIFEST_DIGEST}.",
            hint="One of the two was changed: copy the plan again.",
        )
    return data


def _read_small(directory: PlanDirectory, name: str, limit: int) -> bytes:
    file = directory.open(name, named_by="every plan")
    try:
        if file.size > limit:
            raise PlanError(f"{directory.root}/{name} has {file.size} bytes; at most {limit} are read.")
        return file.read()
    finally:
        file.close()


def _header(file: PlanFile, source: str) -> Header:
    prefix = os.pread(file.fd, 8, 0)
    length = int.from_bytes(prefix, "little")
    header = os.pread(file.fd, min(length, file.size), 8) if len(prefix) == 8 and length <= file.size else b""
    return parse_header(prefix, header, file.size, source=source)


def _start_checks(plan: Plan, files: Mapping[str, PlanFile], root: Path, verify: Verify) -> Callable[[], None]:
    """Begin to hash what is to be hashed and is not yet; gives a function that waits for all and compares."""
    names = [name for name in files if verify == "full" or not name.endswith(".safetensors")]
    # Hashing frees the interpreter lock, so shards are hashed side by side.
    few = min(len(names), os.cpu_count() or 1, 8) or 1
    threads = [_Digests([files[name] for name in names[at::few]]) for at in range(few)]

    def compare() -> None:
        for name, file in files.items():
            if name not in names:
                file.finish()
        for thread in threads:
            thread.join()
        found = {name: digest for thread in threads for name, digest in thread.found.items()}
        for name in names:
            digest = found[name]
            if isinstance(digest, BaseException):
                raise digest
            if digest != plan.files[name].sha256:
                raise PlanError(
                    f"{root}/{name} does not match its SHA-256 in plan.json: it is {digest}, not {plan.files[name].sha256}.",
                    hint="The file is damaged or was changed: copy or compile the plan again.",
                )

    return compare


class _Digests(Thread):
    """Hashes files one after the other."""

    def __init__(self, files: Sequence[PlanFile]) -> None:
        super().__init__(name="mixplan-digests", daemon=True)
        self.files = files
        self.found: dict[str, str | BaseException] = {}
        self.start()

    def run(self) -> None:
        for file in self.files:
            try:
                self.found[file.path] = file.sha256()
            except BaseException as error:
                self.found[file.path] = error


def _fill(value: Value) -> Array:
    number = fill_number(value)
    if value.dtype is DType.bf16:
        return f32_to_bf16(np.asarray(number, np.float32)).reshape(())
    return np.asarray(number, value.dtype.numpy)
