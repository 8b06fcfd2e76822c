"""What is known of one layer's input x [.., K]: how large its columns are, how they hang together, and what rounding it would cost."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["Calibration", "InputStatistics"]

# Added to the Hessian's diagonal, as a part of its mean: columns that hardly vary would make the factor meaningless (Frantar et al., 2022).
_DAMPING = 0.01


@dataclass(eq=False)
class InputStatistics:
    """moments: E[x_j^2], f32 [K]. blocks: the diagonal blocks of E[x x^T], each f32 [B, B], from column 0 on, together K columns; none
    where only moments were wanted. rounding: for a group size of int8 activations (0: whole rows), the mean square error [G] of one of a
    group's columns. tokens: rows of x that were seen."""

    moments: Tensor
    blocks: tuple[Tensor, ...] = ()
    rounding: dict[int, Tensor] = field(default_factory=dict)
    tokens: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _undivided: tuple[InputStatistics, Tensor] | None = field(default=None, repr=False)

    def factors(self) -> list[Tensor]:
        """For each block the upper Cholesky factor of its damped inverse, f32 [B, B]: what error compensation needs (gptq.py).

        Dead columns, whose moment is 0, stand alone. The last used factors are kept, up to 1 GiB. With H = U^-1 U^-T and H divided by s on
        both sides, U's columns are multiplied by s: nothing is factored again.
        """
        if self._undivided is not None:
            whole, by = self._undivided
            made, start = [], 0
            for factor in whole.factors():
                made.append(factor * by[start : start + len(factor)])
                start += len(factor)
            return made
        with self._lock:
            return _RECENT.get(self)

    def divided(self, by: Tensor) -> InputStatistics:
        """Of the input x / by, f32 [K]. A group's rounding error is that of its largest column, by the moments of these."""
        moments = self.moments / (by * by)
        blocks, start = [], 0
        for block in self.blocks:
            part = by[start : start + len(block)]
            blocks.append(block / (part[:, None] * part))
            start += len(block)
        rounding = {}
        for group, errors in self.rounding.items():
            largest = [_largest(values, group, len(errors)) for values in (self.moments, moments)]
            rounding[group] = errors * torch.where(largest[0] > 0, largest[1] / largest[0], torch.ones(()))
        return InputStatistics(moments, tuple(blocks), rounding, self.tokens, _undivided=(self, by))

    def without_hessians(self) -> InputStatistics:
        """The same without blocks."""
        return InputStatistics(self.moments, (), self.rounding, self.tokens)

    def loss(self, error: Tensor) -> Tensor:
        """E[(d x)^2] for each row d of a weight's error [n, K]: f32 [n]. Without blocks, columns count one by one."""
        if not self.blocks:
            return (error * error) @ self.moments
        total = error.new_zeros(error.shape[0])
        start = 0
        for block in self.blocks:
            part = error[:, start : start + len(block)]
            total += ((part @ block) * part).sum(1)
            start += len(block)
        return total


def _largest(values: Tensor, group: int, groups: int) -> Tensor:
    """The largest of each group of columns, [groups]; group 0 is all of them."""
    size = group or len(values)
    padded = torch.nn.functional.pad(values, (0, groups * size - len(values)))
    return padded.reshape(groups, size).amax(1)


@dataclass(frozen=True)
class Calibration:
    """inputs: by layer, as overrides name it; layers on one input share the record. tokens: of the text."""

    inputs: dict[str, InputStatistics]
    tokens: int = 0


class _Recent:
    """Factors of the layers that were asked for last, each computed once: a search needs them for every plan that it builds."""

    def __init__(self, limit: int) -> None:
        self._held: OrderedDict[int, tuple[InputStatistics, list[Tensor]]] = OrderedDict()
        self._limit = limit
        self._lock = threading.Lock()

    def get(self, inputs: InputStatistics) -> list[Tensor]:
        """Of one layer; called while its lock is held."""
        with self._lock:
            known = self._held.get(id(inputs))
            if known is not None:
                self._held.move_to_end(id(inputs))
                return known[1]
        made = [_factor(block) for block in inputs.blocks]
        with self._lock:
            # The record itself is held too, so that its id stays its own.
            self._held[id(inputs)] = (inputs, made)
            while len(self._held) > 1 and sum(one.nbytes for _, factors in self._held.values() for one in factors) > self._limit:
                self._held.popitem(last=False)
        return made


# Bytes: as many as all Hessians may take (collect.py).
_RECENT = _Recent(1 << 30)


def _factor(block: Tensor) -> Tensor:
    h = block.double().clone()
    diagonal = h.diagonal()
    mean = diagonal.mean()
    dead = diagonal <= 0
    diagonal[dead] = 1.0
    diagonal += _DAMPING * (mean if bool(mean > 0) else 1.0)
    lower = torch.linalg.cholesky(h)
    return torch.linalg.cholesky(torch.cholesky_inverse(lower), upper=True).float()
