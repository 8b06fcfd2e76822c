"""One test per way in which a GGUF file can be broken: each a typed error that names the file and the value seen."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from mixplan.compiler.weights.gguf_file import GgufFile
from mixplan.runtime.errors import CheckpointError, UnsupportedError

Write = Callable[[bytes], Path]
_U32, _STRING, _ARRAY = 4, 8, 9
_F32, _Q8_0 = 0, 8


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _key(name: str, kind: int, value: bytes) -> bytes:
    return _text(name) + struct.pack("<I", kind) + value


def _tensor(name: str, shape: tuple[int, ...], kind: int = _F32, offset: int = 0) -> bytes:
    return _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


_KEYS = (_key("general.architecture", _STRING, _text("llama")),)
_TENSORS = (_tensor("a", (8, 2)), _tensor("b", (4,), offset=64))


def _file(
    keys: tuple[bytes, ...] = _KEYS,
    tensors: tuple[bytes, ...] = _TENSORS,
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    counts: tuple[int, int] | None = None,
    data: int = 80,
) -> bytes:
    tensor_count, key_count = counts or (len(tensors), len(keys))
    head = magic + struct.pack("<IQQ", version, tensor_count, key_count) + b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + bytes(data)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(content: bytes) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        return path

    return make


def test_the_intact_file_is_read(write: Write) -> None:
    file = GgufFile(write(_file()))
    assert file.architecture == "llama"
    assert file.tensors["a"].shape == (2, 8) and file.tensors["b"].nbytes == 16
    assert file.read_rows(file.tensors["a"], 1, 2).tolist() == [[0.0] * 8]
    file.close()
    file.close()


CASES: list[tuple[str, bytes, str]] = [
    ("empty", b"", "no GGUF file"),
    ("magic", _file(magic=b"GGML"), "begins with b'GGML'"),
    ("version", _file(version=4), "version 4; mixplan reads versions 2 and 3"),
    ("version-1", _file(version=1), "version 1"),
    ("big-endian", _file(version=3 << 24), "big-endian"),
    ("header-only", _file()[:10], "truncated"),
    ("cut-in-keys", _file()[:60], "truncated"),
    ("cut-in-table", _file()[:100], "truncated"),
    ("cut-in-data", _file()[:-1], r"tensor 'b' takes bytes \d+ to \d+, and the file has \d+"),
    ("tensor-count", _file(counts=(1 << 40, 1)), "claims 1099511627776 tensors"),
    ("key-count", _file(counts=(2, 1 << 40)), "claims 1099511627776 metadata keys"),
    ("offset-out-of-range", _file(tensors=(_tensor("a", (4,), offset=1 << 20),)), "tensor 'a' takes bytes"),
    ("offset-overflow", _file(tensors=(_tensor("a", (4,), offset=(1 << 64) - 32),)), "tensor 'a' takes bytes"),
    ("offset-not-aligned", _file(tensors=(_tensor("a", (4,), offset=4),)), "offset 4, which is not a multiple of the alignment 32"),
    ("overlap", _file(tensors=(_tensor("a", (16,)), _tensor("b", (4,), offset=32))), "'a' and 'b' overlap"),
    ("duplicate-tensor", _file(tensors=(_tensor("a", (4,)), _tensor("a", (4,), offset=32))), "holds the tensor 'a' twice"),
    ("duplicate-key", _file(keys=_KEYS * 2), "'general.architecture' twice"),
    ("zero-dimension", _file(tensors=(_tensor("a", (0, 4)),)), r"shape \[4, 0\]"),
    ("huge-dimension", _file(tensors=(_tensor("a", (1 << 62, 1 << 62)),)), "takes bytes"),
    ("dimensions", _file(tensors=(_text("a") + struct.pack("<I", 5_000_000),)), "5000000 dimensions"),
    ("blocks", _file(tensors=(_tensor("a", (33,), _Q8_0),)), "rows of 33 elements, not a multiple of 32"),
    ("key-type", _file(keys=(*_KEYS, _key("x", 77, b""))), "'x' has the unknown type 77"),
    ("item-type", _file(keys=(*_KEYS, _key("x", _ARRAY, struct.pack("<IQ", 77, 1)))), "item type 77"),
    ("list-length", _file(keys=(*_KEYS, _key("x", _ARRAY, struct.pack("<IQ", _U32, 1 << 50)))), "'x' claims"),
    ("string-list-length", _file(keys=(*_KEYS, _key("x", _ARRAY, struct.pack("<IQ", _STRING, 1 << 50)))), "'x' claims"),
    ("string-length", _file(keys=(struct.pack("<Q", 1 << 62),)), "truncated"),
    ("utf-8", _file(keys=(*_KEYS, _key("x", _STRING, struct.pack("<Q", 2) + b"\xff\xfe"))), "not UTF-8"),
    ("alignment", _file(keys=(*_KEYS, _key("general.alignment", _U32, struct.pack("<I", 48)))), "general.alignment is 48"),
    ("zero-alignment", _file(keys=(*_KEYS, _key("general.alignment", _U32, struct.pack("<I", 0)))), "general.alignment is 0"),
]


@pytest.mark.parametrize(("content", "message"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_malformed_file(write: Write, content: bytes, message: str) -> None:
    path = write(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        GgufFile(path)
    assert str(path) in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(("kind", "seen"), [(999, "999"), (24, r"I8 \(24\)")], ids=["unknown", "integers"])
def test_quantization_type_that_cannot_be_read(write: Write, kind: int, seen: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"tensor 'a' has the quantization type {seen}; mixplan reads .*Q4_K"):
        GgufFile(write(_file(tensors=(_tensor("a", (32,), kind),))))


def test_no_architecture(write: Write) -> None:
    file = GgufFile(write(_file(keys=())))
    with pytest.raises(CheckpointError, match=r"no general\.architecture"):
        _ = file.architecture


def test_value_of_another_type(write: Write) -> None:
    file = GgufFile(write(_file(keys=(*_KEYS, _key("llama.block_count", _STRING, _text("two"))))))
    with pytest.raises(CheckpointError, match=r"llama\.block_count is 'two', which is not a whole number"):
        file.integer("llama.block_count")
    with pytest.raises(CheckpointError, match="not a list of strings"):
        file.strings("llama.block_count")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nothing\.gguf cannot be read"):
        GgufFile(tmp_path / "nothing.gguf")


def test_file_cut_while_it_is_open(write: Write) -> None:
    path = write(_file())
    file = GgufFile(path)
    path.write_bytes(path.read_bytes()[:-80])
    with pytest.raises(CheckpointError, match="became shorter"):
        file.read_rows(file.tensors["b"], 0, 4)


def test_every_prefix_and_every_flipped_byte_gives_a_typed_error_or_reads(write: Write) -> None:
    whole = _file()
    for size in range(len(whole)):
        with pytest.raises((CheckpointError, UnsupportedError)):
            GgufFile(write(whole[:size]))
    for at in range(len(whole) - 80):
        for flip in (0x01, 0x80, 0xFF):
            broken = bytearray(whole)
            broken[at] ^= flip
            try:
                GgufFile(write(bytes(broken))).close()
            except (CheckpointError, UnsupportedError):
                continue
