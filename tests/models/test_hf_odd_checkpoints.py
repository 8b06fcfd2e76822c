"""Hugging Face directories that are wrong in ways that only show deep inside transformers: one CheckpointError each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mixplan.compiler.frontends import open_checkpoint
from mixplan.compiler.frontends.text import check_record
from mixplan.runtime.errors import CheckpointError
from mixplan.runtime.plan import Model

Edit = Callable[[Path], object]


def _config(**changes: Any) -> Edit:
    def edit(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return edit


def _deep_index(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text("[" * 100_000)


def _dangling(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(folder / "gone")


WRONG: dict[str, tuple[Edit, str]] = {
    "unknown activation": (_config(hidden_act="smooth"), r"config\.json: transformers can make no 'llama' model of it: KeyError: 'smooth'"),
    "unknown rope type": (_config(rope_parameters={"rope_type": "spiral", "rope_theta": 1e4}), "can make no 'llama' model"),
    "no vocabulary": (_config(vocab_size=0), "can make no 'llama' model"),
    "more memory than there is": (_config(hidden_size=1 << 40), "can make no 'llama' model"),
    "not a number": (_config(rms_norm_eps=float("nan")), "it holds NaN, which is no number"),
    "template of other bytes": (lambda f: (f / "chat_template.jinja").write_bytes(b"\xff\xfe"), r"chat_template\.jinja cannot be read"),
    "index without end": (_deep_index, r"index\.json: cannot be read as JSON"),
    "weights behind a broken link": (_dangling, r"model\.safetensors is not a file that can be read"),
}


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.replace(" ", "-"))
def test_odd_directory(case: str, tiny_llama_dir: Path, tmp_path: Path) -> None:
    edit, message = WRONG[case]
    folder = tmp_path / "model"
    shutil.copytree(tiny_llama_dir, folder)
    edit(folder)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(folder)


def test_an_attention_implementation_in_the_config_is_of_no_concern(tiny_llama_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_llama_dir, folder)
    _config(attn_implementation="flash_attention_2", _attn_implementation="flash_attention_2")(folder)
    open_checkpoint(folder).close()


def test_a_name_that_no_file_can_have() -> None:
    with pytest.raises(CheckpointError, match="File name too long"):
        open_checkpoint("a" * 5000)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context_length": 1 << 40}, "allows 1099511627776 positions"),
        ({"eos_token_ids": (1 << 31,)}, "2147483648 is said to be the id"),
        ({"eos_token_ids": ("</s>",)}, "'</s>' is said to be the id"),
        ({"bos_token_id": -1}, "-1 is said to be the id"),
        ({"generation": {"top_k": -5.0}}, "top_k is -5"),
        ({"generation": {"top_p": 7.0}}, r"top_p is 7\.0"),
    ],
)
def test_what_no_plan_can_hold(changes: dict[str, Any], message: str) -> None:
    record = Model(architecture="llama", vocab_size=10, context_length=16, parameters=1)
    check_record(record, "here")
    with pytest.raises(CheckpointError, match=message):
        check_record(msgspec.structs.replace(record, **changes), "here")


def test_transformers_is_quiet(tiny_llama_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_llama_dir, folder)
    _config(eos_token_id=9999)(folder)
    open_checkpoint(folder).close()
    assert capfd.readouterr() == ("", "")
