"""What a start does beside loading: numpy's threads, and the tokenizer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mixplan.runtime import load
from mixplan.runtime.errors import PlanError, RequestError
from mixplan.runtime.text.backend import ParsedAhead

tokenizers = pytest.importorskip("tokenizers")

ENVIRONMENT = """
import os, sys
{before}
import mixplan.runtime
assert "numpy" not in sys.modules
mixplan.runtime.SamplingParams
assert "numpy" in sys.modules
print(os.environ.get("OPENBLAS_THREAD_TIMEOUT"))
"""


@pytest.mark.parametrize(("before", "after"), [("", "None"), ("os.environ['OPENBLAS_THREAD_TIMEOUT'] = '9'", "9")])
def test_the_environment_stays_as_it_was(before: str, after: str) -> None:
    code = ENVIRONMENT.format(before=before)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == (f"{after}\n", 0), done.stderr


def _with_tokenizer(make_toy: Any, path: Path, data: bytes | None) -> Path:
    builder, logits = make_toy(vocab=37).build(("reference",))
    builder.files = {} if data is None else {"tokenizer.json": data}
    builder.write(path, logits)
    return path


@pytest.fixture
def data() -> bytes:
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "<unk>": 2}, unk_token="<unk>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.enable_truncation(1)
    return str(backend.to_str()).encode()


def test_a_tokenizer_read_beside_the_weights(make_toy: Any, tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _with_tokenizer(make_toy, tmp_path / "x.plan", data)
    taken: list[object] = []
    take = ParsedAhead.take
    monkeypatch.setattr(ParsedAhead, "take", lambda self, digest: taken.append(take(self, digest)) or taken[-1])
    with load(path) as model, load(path, text=True) as other:
        assert model.tokenizer.encode("b a c b") == other.tokenizer.encode("b a c b") == [1, 0, 2, 1]
        assert other.tokenizer is other.tokenizer
    assert [type(one) for one in taken] == [tokenizers.Tokenizer]


def test_a_tokenizer_of_another_digest_is_not_used(tmp_path: Path, make_toy: Any, data: bytes) -> None:
    path = _with_tokenizer(make_toy, tmp_path / "x.plan", data)
    (path / "tokenizer.json").write_bytes(data.replace(b'"a":0', b'"z":0'))
    with pytest.raises(PlanError, match=r"tokenizer\.json does not match its SHA-256"):
        load(path, text=True)


def test_what_is_wrong_with_a_tokenizer_is_told_by_who_uses_it(tmp_path: Path, make_toy: Any) -> None:
    path = _with_tokenizer(make_toy, tmp_path / "x.plan", b'{"model": 3}')
    with load(path, text=True) as model:
        with pytest.raises(PlanError, match=r"tokenizer\.json is malformed"):
            model.tokenizer  # noqa: B018
        model.step([1], [0], [0])


def test_text_of_a_plan_without_a_tokenizer(make_toy: Any, tmp_path: Path) -> None:
    with (
        load(_with_tokenizer(make_toy, tmp_path / "x.plan", None), text=True) as model,
        pytest.raises(RequestError, match=r"This plan has no tokenizer\.json"),
    ):
        model.tokenizer  # noqa: B018
