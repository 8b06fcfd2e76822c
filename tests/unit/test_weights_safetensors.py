"""One test per way in which a safetensors file or its index can be wrong; each gives a CheckpointError that names the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixplan.compiler.weights.directory import ShardedTensors
from mixplan.compiler.weights.safetensors_file import SafetensorsFile
from mixplan.runtime.dtypes import f32_to_bf16
from mixplan.runtime.errors import CheckpointError

VALUES = np.arange(24, dtype=np.float32).reshape(6, 4) / 7


def header(**changes: Any) -> dict[str, Any]:
    """Two tensors: "a" F32 [6, 4] and "b" BF16 [6, 4]; `changes` replace fields of "b"."""
    b = {"dtype": "BF16", "shape": [6, 4], "data_offsets": [96, 144], **changes}
    return {"a": {"dtype": "F32", "shape": [6, 4], "data_offsets": [0, 96]}, "b": b}


DATA = VALUES.tobytes() + f32_to_bf16(VALUES).tobytes()


def write(path: Path, head: Any, data: bytes = DATA) -> Path:
    """A safetensors file with any header."""
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_reads_whole_tensors_and_rows(tmp_path: Path) -> None:
    file = SafetensorsFile(write(tmp_path / "ok.safetensors", {"__metadata__": {"format": "pt"}, **header()}))
    assert set(file.tensors) == {"a", "b"}
    np.testing.assert_array_equal(file.read("a"), VALUES)
    np.testing.assert_array_equal(file.read("a", 2, 5), VALUES[2:5])
    np.testing.assert_array_equal(file.read("a", 4, 99), VALUES[4:])
    np.testing.assert_allclose(file.read("b", 1, 3), VALUES[1:3], rtol=2**-8)
    assert file.read("b").dtype == np.float32
    file.close()


MALFORMED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "empty file": (lambda p: write_bytes(p, b""), "too short"),
    "short file": (lambda p: write_bytes(p, b"\x08\x00\x00"), "too short"),
    "header longer than the file": (lambda p: write_bytes(p, (1 << 40).to_bytes(8, "little") + b"{}"), "the header is said to take"),
    "header is not JSON": (lambda p: write(p, b"{nonsense"), "not valid JSON"),
    "header is not UTF-8": (lambda p: write(p, b"\xff\xfe{}"), "not valid JSON"),
    "header is a list": (lambda p: write(p, [1]), "not a JSON object"),
    "duplicate tensor": (lambda p: write(p, b'{"a": {}, "a": {}}'), "appears twice"),
    "entry without shape": (lambda p: write(p, {"a": {"dtype": "F32", "data_offsets": [0, 4]}}), "needs exactly dtype"),
    "unknown dtype": (lambda p: write(p, header(dtype="F7")), "unknown dtype 'F7'"),
    "negative shape": (lambda p: write(p, header(shape=[-6, 4])), "not a list of sizes"),
    "shape with a bool": (lambda p: write(p, header(shape=[True, 4])), "not a list of sizes"),
    "huge shape": (lambda p: write(p, header(shape=[1 << 47, 1 << 47])), "span 48 bytes"),
    "offsets disagree with the shape": (lambda p: write(p, header(data_offsets=[96, 140])), "span 44 bytes"),
    "reversed offsets": (lambda p: write(p, header(data_offsets=[144, 96])), "span -48 bytes"),
    "negative offset": (lambda p: write(p, header(data_offsets=[-1, 47])), "not two offsets"),
    "overlapping tensors": (lambda p: write(p, header(data_offsets=[48, 96])), "overlaps another tensor"),
    "hole between tensors": (lambda p: write(p, header(data_offsets=[100, 148]), DATA + b"1234"), "leaves 4 bytes unused"),
    "truncated data": (lambda p: write(p, header(), DATA[:-10]), "10 bytes are missing at its end"),
    "trailing bytes": (lambda p: write(p, header(), DATA + b"x"), "1 bytes follow the last tensor"),
}


def write_bytes(path: Path, data: bytes) -> Path:
    """Write and give the path back."""
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("case", MALFORMED, ids=lambda case: case.replace(" ", "-"))
def test_malformed_file(case: str, tmp_path: Path) -> None:
    make, message = MALFORMED[case]
    path = make(tmp_path / "bad.safetensors")
    with pytest.raises(CheckpointError) as caught:
        SafetensorsFile(path)
    assert message in str(caught.value) and "bad.safetensors" in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [("NaN", np.nan), ("Inf", np.inf)])
def test_values_that_are_not_numbers(name: str, value: float, tmp_path: Path) -> None:
    values = VALUES.copy()
    values[3, 1:3] = value
    file = SafetensorsFile(write(tmp_path / "bad.safetensors", header(), values.tobytes() + DATA[96:]))
    np.testing.assert_array_equal(file.read("a", 0, 3), VALUES[:3])
    with pytest.raises(CheckpointError, match=f"'a' of bad.safetensors holds .*2 {name}"):
        file.read("a")
    file.close()


def test_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", header())
    file = SafetensorsFile(path)
    path.write_bytes(path.read_bytes()[:-60])
    with pytest.raises(CheckpointError, match="ended inside tensor 'b'"):
        file.read("b")
    file.close()


def shards(folder: Path, weight_map: Any) -> None:
    """Two shards, with "a" and "b", and an index."""
    head = header()
    write(folder / "one.safetensors", {"a": head["a"]}, DATA[:96])
    write(folder / "two.safetensors", {"b": {**head["b"], "data_offsets": [0, 48]}}, DATA[96:])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards(tmp_path: Path) -> None:
    shards(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    tensors = ShardedTensors(tmp_path)
    assert sorted(tensors.names()) == ["a", "b"] and tensors.entry("b").shape == (6, 4)
    tensors.close()


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "one.safetensors", "b": "three.safetensors"}, "shard three.safetensors is missing"),
        ({"a": "one.safetensors", "b": "one.safetensors"}, "'b' is said to be in one.safetensors, which does not hold it"),
        ({"a": "../one.safetensors"}, "not a plain file name"),
        ({}, "needs a weight_map"),
        (["a"], "needs a weight_map"),
    ],
)
def test_wrong_index(weight_map: Any, message: str, tmp_path: Path) -> None:
    shards(tmp_path, weight_map)
    with pytest.raises(CheckpointError, match=message):
        ShardedTensors(tmp_path)


def test_index_that_is_not_json(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read as JSON"):
        ShardedTensors(tmp_path)


def test_pickle_files_are_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(CheckpointError, match=r"pickle files \(pytorch_model.bin\)") as caught:
        ShardedTensors(tmp_path)
    assert "save_pretrained" in str(caught.value)


def test_no_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no weights"):
        ShardedTensors(tmp_path)
