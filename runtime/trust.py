"""Who vouches for a plan's native code.

A plan is trusted where its manifest's SHA-256 stands in this user's ledger (it was built here), or where `plan.sig` holds an HMAC-SHA256 of
it by a key that the user trusts. The manifest holds the digest of every file, so trust in it is trust in all of them.

The ledger is a directory of empty files named by digest, `$XDG_STATE_HOME/mixplan/trusted/` (default `~/.local/state`). The keys are lines
of hex digits, with an optional comment after a space, in `$XDG_CONFIG_HOME/mixplan/trusted_keys` (default `~/.config`). Both must belong to
the user, and nobody else may write to them, nor read the keys.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from pathlib import Path

from mixplan.runtime.errors import OptionError, OutputError
from mixplan.runtime.plan_files import MANIFEST, SIGNATURE, PlanDirectory
from mixplan.runtime.plan_json import MAX_MANIFEST_BYTES

__all__ = ["is_trusted", "keys_path", "ledger_path", "record_trusted", "sign", "trust_digest"]

_PURPOSE = b"mixplan plan v1 sha256:"
_KEY = re.compile(r"[0-9a-fA-F]{64,256}")
_SIGNATURE = re.compile(r"hmac-sha256 ([0-9a-f]{16}) ([0-9a-f]{64})\n?")


def ledger_path() -> Path:
    """The directory of digests of plans built here."""
    return _xdg("XDG_STATE_HOME", ".local/state") / "mixplan" / "trusted"


def keys_path() -> Path:
    """The file of keys whose signatures count."""
    return _xdg("XDG_CONFIG_HOME", ".config") / "mixplan" / "trusted_keys"


def is_trusted(root: str | os.PathLike[str]) -> tuple[bool, str]:
    """Whether native code of the plan at `root` may be loaded, and the reason, for people."""
    return trust_digest(_manifest_digest(Path(root)), root)


def trust_digest(digest: str, root: str | os.PathLike[str]) -> tuple[bool, str]:
    """As `is_trusted`, for a plan whose manifest was read already and has this SHA-256."""
    try:
        return _by_ledger(digest) or _by_signature(digest, Path(root) / SIGNATURE)
    except (OSError, RuntimeError) as error:
        # No home directory, or one that cannot be read: nothing vouches for the plan.
        return False, f"the records of trust cannot be read: {error}"


def record_trusted(root: str | os.PathLike[str]) -> None:
    """Enter the plan at `root` into the ledger, as one that was built here. OutputError where the ledger cannot be written."""
    digest = _manifest_digest(Path(root))
    try:
        ledger = ledger_path()
        ledger.mkdir(parents=True, exist_ok=True, mode=0o700)
        (ledger / digest).touch(mode=0o600)
    except (OSError, RuntimeError) as error:
        raise OutputError(
            f"The ledger of trusted plans cannot be written: {error}.",
            hint="Set XDG_STATE_HOME to a folder of yours, or load with trust=True.",
        ) from error


def sign(root: str | os.PathLike[str], key: str) -> None:
    """Write `plan.sig` for the plan at `root`. `key`: 32 bytes or more as hex digits, the same line as in the reader's trusted_keys."""
    if not _KEY.fullmatch(key) or len(key) % 2:
        raise OptionError(
            "The signing key is not valid: it must be an even number of hex digits, 64 or more.", hint="Make one: openssl rand -hex 32"
        )
    secret = bytes.fromhex(key)
    digest = _manifest_digest(Path(root))
    target, temporary = Path(root) / SIGNATURE, Path(root) / f"{SIGNATURE}.tmp"
    try:
        temporary.write_text(f"hmac-sha256 {_key_id(secret)} {_mac(secret, digest)}\n", encoding="ascii")
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputError(f"{target} cannot be written: {error.strerror}.") from error


def _by_ledger(digest: str) -> tuple[bool, str] | None:
    """None where the ledger does not know the plan."""
    ledger = ledger_path()
    if not (ledger / digest).is_file():
        return None
    problem = _problem(ledger, forbidden=stat.S_IWGRP | stat.S_IWOTH)
    return (False, f"the ledger {ledger} {problem}") if problem else (True, "it was built on this machine")


def _by_signature(digest: str, signature: Path) -> tuple[bool, str]:
    if signature.is_symlink() or not signature.is_file() or signature.stat().st_size > 4096:
        return False, "it was not built on this machine and is not signed"
    match = _SIGNATURE.fullmatch(signature.read_text(encoding="ascii", errors="replace"))
    if match is None:
        return False, f"{SIGNATURE} is malformed"
    keys, problem = _trusted_keys()
    for key in keys:
        if _key_id(key) == match[1]:
            if hmac.compare_digest(_mac(key, digest), match[2]):
                return True, f"it is signed with the trusted key {match[1]}"
            return False, f"its signature by key {match[1]} does not match"
    return False, problem or f"it is signed with key {match[1]}, which is not in {keys_path()}"


def _manifest_digest(root: Path) -> str:
    directory = PlanDirectory(root)
    try:
        file = directory.open(MANIFEST, named_by="every plan")
        try:
            # A manifest that is too large to be read cannot be loaded, so trust in it is of no consequence.
            return file.sha256() if file.size <= MAX_MANIFEST_BYTES else "too large"
        finally:
            file.close()
    finally:
        directory.close()


def _trusted_keys() -> tuple[list[bytes], str]:
    """The keys, and what is wrong with their file ("" if nothing)."""
    path = keys_path()
    if not path.is_file():
        return [], ""
    problem = _problem(path, forbidden=stat.S_IRWXG | stat.S_IRWXO)
    if problem:
        return [], f"the key file {path} {problem}"
    words = [line.split()[0] for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return [bytes.fromhex(word) for word in words if _KEY.fullmatch(word) and len(word) % 2 == 0], ""


def _problem(path: Path, *, forbidden: int) -> str:
    """Why what stands at `path` does not count, "" where it does."""
    status = path.stat()
    if status.st_uid not in (0, os.geteuid()):
        return "belongs to another user"
    if status.st_mode & forbidden:
        return f"is open to other users (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


def _key_id(key: bytes) -> str:
    return hashlib.sha256(b"mixplan key id:" + key).hexdigest()[:16]


def _mac(key: bytes, digest: str) -> str:
    return hmac.new(key, _PURPOSE + digest.encode("ascii"), hashlib.sha256).hexdigest()


def _xdg(variable: str, default: str) -> Path:
    """The XDG rule: the variable counts only if it is an absolute path."""
    given = os.environ.get(variable, "")
    return Path(given) if given.startswith("/") else Path.home() / default
