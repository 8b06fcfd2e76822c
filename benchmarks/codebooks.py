"""How the codebooks of the nonuniform formats were made: `python benchmarks/codebooks.py` prints runtime/codebooks.py's table.

Groups of 32 numbers are drawn from Student's law with FREEDOM degrees of freedom, whose tails are heavier than a normal's, as those of
trained weights are; nothing is fitted to any model. A group is divided by minus its element of largest magnitude, which so comes to
lie at -1. Then, over and over (Lloyd, Least squares quantization in PCM, 1982): each group takes the scale, of either sign, under which
the codebook suits it best, and each entry of the codebook moves to the mean of what it stands for, a group counting by its scale's square.
Entries are kept in units of 1/127 of the largest, so that they are int8.
"""

from __future__ import annotations

import argparse

import torch

FREEDOM = 4.0
GROUP = 32
FACTORS = [sign * (0.7 + 0.05 * i) for i in range(9) for sign in (1, -1)]


def groups(count: int, freedom: float) -> torch.Tensor:
    """f32 [count, GROUP], each group's largest element at -1."""
    torch.manual_seed(0)
    normal = torch.randn(count, GROUP)
    x = normal / (torch.distributions.Chi2(freedom).sample((count, GROUP)) / freedom).sqrt()
    return -x / x.gather(1, x.abs().argmax(1, keepdim=True))


def suited(x: torch.Tensor, book: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each group's best scale [n, 1], and its squared error [n]."""
    borders = (book[1:] + book[:-1]) / 2
    least = torch.full((len(x),), torch.inf)
    scale = torch.ones(len(x))
    for factor in FACTORS:
        error = (book[torch.bucketize(x / factor, borders)] * factor - x).square().sum(1)
        scale = torch.where(error < least, factor, scale)
        least = torch.minimum(error, least)
    return scale[:, None], least


def lloyd(x: torch.Tensor, bits: int, rounds: int) -> tuple[list[int], float]:
    """A codebook in units of 1/127, and the noise it leaves, as a part of the power."""
    levels = 1 << bits
    book = torch.linspace(-1.0, 1.0 - 2.0 / levels, levels)
    for _ in range(rounds):
        scale, _ = suited(x, book)
        z = x / scale
        code = torch.bucketize(z, (book[1:] + book[:-1]) / 2).reshape(-1)
        weight = scale.square().expand_as(z).reshape(-1)
        total = torch.zeros(levels).index_add_(0, code, weight)
        mean = torch.zeros(levels).index_add_(0, code, z.reshape(-1) * weight) / total.clamp(min=1e-9)
        book = torch.where(total > 0, mean, book).sort().values
        book = book / book.abs().max()
        if book[-1] == 1:
            book = -book.flip(0)
    book = (book * 127).round() / 127
    return [round(v * 127) for v in book.tolist()], float(suited(x, book)[1].sum() / x.square().sum())


def main() -> None:
    """Make and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--freedom", type=float, default=FREEDOM)
    parser.add_argument("--groups", type=int, default=10000)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    x = groups(options.groups, options.freedom)
    for bits in (2, 3, 4, 5):
        book, noise = lloyd(x, bits, options.rounds)
        print(f"{bits}: {book},  # noise {noise:.5f}", flush=True)


if __name__ == "__main__":
    main()
