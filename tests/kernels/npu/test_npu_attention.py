"""Attention over past keys and a bias, against the op's reference over its own cache: two sequences, one of them in the middle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mixplan.runtime.devices.npu_attention import attention_inputs, past_of
from mixplan.runtime.devices.npu_buckets import Bucket, bucket_of
from mixplan.runtime.devices.npu_names import Mask, mask_of, past_kind
from mixplan.runtime.devices.reference_kv import ReferenceCache
from mixplan.runtime.dtypes import DType
from mixplan.runtime.hal import CacheSpec, Step
from mixplan.runtime.kv_format import KvFormat
from mixplan.runtime.ops import StepContext, op_spec
from mixplan.runtime.plan import AttentionLayer

HEADS, KV_HEADS, SIZE, VALUE_SIZE = 4, 2, 40, 36  # no whole groups of 32
POSITIONS = {0: range(40, 43), 3: range(2)}  # by slot; the test's five tokens
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 7},
    "chunked": {"window": 16, "mask": "chunked"},
    "softcap": {"softcap": 3.0},
    "sinks": {"sinks": True, "window": 9},
    "alibi": {"slopes": True},
    "f16 keys": {"kv": KvFormat.f16},
    "i8 keys": {"kv": KvFormat.i8},
    "i4 keys": {"kv": KvFormat.i4},
    "bf16 keys": {"kv": KvFormat.bf16},
    "i8 scores": {"kv": KvFormat.i8, "scores": "i8"},
    "heads of their own": {"heads": (KvFormat.f16, KvFormat.k8v4)},
}


def _array(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _step() -> Step:
    slots = np.repeat(list(POSITIONS), [len(at) for at in POSITIONS.values()]).astype(np.int32)
    positions = np.concatenate([list(at) for at in POSITIONS.values()]).astype(np.int32)
    tables = np.full((4, 2), -1, np.int32)
    tables[0], tables[3, 0] = [2, 0], 1
    return Step(
        token_ids=np.zeros(5, np.int32),
        positions=positions,
        sequences=slots,
        logit_rows=np.zeros(1, np.int32),
        sequence_lengths=positions,
        block_tables=tables,
    )


@pytest.mark.parametrize("case", CASES)
def test_attention(nodes: Any, run: Any, case: str) -> None:
    options, rng = dict(CASES[case]), np.random.default_rng(8)
    held = options.pop("kv", KvFormat.f32)
    extra = [options.pop(name, False) for name in ("sinks", "slopes")]
    layer = AttentionLayer(kv_heads=KV_HEADS, k_dim=SIZE, v_dim=VALUE_SIZE, dtype=held, heads=options.pop("heads", ()))
    nodes.attention = (layer,)
    q, k, v = (nodes.input(_array(rng, 1, 5, heads, size)) for heads, size in ((HEADS, SIZE), (KV_HEADS, SIZE), (KV_HEADS, VALUE_SIZE)))
    given = [nodes.const(_array(rng, HEADS) ** 2) if one else -1 for one in extra]
    outputs = nodes.node("attention", [q, k, v, *given], layer=0, scale=0.2, **options)
    step, spec = _step(), CacheSpec(pages=4, page_size=32, max_sequences=4, max_pages_per_sequence=2)
    caches = [ReferenceCache({0: layer}, spec) for _ in range(2)]
    before = StepContext(sequences=np.zeros(40, np.int32), positions=np.arange(40, dtype=np.int32))
    past_keys, past_values = _array(rng, 40, KV_HEADS, SIZE), _array(rng, 40, KV_HEADS, VALUE_SIZE)
    for cache in caches:
        cache.begin(step.block_tables)
        cache.append(0, past_keys, past_values, before)
    past, node = past_of(step), nodes.made[0]
    assert past.tokens == 40
    bucket = Bucket(5, 1, 48)
    kind = past_kind(layer)
    feeds = attention_inputs(step, past, bucket, caches[0], {0: DType(kind).numpy}, [mask_of(node)], bool(extra[1]))
    got, key, value = run(
        nodes, outputs, feeds=feeds, dims={"L": bucket.past, "S": bucket.past + 5}, also=["present_key_0", "present_value_0"]
    )
    context = StepContext(sequences=step.sequences, positions=step.positions, cache=caches[1])
    arrays = [None if i < 0 else nodes.arrays[i] for i in node.inputs]
    (wanted,) = op_spec("attention").reference(context, node.attrs, arrays)
    np.testing.assert_allclose(got, wanted, 2e-5, 2e-5)
    assert key.dtype == value.dtype == DType(kind).numpy
    np.testing.assert_array_equal(key, nodes.arrays[k][0].astype(key.dtype))


def test_padding_sees_itself_alone() -> None:
    step = _step()
    cache = ReferenceCache({}, CacheSpec(pages=1, page_size=32, max_sequences=4, max_pages_per_sequence=2))
    bias = attention_inputs(step, past_of(step), Bucket(16, 1, 128), cache, {}, [Mask("window", 0)], False)["attention_bias"]
    assert bias.shape == (16, 144) and np.isfinite(bias).all()
    seen = bias == 0
    assert seen[5:].sum() == 11 and seen[np.arange(5, 16), 128 + np.arange(5, 16)].all()
    assert seen[0].sum() == 41 and seen[2].sum() == 43 and seen[3].sum() == 1 and seen[4].sum() == 2


def test_buckets_grow_by_four() -> None:
    assert bucket_of(1, 1, 0, has_rows=True, has_past=True) == Bucket(1, 1, 128)
    assert bucket_of(17, 2, 129, has_rows=True, has_past=True) == Bucket(64, 16, 512)
    assert bucket_of(257, 0, 513, has_rows=True, has_past=True) == Bucket(1024, 1, 2048)
    assert bucket_of(3, 3, 9999, has_rows=False, has_past=False) == Bucket(16, 1, 128)
