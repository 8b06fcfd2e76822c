"""Chains of pointwise ops for the selection of kernels: two as decoders have them, and the ops that take the most registers."""

from __future__ import annotations

from mixplan.targets.gpu.builds import BuildRequest
from mixplan.targets.gpu.lower.chain import BLOCK, MOST_LOADS, MOST_STORES

__all__ = ["chains"]

# Name: types of what is loaded, of what is stored, and the lines.
_CHAINS: dict[str, tuple[str, str, str]] = {
    "angles": (
        "*i64 *fp32",
        "*fp32 *fp32",
        "sizes 64; load i64 1 0; cast i64 v0 f32; load f32 0 1; mul f32 v1 v2; cos f32 v3; sin f32 v3; "
        "store f32 v4 64 1; store f32 v5 64 1",
    ),
    "broadcast": (
        "*fp32 *fp32 *u8",
        "*fp32 *i16",
        "sizes 32 128; load f32 6144 128 1; load f32 0 128 1; load bool 0 0 1; number f32 0.5; mul f32 v0 v1; gelu f32 v4; "
        "where f32 v2 v5 v3; cast f32 v6 bf16; store f32 v5 4096 128 1; store bf16 v7 4096 128 1",
    ),
    "parts": (
        "*fp32 *fp32",
        "*fp32",
        "sizes 32 192; index i64 0 0 1; number i64 128; lt i64 v0 v1; load f32 4096 128 1 if v2 0; ge i64 v0 v1; "
        "load f32 64 0 1 if v4 -128; where f32 v4 v5 v3; store f32 v6 6144 192 1",
    ),
    "powers": (
        "*fp32 *fp32",
        "*fp32",
        "sizes 4096; load f32 4096 1; load f32 4096 1; pow f32 v0 v1; fmod f32 v2 v0; atan2 f32 v3 v2; remainder f32 v4 v0; "
        "floor_div f32 v5 v1; store f32 v6 4096 1",
    ),
    "integers": (
        "*i64 *i64",
        "*i64 *u8",
        "sizes 4096; load i64 4096 1; load i64 4096 1; pow i64 v0 v1; fmod i64 v2 v0; remainder i64 v3 v2; shift_right i64 v4 v0; "
        "floor_div i64 v5 v0; lt i64 v0 v6; store i64 v6 4096 1; store bool v7 4096 1",
    ),
}


def chains() -> dict[str, BuildRequest]:
    """What to build, by name."""
    out = {}
    for name, (loads, stores, text) in _CHAINS.items():
        types = [
            *loads.split(),
            *[""] * (MOST_LOADS - len(loads.split())),
            *stores.split(),
            *[""] * (MOST_STORES - len(stores.split())),
            "i32",
        ]
        out[f"chain {name}"] = BuildRequest("chain", tuple(types), {"CHAIN": text.replace("; ", "\n"), "BLOCK": BLOCK})
    return out
