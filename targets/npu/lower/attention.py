"""Attention over the KV cache, whose past comes in and whose new keys and values go out.

Keys of all sequences of the step lie one after another, and a bias that the device makes hides from each query what is not its own:
0 where it sees, a large negative number where it does not. So the graph knows nothing of sequences, pages or windows, and its shapes are
static.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixplan.runtime.devices.npu_names import DISTANCE, layer_names, mask_of, past_kind
from mixplan.runtime.plan import AttentionLayer, Node
from mixplan.targets.npu.lower.base import Lowering, attrs_of
from mixplan.targets.npu.lower.kv_rounding import as_stored

if TYPE_CHECKING:
    from mixplan.targets.npu.graph import Graph

__all__ = ["ATTENTION"]

_LEAST = 1e-30


def _together(g: Graph, new: str, names: tuple[str, str], layer: AttentionLayer, size: int, *, keys: bool) -> str:
    """Past and new keys (or values), f32 [S, heads, size]. New ones go out as they are, and are used as the cache will hold them."""
    kind, heads = past_kind(layer), layer.kv_heads
    fresh = g.reshape(new, (-1, heads, size))  # one token a row
    before = g.add_input(names[0], kind, ["L", heads, size])
    if kind == "f16":
        fresh = g.cast(fresh, kind)
        g.add_output(names[1], fresh, kind, ["T", heads, size])
        return g.cast(g.op("Concat", before, fresh, axis=0), "f32")
    stored = as_stored(g, fresh, layer, size, keys=keys)
    g.add_output(names[1], stored if g.gives_stored else fresh, kind, ["T", heads, size])
    return g.op("Concat", before, stored, axis=0)


def _emit(g: Graph, node: Node) -> None:
    attrs = attrs_of(node)
    layer = attrs["layer"]
    _, _, heads, size = g.shape(node.inputs[0])
    kv_heads, value_size = g.shape(node.inputs[1])[2], g.shape(node.inputs[2])[3]
    assert isinstance(heads, int) and isinstance(size, int) and isinstance(kv_heads, int) and isinstance(value_size, int)
    held, names = g.plan.attention[layer], layer_names(layer)
    keys = _together(g, g.value(node.inputs[1]), (names[0], names[2]), held, size, keys=True)
    values = _together(g, g.value(node.inputs[2]), (names[1], names[3]), held, value_size, keys=False)
    # [Hkv, heads of each, T, size] times [Hkv, 1, size, S].
    given = g.value(node.inputs[0])
    if attrs["scores"] == "i8":
        given = _rounded(g, given)
    query = g.op("Transpose", g.reshape(given, (-1, kv_heads, heads // kv_heads, size)), perm=[1, 2, 0, 3])
    keys = g.op("Unsqueeze", g.op("Transpose", keys, perm=[1, 2, 0]), g.integers([1]))
    values = g.op("Unsqueeze", g.op("Transpose", values, perm=[1, 0, 2]), g.integers([1]))
    scores = g.op("Mul", g.op("MatMul", query, keys), g.number(attrs["scale"]))
    if attrs["softcap"]:
        cap = g.number(attrs["softcap"])
        scores = g.op("Mul", g.op("Tanh", g.op("Div", scores, cap)), cap)
    sinks, slopes = [*node.inputs, -1, -1][3:5]
    if slopes >= 0:
        each = g.reshape(g.value(slopes), (kv_heads, heads // kv_heads, 1, 1))
        scores = g.op("Sub", scores, g.op("Mul", each, g.add_input(DISTANCE, "f32", ["T", "S"])))
    scores = g.op("Add", scores, g.add_input(mask_of(node).name, "f32", ["T", "S"]))
    if sinks >= 0:
        # One more key that every query sees and that has no value.
        one = g.op("Mul", g.part(query, 3, 0, 1), g.number(0.0))
        column = g.op("Add", one, g.reshape(g.value(sinks), (kv_heads, heads // kv_heads, 1, 1)))
        weights = g.op("Softmax", g.op("Concat", column, scores, axis=3), axis=3)
        weights = g.part(weights, 3, 1, -1)
    else:
        weights = g.op("Softmax", scores, axis=3)
    made = g.op("Transpose", g.op("MatMul", weights, values), perm=[2, 0, 1, 3])
    g.bind(node.outputs[0], g.reshape(made, (1, -1, heads, value_size)))


def _rounded(g: Graph, query: str) -> str:
    """Queries [1, T, heads, size] as int8 numbers times a scale of each token and head; see runtime/ops/attention.py."""
    largest = g.reduce("ReduceMax", g.op("Abs", query), [3], keepdims=True)
    inverse = g.op("Where", g.op("Greater", largest, g.number(_LEAST)), g.op("Div", g.number(127.0), largest), g.number(0.0))
    return g.op("Mul", g.op("Round", g.op("Mul", query, inverse)), g.op("Div", largest, g.number(127.0)))


ATTENTION: dict[str, Lowering] = {"attention": Lowering(_emit)}
