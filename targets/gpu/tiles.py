"""Tile shapes of the matrix and attention kernels, by architecture and by what is multiplied.

The table's entries are chosen so that every build fits into the registers and the shared memory of its architecture (a test builds them);
none of them was timed on hardware yet. Where a GPU is present, `--tune` times others (tuning/), and what won takes the table's place by way
of `Arch.tuned`, under the keys that are made here.
"""

from __future__ import annotations

from mixplan.runtime.formats import WeightFormat
from mixplan.targets.gpu.arch import Arch
from mixplan.targets.gpu.tile import Tile

__all__ = ["SIZES", "Tile", "attention_tiles", "gemm_tile", "product_kind"]

SIZES: tuple[tuple[str, int, int], ...] = (("decode", 1, 16), ("small", 17, 64), ("large", 65, 1 << 30))
"""Classes of steps, by their number of rows (from, to): each has a launch of its own."""


# (class, kind) -> tile; kinds: a16 (bf16 products), a16x (the same, of formats that take more registers to unpack: two planes, codebooks,
# zero points or minima), f32 (exact products, on the ordinary units), a8 (integers), fp8 (8-bit floats on both sides).
_NVIDIA: dict[tuple[str, str], Tile] = {
    ("decode", "a16"): Tile(16, 64, 128),
    ("small", "a16"): Tile(64, 64, 64),
    ("large", "a16"): Tile(128, 128, 64, warps=8),
    ("decode", "a16x"): Tile(16, 64, 64),
    ("small", "a16x"): Tile(64, 64, 64),
    ("large", "a16x"): Tile(64, 64, 64),
    ("decode", "f32"): Tile(16, 32, 32),
    ("small", "f32"): Tile(32, 64, 32),
    ("large", "f32"): Tile(64, 64, 32, warps=8),
    ("decode", "a8"): Tile(16, 64, 128),
    ("small", "a8"): Tile(64, 64, 64),
    ("large", "a8"): Tile(128, 128, 64, warps=8),
    ("decode", "fp8"): Tile(16, 64, 128),
    ("small", "fp8"): Tile(64, 64, 64),
    ("large", "fp8"): Tile(128, 128, 64, warps=8),
}
# 64 kB of shared memory and wavefronts of 64: smaller tiles, two stages.
_AMD: dict[tuple[str, str], Tile] = {
    key: Tile(min(tile.m, 64), min(tile.n, 64), min(tile.k, 64), warps=4, stages=2) for key, tile in _NVIDIA.items()
}
_MOST_SPLITS = 8


def gemm_tile(arch: Arch, size: str, kind: str, packed_rows: int, columns: int, group: int, bits: int = 0) -> Tile:
    """The tile of a product with [packed_rows, columns] of scale group `group` (0: per row) in steps of class `size`; bits: of a weight.

    Small steps have one tile of rows, so their columns are split until each unit has about two programs.
    """
    table = _NVIDIA if arch.name.startswith("sm_") else _AMD
    tile = table[size, kind]
    k = min(tile.k, group) if kind in ("a8", "fp8") and group else tile.k
    split = 1
    if size != "large":
        programs = -(-packed_rows // tile.n)
        steps = -(-columns // k)
        while split < _MOST_SPLITS and programs * split < arch.units and split * 4 <= steps:
            split *= 2
    found = Tile(tile.m, tile.n, k, split, tile.warps, tile.stages)
    key = f"gemm {size} {kind} {packed_rows}x{columns} group {group} bits {bits}"
    return found if arch.tuned is None else arch.tuned.get(key, found)


def product_kind(fmt: WeightFormat) -> str:
    """The table's kind for float activations with weights of this format."""
    if fmt.bits == 32:
        return "f32"
    return "a16x" if fmt.nonuniform or not fmt.symmetric or fmt.bits in (3, 5, 6) else "a16"


def attention_tiles(arch: Arch, dim: int, held: str) -> tuple[Tile, Tile]:
    """(decode, prefill) for heads of `dim` elements in a cache of format `held`. Of a decode tile m is nothing, split the parts of a
    context.
    """
    found = _attention_table(arch, dim, held)
    if arch.tuned is None:
        return found
    return arch.tuned.get(f"attention decode {held} {dim}", found[0]), arch.tuned.get(f"attention prefill {held} {dim}", found[1])


def _attention_table(arch: Arch, dim: int, held: str) -> tuple[Tile, Tile]:
    coded, four_bits = held in ("i8", "i4", "k8v4"), held in ("i4", "k8v4")
    nvidia = arch.name.startswith("sm_")
    if held == "f32":
        return Tile(16, 32, 0, split=8, stages=1), Tile(16, 16, 0, stages=1)
    # Codes become floats in registers, of which more warps have more.
    decode = Tile(16, 32 if four_bits or dim > 128 else 64, 0, split=8, warps=8 if four_bits else 4, stages=1 if dim > 128 else 2)
    if dim > 128:
        return decode, Tile(32, 32, 0, warps=8 if coded else 4, stages=1)
    return decode, Tile(64, 64 if nvidia else 32, 0, warps=8 if coded and nvidia else 4, stages=2 if nvidia else 1)
