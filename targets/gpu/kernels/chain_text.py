"""The text of a chain of pointwise ops, and how the kernel `chain` reads it while it is compiled.

    sizes 32 128               dims behind the outer one, whose size varies with the step
    load f32 6144 128 1        value v0: from the next pointer, with a stride (in elements) for the outer dim and each of `sizes`
    number f32 0.5             v1
    index i64 0 0 1            the place of an element along dims, by the same kind of strides
    load f32 64 1 0 if v5 -32  from 32 elements before the pointer on, where v5 is true, and 0 elsewhere
    mul f32 v0 v1              v2: the op, the dtype of its operands, the operands
    softplus f32 v2 1.0 20.0   v3: what follows the operands are the op's numbers
    cast f32 v3 bf16           v4: of another dtype
    store bf16 v4 4096 128 1   to the next pointer

Every line but `sizes` and `store` makes a value; stores stand last.
"""

import triton

__all__ = ["condition", "count", "dims", "inner", "integer", "number", "operands", "pointer", "word"]


@triton.constexpr_function
def _lines(text, kind):
    """The words of the lines of a kind: "sizes", "load", "store", or "value" for all that make one."""
    lines = [line.split() for line in text.splitlines()]
    if kind == "value":
        return [line for line in lines if line[0] not in ("sizes", "store")]
    return [line for line in lines if line[0] == kind]


@triton.constexpr_function
def count(text, kind):
    """Lines of a kind."""
    return len(_lines(text, kind))


@triton.constexpr_function
def word(text, kind, line, position):
    """A word of a line, "" behind its end."""
    words = _lines(text, kind)[line]
    return words[position] if position < len(words) else ""


@triton.constexpr_function
def integer(text, kind, line, position):
    """A word as an integer; of an operand its number."""
    return int(word(text, kind, line, position).removeprefix("v"))


@triton.constexpr_function
def number(text, line, position, dtype):
    """A word of a value's line as a number of the dtype; 0 where it is none."""
    try:
        found = word(text, "value", line, position)
        return float(found) if dtype in ("f32", "f16", "bf16") else int(found)
    except ValueError:
        return 0


@triton.constexpr_function
def operands(text, line):
    """How many operands a value's line names."""
    return sum(one.startswith("v") for one in _lines(text, "value")[line])


@triton.constexpr_function
def condition(text, line):
    """Where the words of a load's condition start, 0 where it has none."""
    words = _lines(text, "value")[line]
    return words.index("if") + 1 if "if" in words else 0


@triton.constexpr_function
def dims(text):
    """Dims behind the outer one."""
    return len(_lines(text, "sizes")[0]) - 1


@triton.constexpr_function
def pointer(text, line):
    """Loads before a value: the pointer that it loads from."""
    return sum(words[0] == "load" for words in _lines(text, "value")[:line])


@triton.constexpr_function
def inner(text):
    """Elements of one index of the outer dim."""
    size = 1
    for found in _lines(text, "sizes")[0][1:]:
        size *= int(found)
    return size
