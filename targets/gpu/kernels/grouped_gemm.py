"""The products of a mixture of experts: each tile of rows with the weight of its expert. Grid: (tiles, ceil(N / BLOCK_N))."""

import triton
import triton.language as tl

from mixplan.targets.gpu.kernels.product import float_product

__all__ = ["grouped_gemm"]


@triton.jit
def grouped_gemm(
    x_ptr,
    order_ptr,
    experts_ptr,
    w_ptr,
    s_ptr,
    z_ptr,
    codebook_ptr,
    bias_ptr,
    y_ptr,
    J: tl.constexpr,
    SHARED: tl.constexpr,
    E: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    KP: tl.constexpr,
    BLOCKS: tl.constexpr,
    X_STRIDE: tl.constexpr,
    BITS: tl.constexpr,
    NONUNIFORM: tl.constexpr,
    GROUP: tl.constexpr,
    TWO_LEVEL: tl.constexpr,
    MINIMUM: tl.constexpr,
    DOT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """order and experts as `route` makes them; x f32 [T, K] where SHARED (a token's choices read the same row), else [T * J, K].

    Weights as in `gemm_a16`, BLOCKS blocks an expert; bias f32 [E, N] or None; y f32 [T * J, N].
    """
    tile = tl.program_id(0)
    e = tl.load(experts_ptr + tile)
    if e < 0:
        return
    pair = tl.load(order_ptr + tile * BLOCK_M + tl.arange(0, BLOCK_M))
    live = pair >= 0
    pair = tl.where(live, pair, 0)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    if SHARED:
        row = pair // J
    else:
        row = pair
    # The id E stands for no expert: no step is made, and zeros are stored.
    STEPS: tl.constexpr = (KP + BLOCK_K - 1) // BLOCK_K
    steps = tl.where(e < E, STEPS, 0)
    e = tl.minimum(e, E - 1)
    block = e * BLOCKS + tl.minimum(n // 16, BLOCKS - 1)
    ROWS: tl.constexpr = KP * BITS // 32
    GROUPS: tl.constexpr = KP // GROUP if GROUP else 1
    acc = float_product(
        x_ptr,
        row * X_STRIDE,
        live,
        w_ptr,
        s_ptr,
        z_ptr,
        codebook_ptr,
        block,
        n % 16,
        0,
        steps,
        K,
        ROWS,
        BITS,
        NONUNIFORM,
        GROUP,
        GROUPS,
        TWO_LEVEL,
        MINIMUM,
        DOT,
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
    )
    if bias_ptr is not None:
        acc += tl.where(steps > 0, tl.load(bias_ptr + e * N + n, mask=n < N, other=0.0), 0.0)[None, :]
    tl.store(y_ptr + pair[:, None] * N + n[None, :], acc, mask=live[:, None] & (n < N)[None, :])
