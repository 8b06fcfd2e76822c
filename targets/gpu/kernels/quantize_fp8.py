"""Dynamic quantization of activations to e4m3 with one scale per row, so that the largest becomes 448. Grid: (rows,)."""

import triton
import triton.language as tl

from mixplan.targets.gpu.kernels.common import encode_fp8

__all__ = ["quantize_fp8"]


@triton.jit
def quantize_fp8(x_ptr, q_ptr, scales_ptr, K: tl.constexpr, KP: tl.constexpr, X_STRIDE: tl.constexpr, BLOCK: tl.constexpr):
    """x f32 [rows, K], rows X_STRIDE apart, to q u8 [rows, KP] (0 behind K) and scales f32 [rows], as `quantize` in runtime/float8.py."""
    row = tl.program_id(0)
    k = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * X_STRIDE + k, mask=k < K, other=0.0)
    largest = tl.max(tl.abs(x), axis=0)
    scale = tl.where(largest < 7.888609052210118e-31, 1.0, largest / 448.0)
    tl.store(q_ptr + row * KP + k, encode_fp8(x * (1.0 / scale)), mask=k < KP)
    tl.store(scales_ptr + row, scale)
