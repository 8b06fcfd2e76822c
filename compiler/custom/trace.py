"""A kernel's function traced: first by torch.fx, which sees what depends on data, then exported and lowered to the plan's own ops."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FunctionType
from typing import Any

from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from mixplan.compiler.constants import Constants
from mixplan.compiler.custom.signature import Signature, where
from mixplan.compiler.evaluate import lower_module
from mixplan.compiler.lowering import Lowered
from mixplan.runtime.errors import MixplanError, UnsupportedError
from mixplan.runtime.plan import Node, Value

__all__ = ["ALLOWED", "check_function", "lower_function", "quiet_torch"]

ALLOWED = (
    "A kernel may use elementwise functions of torch, sums, means, largest and smallest over axes, matmul, rows of a table by index, "
    "comparisons with torch.where, casts and changes of shape; Python's own control flow may depend on numbers and shapes, not on data."
)


class _Module(nn.Module):
    """The function with its numbers, as what torch exports."""

    def __init__(self, function: Callable[..., Any], numbers: Mapping[str, float]) -> None:
        super().__init__()
        self._function, self._numbers = _named_forward(function), dict(numbers)

    def forward(self, *tensors: Tensor) -> Any:
        return self._function(*tensors, **self._numbers)


def check_function(function: Callable[..., Any], signature: Signature) -> None:
    """UnsupportedError, with the line, for what torch.fx cannot follow: branches and loops over data, functions of other libraries."""
    try:
        graph = fx.Tracer().trace(function, concrete_args=dict(signature.numbers))
    except Exception as error:  # whatever the function or the tracer raises, it is about one of its lines
        raise _unsupported(function, error) from error
    given = next(node for node in graph.nodes if node.op == "output").args[0]
    results = given if isinstance(given, (tuple, list)) else (given,)
    if not results or not all(isinstance(one, fx.Node) for one in results):
        wrong = next((one for one in results if not isinstance(one, fx.Node)), results)
        raise UnsupportedError(f"{where(function)} returns {wrong!r:.60}.", hint="A kernel returns a tensor, or a tuple of tensors.")


def _named_forward(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under the one name that torch keeps the lines of."""
    code = function.__code__.replace(co_name="forward")
    named = FunctionType(code, function.__globals__, "forward", function.__defaults__, function.__closure__)
    named.__kwdefaults__ = function.__kwdefaults__
    return named


def lower_function(
    function: Callable[..., Any], numbers: Mapping[str, float], tensors: Sequence[Tensor]
) -> tuple[Lowered, Constants, tuple[int, ...]]:
    """The function on tensors of these shapes and dtypes, as the plan's values and nodes; and which tensors its inputs are, by their place.

    Tensors that no result needs are no inputs. Raises UnsupportedError with the function's line.
    """
    module = _Module(function, numbers).eval()
    try:
        with quiet_torch():
            lowered, constants, names = lower_module(module, tuple(tensors), (None,) * len(tensors))
    except UnsupportedError as error:
        raise UnsupportedError(f"Kernel {where(function)}: {error.message}", hint=ALLOWED) from error
    except MixplanError:
        raise
    except Exception as error:  # torch.export's errors share no class, and the function may raise anything
        raise _unsupported(function, error) from error
    used = tuple(names.index(value.name) for value in lowered.values if value.kind == "input")
    return _own_results(lowered), constants, used


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Inside, torch does not log the traceback of an op that refuses its shapes: the error is raised as well, and told with its line."""
    logger = logging.getLogger(FakeTensorMode.__module__)
    logger.addFilter(_is_news)
    try:
        yield
    finally:
        logger.removeFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return "failed while attempting to run meta" not in str(record.msg)


def _own_results(lowered: Lowered) -> Lowered:
    """The same with a copy of what is a result and something else as well: an input, a constant, or another result."""
    values, nodes = list(lowered.values), list(lowered.nodes)
    outputs: list[int] = []
    for number, source in enumerate(lowered.outputs):
        if values[source].kind == "node" and source not in outputs:
            outputs.append(source)
            continue
        outputs.append(len(values))
        values.append(Value(f"copy{number}", "node", values[source].dtype, values[source].shape))
        nodes.append(Node("expand", (source,), (outputs[-1],), name=f"copy_{number}"))
    return replace(lowered, values=values, nodes=nodes, outputs=tuple(outputs))


def _unsupported(function: Callable[..., Any], error: Exception) -> UnsupportedError:
    line = _line(function, error)
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return UnsupportedError(f"{where(function, line)}: this line cannot be a kernel: {reason.rstrip('.')}.", hint=ALLOWED)


def _line(function: Callable[..., Any], error: BaseException) -> int | None:
    """The last line of the function's file that the error passed through."""
    found: int | None = None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename == function.__code__.co_filename:
            found = trace.tb_lineno
        trace = trace.tb_next
    return found
