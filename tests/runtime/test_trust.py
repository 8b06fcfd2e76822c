"""A plan's native code is trusted by the ledger or by a signature, and by nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mixplan.runtime import is_trusted, load, record_trusted, sign
from mixplan.runtime.errors import OptionError, OutputError, PlanError
from mixplan.runtime.trust import keys_path, ledger_path

KEY = "5a" * 32


def trust_key(text: str = f"# build machine\n\n{KEY} builds\n", mode: int = 0o600) -> None:
    keys_path().parent.mkdir(parents=True)
    keys_path().write_text(text)
    keys_path().chmod(mode)


def test_starts_untrusted(toy_plan: Path) -> None:
    assert is_trusted(toy_plan) == (False, "it was not built on this machine and is not signed")
    with load(toy_plan) as model:
        assert model.trust[0] is False
    with load(toy_plan, trust=True) as model:
        assert model.trust == (True, "trust=True was given")


def test_ledger(toy_plan: Path, editor: Any) -> None:
    record_trusted(toy_plan)
    record_trusted(toy_plan)
    assert is_trusted(toy_plan) == (True, "it was built on this machine")
    with load(toy_plan) as model:
        assert model.trust[0]
    # A change of the manifest, and so of any file, ends the trust.
    editor.edit(lambda plan: plan.update(name="other"))
    assert not is_trusted(toy_plan)[0]


def test_ledger_that_others_may_write(toy_plan: Path) -> None:
    record_trusted(toy_plan)
    ledger_path().chmod(0o777)
    trusted, reason = is_trusted(toy_plan)
    assert not trusted
    assert "open to other users (mode 777)" in reason


def test_ledger_that_cannot_be_written(toy_plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "blocked").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "blocked"))
    with pytest.raises(OutputError, match="cannot be written"):
        record_trusted(toy_plan)


def test_relative_state_home_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "here")
    assert ledger_path() == Path.home() / ".local/state/mixplan/trusted"


def test_signature(toy_plan: Path, editor: Any) -> None:
    sign(toy_plan, KEY)
    trusted, reason = is_trusted(toy_plan)
    assert not trusted
    assert "is not in" in reason
    trust_key()
    trusted, reason = is_trusted(toy_plan)
    assert trusted
    assert "signed with the trusted key" in reason
    load(toy_plan).close()
    editor.edit(lambda plan: plan.update(name="other"))
    trusted, reason = is_trusted(toy_plan)
    assert not trusted
    assert "does not match" in reason


def test_key_that_others_may_read(toy_plan: Path) -> None:
    sign(toy_plan, KEY)
    trust_key(mode=0o644)
    trusted, reason = is_trusted(toy_plan)
    assert not trusted
    assert "open to other users (mode 644)" in reason


@pytest.mark.parametrize("text", ["", "hmac-sha256", "hmac-sha1 " + "0" * 16 + " " + "0" * 64, "x" * 5000, "\x00\xff"])
def test_malformed_signature(toy_plan: Path, text: str) -> None:
    trust_key()
    (toy_plan / "plan.sig").write_text(text)
    assert not is_trusted(toy_plan)[0]


@pytest.mark.parametrize("key", ["", "5a", "xy" * 32, "5" * 65])
def test_bad_key(toy_plan: Path, key: str) -> None:
    with pytest.raises(OptionError, match="hex digits"):
        sign(toy_plan, key)
    trust_key(key + "\n")
    assert not is_trusted(toy_plan)[0]


def test_no_plan(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no plan"):
        is_trusted(tmp_path / "nothing")


def test_home_that_cannot_be_found(toy_plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", nowhere)
    assert is_trusted(toy_plan) == (False, "the records of trust cannot be read: Could not determine home directory.")
    with pytest.raises(OutputError, match="home directory"):
        record_trusted(toy_plan)
