"""Fixtures that several areas share: the tolerance table, the check of one op against an independent result, a tiny checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixplan.runtime.dtypes import DType
from mixplan.runtime.ops import StepContext, op_spec
from mixplan.runtime.plan import Dim, Sym, dim_value

# (relative, absolute) difference allowed to a result computed independently, by what limits the accuracy.
TOLERANCES: dict[str, tuple[float, float]] = {
    # Integers, booleans, moved data: nothing is rounded.
    "exact": (0.0, 0.0),
    # One f32 operation or function: half an ulp is 6e-8; libraries differ by a few ulp.
    "f32": (1e-6, 1e-6),
    # Sums of some hundred f32 terms of size about 1 in any order: the error grows like the root of the count, times the terms' size.
    "f32_sum": (1e-5, 2e-5),
    # Products with bf16 operands: 8 significant bits each, but the same rounding on both sides, so only the f32 sum differs.
    "bf16": (1e-5, 2e-5),
    # int8 activations: the integers agree exactly, the f32 scales and their sums round.
    "i8": (1e-5, 2e-5),
}

_DTYPES = {np.dtype(np.uint16): DType.bf16, **{d.numpy: d for d in DType if d is not DType.bf16}}
# The sizes of T and R that mark symbolic dims in a probe. Their multiples are taken for multiples of T or R: no case uses one otherwise.
_PROBE = (101, 103)
_STEPS = (_PROBE, (1, 0), (29, 3))


@pytest.fixture(scope="session")
def tolerances() -> dict[str, tuple[float, float]]:
    """The tolerance table: name -> (rtol, atol)."""
    return TOLERANCES


def _symbolic(array: np.ndarray | None) -> tuple[DType, tuple[Any, ...]] | None:
    if array is None:
        return None
    return _DTYPES[array.dtype], tuple(_symbolic_dim(n) for n in array.shape)


def _symbolic_dim(size: int) -> Dim:
    for name, marker in zip(("T", "R"), _PROBE, strict=True):
        if size and size % marker == 0:
            return Sym(name, size // marker)
    return size


Build = Callable[[int, int, np.random.Generator], Sequence[np.ndarray | None]]


@pytest.fixture
def check_op() -> Callable[..., None]:
    """check(op, attrs, build, oracle, tolerance): runs the op's reference and shape rule for several T and R.

    build(T, R, rng) makes the inputs, oracle(*inputs) the expected outputs. Checks values, dtypes, that no input is written to, that
    nothing warns (the suite turns warnings into errors), and that the inferred symbolic shapes, at T and R, are those of the arrays.
    """

    def check(op: str, attrs: dict[str, Any], build: Build, oracle: Callable[..., Any], tolerance: str = "exact") -> None:
        spec = op_spec(op)
        probe = build(*_PROBE, np.random.default_rng(0))
        expected = oracle(*probe)
        declared = [_symbolic(np.asarray(y)) for y in (expected if isinstance(expected, (tuple, list)) else [expected])]
        inferred = spec.infer([_symbolic(x) for x in probe], attrs, declared)
        for tokens, rows in _STEPS:
            inputs = build(tokens, rows, np.random.default_rng(tokens))
            copies = [None if x is None else x.copy() for x in inputs]
            wanted = oracle(*copies)
            wanted = [np.asarray(y) for y in (wanted if isinstance(wanted, (tuple, list)) else [wanted])]
            for x in inputs:
                if x is not None:
                    x.flags.writeable = False
            ctx = StepContext(
                np.zeros(tokens, np.int32),
                np.arange(tokens, dtype=np.int32),
                out_shapes=tuple(y.shape for y in wanted),
                out_dtypes=tuple(_DTYPES[y.dtype] for y in wanted),
            )
            outputs = spec.reference(ctx, attrs, inputs)
            assert len(outputs) == len(wanted) == len(inferred) == len(spec.signature.outputs)
            for output, want, (dtype, shape) in zip(outputs, wanted, inferred, strict=True):
                assert output.dtype == want.dtype == dtype.numpy
                assert output.shape == want.shape == tuple(dim_value(d, tokens=tokens, rows=rows) for d in shape)
                rtol, atol = TOLERANCES[tolerance]
                np.testing.assert_allclose(output, want, rtol=rtol, atol=atol, equal_nan=True)

    return check


@pytest.fixture
def run_op() -> Callable[..., Any]:
    """run(op, *inputs, **attrs): the reference's output, or list of outputs, for one sequence of as many tokens as the first input's
    first dim (which only attention looks at)."""

    def run(op: str, *inputs: np.ndarray | None, **attrs: Any) -> Any:
        tokens = inputs[0].shape[0] if inputs and inputs[0] is not None and inputs[0].ndim else 1
        outputs = op_spec(op).reference(StepContext(np.zeros(tokens, np.int32), np.arange(tokens, dtype=np.int32)), attrs, inputs)
        return outputs[0] if len(outputs) == 1 else outputs

    return run


_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def tiny_llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory: a random llama (hidden 64, 2 layers, vocabulary 512), a byte-level tokenizer, a ChatML template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from mixplan.compiler.frontends.tiny import tiny_model

    folder = tmp_path_factory.mktemp("tiny") / "tiny-llama"
    special = ["<|im_start|>", "<|im_end|>"]
    tokens = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(special)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=special[1])
    tokenizer.chat_template = _CHATML
    tokenizer.save_pretrained(folder)
    tiny_model("llama", vocab_size=512, bos_token_id=0, eos_token_id=1, pad_token_id=1).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_llama_plan(tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny_llama_dir` as an FP32 plan for this machine."""
    from mixplan.compiler.pipeline import compile as compile_plan

    plan = tmp_path_factory.mktemp("plans") / "tiny-llama.plan"
    compile_plan(tiny_llama_dir, output=plan, scheme="FP32", isa=("native",))
    return plan
