"""`mixplan.kernel`: an op written once, as a Python function, for every target and for compiled models."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx

from mixplan.compiler.constants import Constants
from mixplan.compiler.custom.memory import in_memory, narrowed, widened
from mixplan.compiler.custom.signature import read_signature
from mixplan.compiler.custom.standalone import Standalone, build
from mixplan.compiler.custom.trace import check_function, lower_function
from mixplan.compiler.evaluate import evaluate
from mixplan.compiler.lowering import Lowered
from mixplan.runtime.dtypes import DType
from mixplan.runtime.errors import OptionError
from mixplan.targets.registry import get_target

if TYPE_CHECKING:
    from mixplan.compiler.custom.replace import Replacement

__all__ = ["DTYPES", "Kernel", "kernel"]

Array = NDArray[Any]
DTYPES = {"f32": DType.f32, "bf16": DType.bf16, "f16": DType.f16}
"""What float inputs and results are held as in memory; computing is in f32."""


class Kernel:
    """A function over tensors as an op. Made by `mixplan.kernel`.

    Called with torch tensors it is the function itself. Called with numpy arrays it runs on `target`, compiled for their shapes on first
    use. name: the function's.
    """

    def __init__(self, function: Callable[..., Any], dtype: str, target: str, isa: str | None = None) -> None:
        self.signature = read_signature(function)
        if dtype not in DTYPES:
            raise OptionError(f"dtype of kernel {function.__name__} is {dtype!r}; allowed are {', '.join(DTYPES)}.")
        get_target(target)
        self.function, self.dtype, self.target, self.isa = function, dtype, target, isa
        self.name: str = function.__name__
        self.__doc__ = function.__doc__
        check_function(function, self.signature)
        self._built: dict[Any, tuple[Standalone, bool]] = {}
        self._folders: list[str] = []
        # Before the interpreter takes modules apart, which what was built needs to be given back.
        weakref.finalize(self, _give_back, self._built, self._folders)

    def __repr__(self) -> str:
        return f"<mixplan.kernel {self.name}({', '.join(self.signature.tensors)}), {self.dtype} on {self.target}>"

    def on(self, target: str | None = None, *, dtype: str | None = None, isa: str | None = None) -> Kernel:
        """The same kernel for another target or dtype. OptionError for one that is not known.

        isa: a level of the target to compile for and to run ("x86-64-v3"; for the GPU "interpret" as well); by default this machine's.
        """
        return Kernel(self.function, dtype or self.dtype, target or self.target, isa)

    def __call__(self, *tensors: Any, **numbers: float) -> Any:
        """The result, or a tuple of results. Raises OptionError for arguments that do not fit, UnsupportedError as `build` does."""
        bound = self.signature.bind(self.name, tensors, numbers)
        if all(isinstance(one, (torch.Tensor, fx.Proxy)) for one in tensors):
            return self.function(*tensors, **bound)
        return self._run([_array(one) for one in tensors], bound)

    def reference(self, *arrays: Array, **numbers: float) -> Any:
        """By the numpy references of the ops that the kernel is lowered to, as the runtime has them."""
        given = [_array(one) for one in arrays]
        lowered, constants, used = self._lowered(given, self.signature.bind(self.name, given, numbers))
        lowered = in_memory(lowered, DTYPES[self.dtype])
        names = [value.name for value in lowered.values if value.kind == "input"]
        arrays_used = self._narrowed([given[place] for place in used])
        return _result(evaluate(lowered, constants, dict(zip(names, arrays_used, strict=True)), tokens=1))

    def ops(self, *arrays: Array, **numbers: float) -> tuple[str, ...]:
        """Names of the plan's ops that the kernel becomes on arrays of these shapes."""
        given = [_array(one) for one in arrays]
        lowered, _, _ = self._lowered(given, self.signature.bind(self.name, given, numbers))
        return tuple(node.op for node in in_memory(lowered, DTYPES[self.dtype]).nodes)

    def source(self, *arrays: Array, **numbers: float) -> str:
        """The code that the target generates for arrays of these shapes; "" for a target that generates none."""
        given = [_array(one) for one in arrays]
        return self._standalone(given, self.signature.bind(self.name, given, numbers))[0].source

    def replacing(
        self, *targets: Any, match: Callable[[fx.Node], Sequence[Any] | None] | None = None, name: str = "", **numbers: float
    ) -> Replacement:
        """A pass that puts the kernel in the place of calls in a model: of these ops (`torch.ops.aten.silu.default`).

        match(node): the kernel's tensors for a call, fx nodes, or None where it is to stay; by default the call's own first arguments. The
        pass goes wherever passes do: `--pass module:name@after=drop_noops`, or `compile(passes=...)`.
        """
        from mixplan.compiler.custom.replace import Replacement

        self.signature.bind(self.name, self.signature.tensors, numbers)
        return Replacement(self, targets, match, numbers, name or f"{self.name}_kernel")

    def close(self) -> None:
        """Give back what was built."""
        _give_back(self._built, self._folders)

    def _narrowed(self, arrays: Sequence[Array]) -> list[Array]:
        return [narrowed(one, DTYPES[self.dtype]) for one in arrays]

    def _lowered(self, arrays: Sequence[Array], numbers: dict[str, float]) -> tuple[Lowered, Constants, tuple[int, ...]]:
        return lower_function(self.function, numbers, [torch.from_numpy(one) for one in arrays])

    def _run(self, arrays: Sequence[Array], numbers: dict[str, float]) -> Any:
        standalone, narrow = self._standalone(arrays, numbers)
        given = self._narrowed(arrays)
        if narrow:
            return _result(standalone.run(given))
        # The target takes no arrays of this dtype: they are rounded here, in front of it and behind.
        return _result(self._narrowed(standalone.run([widened(one) for one in given])))

    def _standalone(self, arrays: Sequence[Array], numbers: dict[str, float]) -> tuple[Standalone, bool]:
        """What was built for these shapes and numbers, and whether its arrays are in the kernel's dtype."""
        key = (tuple((one.shape, one.dtype.str) for one in arrays), tuple(sorted(numbers.items())))
        if key not in self._built:
            lowered, constants, used = self._lowered(arrays, numbers)
            target = get_target(self.target)
            held = in_memory(lowered, DTYPES[self.dtype])
            narrow = all(target.supports(node, held.values).ok for node in held.nodes if node.op == "cast")
            self._folders.append(tempfile.mkdtemp(prefix="mixplan-kernel-"))
            folder = Path(self._folders[-1])
            built = build(self.name, held if narrow else lowered, constants, used, self.target, folder, self.isa)
            self._built[key] = (built, narrow)
        return self._built[key]


def _give_back(built: dict[Any, tuple[Standalone, bool]], folders: list[str]) -> None:
    while built:
        built.popitem()[1][0].close()
    while folders:
        shutil.rmtree(folders.pop(), ignore_errors=True)


@overload
def kernel(function: Callable[..., Any]) -> Kernel: ...
@overload
def kernel(function: None = None, *, dtype: str = "f32", target: str = "cpu") -> Callable[[Callable[..., Any]], Kernel]: ...
def kernel(function: Callable[..., Any] | None = None, *, dtype: str = "f32", target: str = "cpu") -> Any:
    """Make an op of a Python function over tensors; a decorator, with or without arguments.

    Parameters without a default are tensors, those with one are numbers. The body is torch: elementwise functions, reductions, matmul, rows
    of a table, changes of shape. It is traced once with torch.fx, and lowered to the plan's own ops for each set of shapes; chains of
    pointwise ops become one loop in what a target generates. dtype: "f32", "bf16" or "f16", how float inputs and results lie in memory.
    target: whose code runs where the kernel is called with numpy arrays. Raises UnsupportedError with the line that cannot be a kernel, and
    what is allowed; OptionError for parameters, dtypes and targets that are not known.
    """
    if function is None:
        return lambda one: Kernel(one, dtype, target)
    return Kernel(function, dtype, target)


def _array(given: Any) -> Array:
    if not isinstance(given, (np.ndarray, np.generic)):
        raise OptionError(
            f"A kernel was given {type(given).__name__} {given!r:.60}; all of its tensors must be numpy arrays, or all torch tensors."
        )
    array = np.ascontiguousarray(given) if np.ndim(given) else np.array(given)
    if not array.size:
        raise OptionError(f"A kernel was given an array of shape {list(array.shape)}, which is empty.")
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    if array.dtype not in (np.float32, np.int64, np.int32, np.int8, np.uint8, np.bool_):
        raise OptionError(f"A kernel was given an array of {array.dtype}; allowed are float32, int64, int32, int8, uint8 and bool.")
    return array


def _result(arrays: Sequence[Array]) -> Any:
    wide = [widened(one) for one in arrays]
    return wide[0] if len(wide) == 1 else tuple(wide)
