"""Runs a page of the documentation: its commands and its Python, in order, in a folder of its own.

```bash blocks hold `mixplan` and `python` commands, which run in this process, and a few plain shell commands. ```bash fails blocks must
fail with exit code 2 (or the one behind the word), and what the ```text block behind them says must be in what they print. ```python blocks
of a page share one namespace; one that begins with `# NAME.py` is saved under that name instead. Nothing else runs (```console, ```text).
"""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import pytest
from click.testing import CliRunner
from tokenizers import pre_tokenizers

from mixplan.cli import main
from mixplan.runtime.trust import record_trusted

_FENCE = re.compile(r"^```(\w+)?([^\n]*)\n(.*?)^```$", re.M | re.S)
_SHELL = ("cp", "cat", "chmod", "ls", "mkdir", "openssl", "rm", "sha256sum")


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, what stands behind that, its text, and its line in the page."""

    language: str
    info: str
    code: str
    line: int


def page_blocks(page: Path) -> list[Block]:
    """Every fenced block of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [Block(m[1] or "", m[2].strip(), m[3], text.count("\n", 0, m.start()) + 2) for m in _FENCE.finditer(text)]


def statements(code: str) -> Iterator[list[str]]:
    """A bash block's commands as tokens; comments, and ends of lines after a backslash, are gone."""
    for line in code.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|>")
        lexer.whitespace_split = True
        tokens = list(lexer)
        if tokens:
            yield tokens


@pytest.fixture(scope="session")
def docs_home(tiny_llama_dir: Path, tiny_llama_plan: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a page's folder starts with: the checkpoint `my-model`, its plan `my.plan`, and a `model.gguf`."""
    home = tmp_path_factory.mktemp("docs")
    _write_gguf(home / "model.gguf")
    shutil.copytree(tiny_llama_dir, home / "my-model")
    shutil.copytree(tiny_llama_plan, home / "my.plan")
    return home


def _write_gguf(path: Path) -> None:
    """A random llama of one layer in Q8_0, with a tokenizer of bytes and one merge."""
    sizes = {"blk.0.attn_q": (64, 64), "blk.0.attn_k": (32, 64), "blk.0.attn_v": (32, 64), "blk.0.attn_output": (64, 64)}
    sizes |= {"blk.0.ffn_gate": (96, 64), "blk.0.ffn_up": (96, 64), "blk.0.ffn_down": (64, 96)}
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "He", "<|im_end|>"]
    sizes |= {"token_embd": (len(tokens), 64)}
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    for add, value in (
        (writer.add_context_length, 512),
        (writer.add_embedding_length, 64),
        (writer.add_block_count, 1),
        (writer.add_feed_forward_length, 96),
        (writer.add_head_count, 4),
        (writer.add_head_count_kv, 2),
        (writer.add_layer_norm_rms_eps, 1e-5),
        (writer.add_rope_dimension_count, 16),
        (writer.add_tokenizer_model, "gpt2"),
        (writer.add_tokenizer_pre, "smollm"),
        (writer.add_token_list, tokens),
        (writer.add_token_types, [1] * (len(tokens) - 1) + [3]),
        (writer.add_token_merges, ["H e"]),
        (writer.add_eos_token_id, len(tokens) - 1),
    ):
        add(value)
    for name, shape in sizes.items():
        values = rng.standard_normal(shape, np.float32)
        writer.add_tensor(f"{name}.weight", gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(64, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def run_page(docs_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """run(page): everything that the page shows; an AssertionError names the line that did not do as it says."""
    folder = tmp_path / "page"
    shutil.copytree(docs_home, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    record_trusted("my.plan")
    modules = set(sys.modules)
    yield lambda page: _Page(page, monkeypatch).run()
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


class _Page:
    def __init__(self, page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._page = page
        self._monkeypatch = monkeypatch
        self._names: dict[str, object] = {"__name__": "__page__"}

    def run(self) -> None:
        blocks = page_blocks(self._page)
        if any(" -o my.plan" in block.code for block in blocks if block.language == "bash"):
            shutil.rmtree("my.plan")  # the page makes its own
        for block, following in zip(blocks, [*blocks[1:], None], strict=True):
            where = f"{self._page.name}:{block.line}"
            if block.language == "python":
                self._python(block, where)
            elif block.language == "bash":
                fails = block.info.startswith("fails")
                wanted = int(block.info.removeprefix("fails") or 2) if fails else 0
                outcomes = [self._command(tokens) for tokens in statements(block.code)]
                for code, output in outcomes:
                    assert code == wanted, f"{where}: exit code {code}\n{output}"
                if fails:
                    assert following is not None and following.language == "text", f"{where}: no message is shown"
                    printed = "".join(output for _, output in outcomes)
                    assert following.code.strip() in printed, f"{where}: it says\n{printed}"

    def _python(self, block: Block, where: str) -> None:
        saved = re.match(r"# (\w+\.py)\n", block.code)
        if saved:
            Path(saved[1]).write_text(block.code, encoding="utf-8")
            self._monkeypatch.syspath_prepend(Path.cwd())
            return
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(block.code, where, "exec"), self._names)

    def _command(self, tokens: list[str]) -> tuple[int, str]:
        """Exit code and output of `A | mixplan ... > FILE` with variables in front."""
        given = None
        if "|" in tokens:
            at = tokens.index("|")
            assert tokens[0] == "echo", f"only echo may stand in front of a pipe, not {tokens[0]}"
            given, tokens = " ".join(tokens[1:at]) + "\n", tokens[at + 1 :]
        target = None
        if ">" in tokens:
            tokens, target = tokens[: tokens.index(">")], Path(tokens[tokens.index(">") + 1])
        with self._monkeypatch.context() as patch:
            while re.match(r"[A-Z_]+=", tokens[0]):
                name, _, value = tokens.pop(0).partition("=")
                patch.setenv(name, value)
            code, output = self._run(tokens, given, patch)
        if target is not None:
            target.write_text(output, encoding="utf-8")
        return code, output

    def _run(self, tokens: list[str], given: str | None, patch: pytest.MonkeyPatch) -> tuple[int, str]:
        if tokens[0] == "mixplan":
            result = CliRunner().invoke(main, tokens[1:], input=given)
            return result.exit_code, result.output
        if tokens[0] == "python":
            return self._script(tokens[1:], patch)
        assert tokens[0] in _SHELL, f"a page may not run {tokens[0]!r}; it may run mixplan, python, {', '.join(_SHELL)}"
        done = subprocess.run(tokens, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def _script(self, tokens: list[str], patch: pytest.MonkeyPatch) -> tuple[int, str]:
        module = tokens[0] == "-m"
        patch.setattr(sys, "argv", tokens[module:])
        printed, code = io.StringIO(), 0
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                if module:
                    runpy.run_module(tokens[1], run_name="__main__", alter_sys=True)
                else:
                    patch.syspath_prepend(str(Path(tokens[0]).parent.resolve()))
                    runpy.run_path(tokens[0], run_name="__main__")
            except SystemExit as done:
                code = int(done.code or 0)
        return code, printed.getvalue()
