"""One test per malformation: each gives a PlanError that names what is wrong, and none runs anything."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mixplan.runtime import load, read_plan
from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import PlanError
from mixplan.runtime.plan_json import MAX_MANIFEST_BYTES

WEIGHTS = "weights.safetensors"
FILES = ["plan.json", "plan.sha256", WEIGHTS, "tokenizer.json", "kernels/main.v3.so", "sources/main.cpp"]


def refused(root: Path, text: str) -> None:
    with pytest.raises(PlanError, match=text):
        load(root)


def test_the_plan_itself_is_sound(toy_plan: Path) -> None:
    loaded = read_plan(toy_plan)
    assert sorted(loaded.files) == sorted(FILES[2:])
    assert loaded.read_file("tokenizer.json") == b"{}"
    loaded.close()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("where", [0.0, 0.5, 1.0])
def test_flipped_byte(toy_plan: Path, name: str, where: float) -> None:
    content = bytearray((toy_plan / name).read_bytes())
    content[round(where * (len(content) - 1))] ^= 1
    (toy_plan / name).write_bytes(content)
    refused(toy_plan, name.removesuffix(".json").removesuffix(".sha256"))


def test_flipped_weight_with_verify_manifest(toy_plan: Path) -> None:
    """verify="manifest" leaves out the digest of the weights, and nothing else."""
    for name, caught in ((WEIGHTS, False), ("tokenizer.json", True)):
        content = bytearray((toy_plan / name).read_bytes())
        content[-1] ^= 1
        (toy_plan / name).write_bytes(content)
        if caught:
            with pytest.raises(PlanError, match=name):
                read_plan(toy_plan, verify="manifest")
        else:
            read_plan(toy_plan, verify="manifest").close()


def test_file_changed_after_reading(toy_plan: Path) -> None:
    loaded = read_plan(toy_plan)
    (toy_plan / "kernels/main.v3.so").write_bytes(b"not reallY")
    with pytest.raises(PlanError, match="SHA-256"):
        loaded.read_file("kernels/main.v3.so")
    with pytest.raises(PlanError, match="no file"):
        loaded.read_file("other")
    loaded.close()


@pytest.mark.parametrize("name", FILES)
def test_missing_file(toy_plan: Path, name: str) -> None:
    (toy_plan / name).unlink()
    refused(toy_plan, f"lacks the file {name}")


def test_missing_plan(tmp_path: Path) -> None:
    refused(tmp_path / "nothing", "no plan at")
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", "not a plan directory")
    refused(tmp_path, r"lacks the file plan\.json")


@pytest.mark.parametrize("name", FILES)
def test_symlink(toy_plan: Path, name: str) -> None:
    moved = toy_plan.parent / "moved"
    (toy_plan / name).rename(moved)
    (toy_plan / name).symlink_to(moved)
    refused(toy_plan, "symlink")


def test_symlinked_folder(toy_plan: Path) -> None:
    (toy_plan / "kernels").rename(toy_plan.parent / "kernels")
    (toy_plan / "kernels").symlink_to(toy_plan.parent / "kernels")
    refused(toy_plan, "kernels/main")


def test_the_plan_may_be_reached_by_a_symlink(toy_plan: Path) -> None:
    link = toy_plan.parent / "link.plan"
    link.symlink_to(toy_plan)
    load(link).close()


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_not_a_regular_file(toy_plan: Path, kind: str) -> None:
    (toy_plan / "tokenizer.json").unlink()
    if kind == "pipe":
        os.mkfifo(toy_plan / "tokenizer.json")
    else:
        (toy_plan / "tokenizer.json").mkdir()
    refused(toy_plan, "tokenizer.json is not a regular file")


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json"])
def test_truncated_file(toy_plan: Path, name: str) -> None:
    content = (toy_plan / name).read_bytes()
    (toy_plan / name).write_bytes(content[:-1])
    refused(toy_plan, f"{name} has {len(content) - 1} bytes; plan.json says {len(content)}")


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "/etc/hostname",
        "a/../../x",
        "a//b",
        "./a",
        "a/",
        "",
        ".",
        "..",
        "a\\b",
        "a b",
        "~/x",
        "-x",
        ".hidden",
        "a\x00b",
        "é",
        "a" * 300,
    ],
)
def test_path_that_leaves_the_plan(editor: Any, path: str) -> None:
    editor.edit(lambda plan: plan["files"].__setitem__(path, {"sha256": "0" * 64, "size": 1}))
    refused(editor.root, "not a plain path")


@pytest.mark.parametrize("name", ["plan.json", "plan.sha256", "plan.sig"])
def test_file_that_vouches_for_itself(editor: Any, name: str) -> None:
    editor.edit(lambda plan: plan["files"].__setitem__(name, {"sha256": "0" * 64, "size": 1}))
    refused(editor.root, "cannot vouch for itself")


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"schema_version": 1}', b"[" * 100_000, b'{"schema_version": "1"}']
)
def test_not_a_plan(editor: Any, text: bytes) -> None:
    editor.save_bytes(text)
    refused(editor.root, "not a valid plan")


def test_deep_nesting(editor: Any) -> None:
    editor.save_bytes(b'{"schema_version": 1, "name": ' + b"[" * 200_000)
    refused(editor.root, "not a valid plan")


def test_huge_manifest(editor: Any) -> None:
    with (editor.root / "plan.json").open("r+b") as file:
        file.truncate(MAX_MANIFEST_BYTES + 1)
    refused(editor.root, "at most")


@pytest.mark.parametrize("version", [2, 10**30])
def test_newer_schema(editor: Any, version: int) -> None:
    """A newer plan says so, whatever else it holds."""
    editor.edit(lambda plan: plan.update(schema_version=version, new_field={"x": 1}))
    refused(editor.root, f"schema version {version}; this mixplan reads up to 1")


def test_older_schema(editor: Any) -> None:
    editor.edit(lambda plan: plan.update(schema_version=0))
    refused(editor.root, "versions start at 1")


def at(*path: Any) -> Callable[[Any], tuple[Any, Any]]:
    """Finds the holder and the key of a place in the JSON; a string in a list means the item of that name, or op."""

    def find(plan: Any) -> tuple[Any, Any]:
        for step in path[:-1]:
            if isinstance(plan, list) and isinstance(step, str):
                step = next(i for i, item in enumerate(plan) if step in (item.get("name"), item.get("op")))
            plan = plan[step]
        return plan, path[-1]

    return find


SYM = {"sym": "T"}
CHANGES: list[tuple[str, Callable[[Any], tuple[Any, Any]], Any, str]] = [
    ("unknown field", at("surprise"), 1, "unknown field `surprise`"),
    ("unknown field in a value", at("values", 0, "surprise"), 1, "unknown field `surprise`"),
    ("unknown field in a node", at("nodes", 3, "surprise"), 1, "unknown field `surprise`"),
    ("unknown field in a file", at("files", WEIGHTS, "surprise"), 1, "unknown field `surprise`"),
    ("wrong type", at("max_step_tokens"), "64", "Expected `int`, got `str`"),
    ("wrong type of an index", at("nodes", 0, "inputs"), [0.5], "Expected `int`, got `float`"),
    ("wrong type of a shape", at("values", 0, "shape"), "1", "got `str`"),
    ("unknown dtype", at("values", 0, "dtype"), "f8", "Invalid enum value 'f8'"),
    ("unknown kind", at("values", 0, "kind"), "weight", "Invalid enum value 'weight'"),
    ("unknown symbol", at("values", 0, "shape"), [1, {"sym": "S"}], "Invalid enum value 'S'"),
    ("wrong digest", at("files", WEIGHTS, "sha256"), "0" * 64, "does not match its SHA-256"),
    ("malformed digest", at("files", WEIGHTS, "sha256"), "xyz", "64 lowercase hex"),
    ("wrong size", at("files", WEIGHTS, "size"), 7, "plan.json says 7"),
    ("negative size", at("files", WEIGHTS, "size"), -1, "plan.json says -1"),
    ("offset elsewhere", at("values", "embed.weight", "tensor", "offset"), 64, "bytes at offset 64, but"),
    ("offset out of range", at("values", "embed.weight", "tensor", "offset"), 1 << 50, f"offset {1 << 50}, but"),
    ("negative offset", at("values", "embed.weight", "tensor", "offset"), -4, "negative offset"),
    ("wrong nbytes", at("values", "embed.weight", "tensor", "nbytes"), 4, "but its tensor has 4"),
    ("unknown key", at("values", "embed.weight", "tensor", "key"), "other", "no tensor 'other'"),
    (
        "another tensor's key",
        at("values", "embed.weight", "tensor", "key"),
        "norm.weight",
        "but weights.safetensors has tensor 'norm.weight'",
    ),
    ("not a weights file", at("values", "embed.weight", "tensor", "file"), "tokenizer.json", "not one of the plan's safetensors"),
    ("no such weights file", at("values", "embed.weight", "tensor", "file"), "../w.safetensors", "not one of the plan's safetensors"),
    ("dtype unlike the file", at("values", "norm.weight", "dtype"), "i32", "it must be f32"),
    ("constant with nothing", at("values", "norm.weight", "tensor"), None, "either a tensor or a fill"),
    ("constant with both", at("values", "norm.weight", "fill"), 1.0, "either a tensor or a fill"),
    ("input with a fill", at("values", "token_ids", "fill"), 1, "only constants"),
    ("constant of the step's size", at("values", "norm.weight", "shape"), [SYM], "cannot depend on the step"),
    ("negative shape", at("values", "head", "shape"), [1, {"sym": "R"}, -37], "negative"),
    ("negative constant shape", at("values", "norm.weight", "shape"), [-24], "negative"),
    ("huge dimension", at("values", "head", "shape"), [1, {"sym": "R"}, 1 << 31], "2\\^31"),
    ("huge number", at("values", "head", "shape"), [1, {"sym": "R"}, 10**40], "2\\^31"),
    ("huge shape", at("values", "head", "shape"), [1 << 20, 1 << 20, 1 << 20], "2\\^40 bytes"),
    ("huge shape behind a zero", at("values", "head", "shape"), [1 << 20, 1 << 20, 0, 1 << 20], "2\\^40 bytes"),
    ("many dimensions", at("values", "head", "shape"), [1] * 40, "at most 16"),
    ("negative at small steps", at("values", "head", "shape"), [1, {"sym": "T", "add": -2}, 37], "negative"),
    ("zero factor", at("values", "head", "shape"), [1, {"sym": "T", "mul": 0}, 37], "factor must be 1"),
    ("huge factor", at("values", "head", "shape"), [1, {"sym": "T", "mul": 1 << 40}, 37], "factor must be 1"),
    ("shape unlike the op's", at("values", "head", "shape"), [1, {"sym": "R"}, 38], r"its inputs give f32 \[1, R, 37\]"),
    ("dtype unlike the op's", at("values", "head", "dtype"), "f16", "its inputs give f32"),
    ("same names", at("values", "head", "name"), "o", "same name"),
    ("name that rings the bell", at("values", "head", "name"), "x\x07", "must be printable"),
    ("name of two lines", at("nodes", 0, "name"), "x\ny", "must be printable"),
    ("region named like a path", at("regions", 0, "name"), "../../x", "letters, digits"),
    ("device without a name", at("regions", 0, "device"), "", "letters, digits"),
    ("long name", at("values", "head", "name"), "x" * 500, "at most 400"),
    ("node reads beyond the values", at("nodes", 0, "inputs", 0), 9999, "reads value 9999"),
    ("node reads below the values", at("nodes", 0, "inputs", 0), -2, "reads value -2"),
    ("node reads what comes later", at("nodes", 0, "inputs", 0), 20, "before it is made"),
    ("node makes beyond the values", at("nodes", 0, "outputs", 0), 9999, "makes value 9999"),
    ("node makes a constant", at("nodes", 0, "outputs", 0), 3, "of kind 'const'"),
    ("node without its input", at("nodes", 0, "inputs"), [], "signature"),
    ("needed input left out", at("nodes", "o", "inputs", 0), -1, "left out"),
    ("too many inputs", at("nodes", "o", "inputs"), [4] * 9, "signature"),
    ("too many outputs", at("nodes", 0, "outputs"), [], "outputs"),
    ("unknown op", at("nodes", 0, "op"), "exec", "'exec' is not known"),
    ("unknown attribute", at("nodes", "o", "attrs", "shell"), "x", "no attribute 'shell'"),
    ("wrong type of attribute", at("nodes", "o", "attrs", "rows"), 24.0, "must be int"),
    ("truth as a number", at("nodes", "o", "attrs", "rows"), True, "must be int"),
    ("missing attribute", at("nodes", "o", "attrs"), {}, "needs the attribute"),
    ("huge attribute", at("nodes", "o", "attrs", "rows"), 1 << 70, "beyond 64 bits"),
    ("unknown format", at("nodes", "o", "attrs", "format"), "i7", "'i7' is not known"),
    ("infinite scale spelled wrong", at("nodes", "attention", "attrs", "scale"), "infinity", "must be float"),
    ("output beyond the values", at("outputs"), [9999], "output is value 9999"),
    ("output that is an input", at("outputs"), [0], "output is value 0"),
    ("no output", at("outputs"), [], "at least one"),
    ("output that is not logits", at("outputs"), [4], r"lacks value 4 \('embed'\) among its outputs"),
    ("region past the end", at("regions", 0, "stop"), 999, "end by"),
    ("region too short", at("regions", 0, "stop"), 5, "lists value 2 "),
    ("region begins late", at("regions", 0, "start"), 1, "must begin at 0"),
    ("region of negative size", at("regions", 0, "stop"), -1, "must begin at 0"),
    ("no regions", at("regions"), [], "cover nodes"),
    ("region lacks an input", at("regions", 0, "inputs"), [0], "lacks value"),
    ("region with a constant for input", at("regions", 0, "inputs"), [0, 1, 2, 3], "lists value 3"),
    ("region with an unknown input", at("regions", 0, "inputs"), [0, 1, 2, 9999], "does not exist"),
    ("region with an input twice", at("regions", 0, "inputs"), [0, 1, 2, 2], "twice"),
    ("region without output", at("regions", 0, "outputs"), [], "lacks value"),
    ("kernel that is not listed", at("regions", 0, "kernels"), {"v3": "kernels/other.so"}, "does not list under files"),
    ("kernel of a strange ISA", at("regions", 0, "kernels"), {"../v3": "kernels/main.v3.so"}, "not the name of an ISA"),
    ("source that is not listed", at("regions", 0, "source"), "../main.cpp", "does not list under files"),
    ("attention layer out of range", at("nodes", "attention", "attrs", "layer"), 1, "is layer 1"),
    ("negative attention layer", at("nodes", "attention", "attrs", "layer"), -1, "layer -1"),
    ("cache of another shape", at("attention", 0, "kv_heads"), 4, "attention layer 0 keeps"),
    ("cache of another width", at("attention", 0, "v_dim"), 7, "attention layer 0 keeps"),
    ("cache of another window", at("attention", 0, "window"), 7, "says 7"),
    ("cache of unknown format", at("attention", 0, "dtype"), "i16", "i16"),
    ("cache format that is no text", at("attention", 0, "dtype"), 8, "dtype"),
    ("too few heads' formats", at("attention", 0, "heads"), ["i8"], "formats of 1 KV heads"),
    ("too many heads' formats", at("attention", 0, "heads"), ["i8"] * 9, "formats of 9 KV heads"),
    ("head of unknown format", at("attention", 0, "heads"), ["i8", "i7"], "i7"),
    ("scores of unknown kind", at("nodes", "attention", "attrs", "scores"), "i4", "scores 'i4' are not known"),
    ("integer scores of wide keys", at("nodes", "attention", "attrs", "scores"), "i8", "keys that are no integers"),
    ("attention layer without node", at("attention"), [{"kv_heads": 2, "k_dim": 6, "v_dim": 6, "dtype": "f32"}] * 2, "2 attention layers"),
    ("unknown input", at("values", "token_ids", "name"), "pixels", "input 'pixels'"),
    ("no step tokens", at("max_step_tokens"), 0, "max_step_tokens is 0"),
    ("endless steps", at("max_step_tokens"), 1 << 62, "max_step_tokens is"),
    ("no vocabulary", at("model", "vocab_size"), 0, "vocab_size is 0"),
    ("another vocabulary", at("model", "vocab_size"), 38, r"it must be one, f32 \[1, R, 38\]"),
    ("negative context", at("model", "context_length"), -5, "context_length is -5"),
    ("negative token", at("model", "eos_token_ids"), [-1], "not a token id"),
]


@pytest.mark.parametrize(("place", "value", "text"), [c[1:] for c in CHANGES], ids=[c[0] for c in CHANGES])
def test_changed_manifest(editor: Any, place: Callable[[Any], tuple[Any, Any]], value: Any, text: str) -> None:
    data = editor.load()
    holder, key = place(data)
    holder[key] = value
    editor.save(data)
    refused(editor.root, text)


def test_value_made_twice(editor: Any) -> None:
    editor.edit(lambda plan: plan["nodes"].insert(1, plan["nodes"][0]))
    refused(editor.root, "made already")


def test_value_made_by_nobody(editor: Any) -> None:
    editor.edit(lambda plan: plan["values"].append({"name": "ghost", "kind": "node", "dtype": "f32", "shape": [1]}))
    refused(editor.root, "no node makes it")


@pytest.mark.parametrize(
    ("region", "field", "value", "text"),
    [(1, "name", "reference_0", "stands twice"), (1, "start", 0, "must begin at 1"), (0, "stop", 2, "lacks value|lists value")],
)
def test_regions_that_do_not_follow_one_another(
    toy: Any, editor: Any, tmp_path: Path, region: int, field: str, value: Any, text: str
) -> None:
    toy.write(tmp_path / "p", ("reference", "reference"))
    two = type(editor)(tmp_path / "p")
    two.edit(lambda plan: plan["regions"][region].update({field: value}))
    refused(two.root, text)


@pytest.mark.parametrize("fill", ["Infinity", 1.5, True, "inf", 1 << 40])
def test_fill_that_the_dtype_cannot_hold(builder: Any, tmp_path: Path, fill: Any) -> None:
    builder.fill("c", fill, DType.i32)
    builder.vocab = 1
    with pytest.raises(PlanError, match="filled with"):
        builder.write(tmp_path / "p")
