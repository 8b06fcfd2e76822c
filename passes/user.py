"""A user's own passes: `module:function`, `module:function@after=NAME` or `module:function@before=NAME`."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from mixplan.passes.base import FunctionPass, Pass
from mixplan.runtime.errors import OptionError

__all__ = ["insert_user_passes", "load_user_pass"]

_FORM = "A pass is given as module:function, module:function@after=NAME or module:function@before=NAME."


def insert_user_passes(passes: Sequence[Pass], specs: Sequence[str]) -> list[Pass]:
    """The pipeline with the user's passes at their places; without a place a pass runs last. Several at one place run in the order given.

    NAME is a pass, or a stage, which stands for its last (after) or first (before) pass. Raises OptionError.
    """
    result = list(passes)
    behind: dict[str, Pass] = {}
    for spec in specs:
        what, _, where = spec.partition("@")
        one = load_user_pass(what)
        if any(other.name == one.name for other in result):
            raise OptionError(f"Pass {spec!r}: the pipeline has a pass named {one.name!r} already.")
        if not where:
            result.append(one)
            continue
        side, equals, name = where.partition("=")
        if side not in ("after", "before") or not equals:
            raise OptionError(f"Pass {spec!r}: the place {where!r} is not of the form after=NAME or before=NAME.", hint=_FORM)
        anchor = behind.get(where) if side == "after" else None
        at = result.index(anchor) if anchor is not None else _place(spec, result, side, name)
        result.insert(at + (side == "after"), one)
        behind[where] = one
    return result


def load_user_pass(what: str) -> Pass:
    """Import `module:function` as a pass named after itself. The function takes (graph, context) and returns a PassResult."""
    module_name, colon, function_name = what.partition(":")
    if not colon or not module_name or not function_name:
        raise OptionError(f"Pass {what!r} does not name a function.", hint=_FORM)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        hint = "The module must be on PYTHONPATH."
        raise OptionError(f"Pass {what!r}: module {module_name!r} cannot be imported: {error}.", hint=hint) from error
    function: Any = module
    for part in function_name.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        public = [name for name in dir(module) if not name.startswith("_") and callable(getattr(module, name))]
        near = difflib.get_close_matches(function_name, public, n=3)
        meant = f"Near names: {', '.join(near)}." if near else None
        raise OptionError(f"Pass {what!r}: module {module_name!r} has no function {function_name!r}.", hint=meant)
    return _as_pass(what, function)


def _as_pass(what: str, function: Callable[..., Any]) -> Pass:
    doc = (getattr(function, "__doc__", None) or "a user's pass").strip().splitlines()[0]
    name = getattr(function, "name", None)
    return FunctionPass(name if isinstance(name, str) else what, "user", doc, function)


def _place(spec: str, passes: Sequence[Pass], side: str, name: str) -> int:
    exact = [index for index, one in enumerate(passes) if one.name == name]
    stage = [index for index, one in enumerate(passes) if one.stage == name]
    found = exact or stage
    if not found:
        names = [one.name for one in passes]
        stages = list(dict.fromkeys(one.stage for one in passes))
        near = difflib.get_close_matches(name, [*names, *stages], n=1)
        hint = f"Did you mean {near[0]!r}?" if near else None
        raise OptionError(f"Pass {spec!r}: there is no pass {name!r}; stages: {', '.join(stages)}; passes: {', '.join(names)}.", hint=hint)
    return found[-1] if side == "after" else found[0]
