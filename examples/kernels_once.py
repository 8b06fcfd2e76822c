"""Ops written once, as Python functions: checked against numpy, run on a target, and put into a model by one line each.

    mixplan compile MODEL -o snake.plan --pass kernels_once:snake_for_silu@after=drop_noops

or run this file: `python examples/kernels_once.py MODEL` shows what each kernel becomes, and what the first changes in a model.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import mixplan


@mixplan.kernel
def snake(x: Tensor, alpha: float = 0.5) -> Tensor:
    """An activation: x + sin^2(alpha x) / alpha (Ziyin et al., NeurIPS 2020)."""
    return x + torch.sin(alpha * x) ** 2 / alpha


@mixplan.kernel(dtype="bf16")
def centered_norm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """A norm: rows less their mean, over their root mean square."""
    centered = x - x.mean(-1, keepdim=True)
    return centered * torch.rsqrt(centered.square().mean(-1, keepdim=True) + eps) * weight


@mixplan.kernel
def four_bit_product(x: Tensor, weight: Tensor) -> Tensor:
    """A product with a weight rounded to 15 levels a row; of a constant weight, codes are made when the model is compiled."""
    scale = weight.abs().amax(1, keepdim=True) / 7
    return torch.matmul(x, torch.round(weight / scale).t()) * scale.t()


snake_for_silu = snake.replacing(torch.ops.aten.silu.default)
norm_for_rms = centered_norm.replacing(torch.ops.mixplan.rms_norm.default)
four_bits_down = four_bit_product.replacing(
    torch.ops.aten.linear.default, match=lambda node: node.args[:2] if "down_proj" in str(node.args[1]) else None
)


def main() -> None:
    x = np.random.default_rng(0).standard_normal((5, 64), np.float32)
    for kernel, given in ((snake, (x,)), (centered_norm, (x, x[0])), (four_bit_product, (x, x[:3]))):
        off = np.abs(kernel(*given) - kernel.reference(*given)).max()
        print(f"{kernel}: {' '.join(kernel.ops(*given))}; off by {off:.1g} from numpy")
    with tempfile.TemporaryDirectory() as folder:
        passes = ["kernels_once:snake_for_silu@after=drop_noops"]
        report = mixplan.compile(Path(sys.argv[1]), output=Path(folder) / "x", scheme="FP32", passes=passes, isa=("native",))
        print(f"in the model: {report.matches[passes[0].partition('@')[0]]} times")


if __name__ == "__main__":
    main()
