"""Products of two activations, in f32. Grid: (ceil(M / BLOCK_M), ceil(N / BLOCK_N), batch)."""

import triton
import triton.language as tl

from mixplan.targets.gpu.kernels.common import dot

__all__ = ["matmul"]


@triton.jit
def matmul(
    a_ptr,
    b_ptr,
    y_ptr,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    A_BATCH: tl.constexpr,
    A_ROW: tl.constexpr,
    A_COLUMN: tl.constexpr,
    B_BATCH: tl.constexpr,
    B_ROW: tl.constexpr,
    B_COLUMN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """a f32 [batch, M, K] and b f32 [batch, K, N] under any strides (0 where broadcast); y f32 [batch, M, N]."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    batch = tl.program_id(2).to(tl.int64)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        at = batch * A_BATCH + m[:, None] * A_ROW + k[None, :] * A_COLUMN
        a = tl.load(a_ptr + at, mask=(m < M)[:, None] & (k < K)[None, :], other=0.0)
        at = batch * B_BATCH + k[:, None] * B_ROW + n[None, :] * B_COLUMN
        b = tl.load(b_ptr + at, mask=(k < K)[:, None] & (n < N)[None, :], other=0.0)
        acc = dot(a, b, acc, "f32")
    tl.store(y_ptr + (batch * M + m)[:, None] * N + n[None, :], acc, mask=(m < M)[:, None] & (n < N)[None, :])
