"""`--scheme source`: the scheme of each parameter that keeps what a GGUF file has, and what had to be changed after all."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mixplan.compiler.decisions import layer_name
from mixplan.compiler.frontends import Captured
from mixplan.compiler.stored import StoredRows
from mixplan.compiler.weights.base import BlockSource, WeightSource
from mixplan.compiler.weights.gguf_blocks import BLOCK, BLOCK_TYPES
from mixplan.passes.precision.covering import covering
from mixplan.passes.precision.schemes import Scheme, parse_scheme
from mixplan.runtime.errors import OptionError

__all__ = ["SourceSchemes", "source_schemes"]

_ROWS = 1 << 10
_SHOWN = 3


class SourceSchemes:
    """schemes: by layer, what holds it, and its types in the file. rows: where its codes come from."""

    def __init__(self, schemes: Mapping[str, tuple[Scheme, str]], rows: StoredRows) -> None:
        self.schemes = schemes
        self.rows = rows

    def notes(self) -> list[str]:
        """After the weights were written: what is not to the bit as the file has it."""
        found = []
        if self.rows.rounded:
            found.append(
                f"{self._some(self.rows.rounded)}: codes are the file's; scales and minima, there products of two numbers, "
                "were rounded to f16."
            )
        if self.rows.apart:
            found.append(
                f"{self._some(self.rows.apart)}: no format holds the file's blocks; rounded to 8 bits in groups of {BLOCK}. "
                "To lose nothing, give such layers the scheme FP32."
            )
        return found

    def _some(self, names: Mapping[str, None]) -> str:
        """The types, and some of the parameters, of a list."""
        types = ", ".join(dict.fromkeys(kind for name in sorted(names) for kind in self.rows.types(name)))
        shown = ", ".join(sorted(names)[:_SHOWN])
        return f"{types} ({shown}{f' and {len(names) - _SHOWN} more' if len(names) > _SHOWN else ''})"


def source_schemes(captured: Captured, activation: str) -> SourceSchemes:
    """Of every parameter with rows and columns. activation: "i8", or "f32". OptionError where the checkpoint is no GGUF file."""
    weights = captured.weights
    if not isinstance(weights, BlockSource):
        raise OptionError(
            f"Scheme source takes over the blocks of a GGUF file, and {captured.source.name} is none.",
            hint="Name a scheme, such as W4A16, or compile a .gguf file.",
        )
    schemes = {}
    for name in weights.names():
        if len(weights.shape(name)) < 2:
            continue
        types = weights.types(name)
        scheme = covering([_scheme(weights, name, kind, activation) for kind in dict.fromkeys(types)])
        schemes[layer_name(name)] = (scheme, f"{' and '.join(dict.fromkeys(types))} in the file")
    return SourceSchemes(schemes, StoredRows(weights))


def _scheme(weights: WeightSource, name: str, kind: str, activation: str) -> Scheme:
    """What holds a tensor of this type."""
    if kind == "F32":
        return parse_scheme("FP32")
    if kind in ("F16", "BF16"):
        return parse_scheme("BF16" if kind == "BF16" or _is_bf16(weights, name) else "FP32")
    blocks = BLOCK_TYPES.get(kind)
    suffix = f"A{8 if activation == 'i8' else 16}:g{BLOCK}"
    if blocks is None:
        # The rounding of 8 bits is far below that of any of these.
        return parse_scheme(f"W8{suffix}")
    return parse_scheme(f"W{blocks.bits}{suffix}{',min' if blocks.minimum else ''}")


def _is_bf16(weights: WeightSource, name: str) -> bool:
    """Whether every number of the tensor is a bf16. Seldom so of f16, which the first rows tell."""
    rows = weights.shape(name)[0]
    for start in range(0, rows, _ROWS):
        values = torch.from_numpy(weights.read_rows(name, start, min(start + _ROWS, rows)))
        if not torch.equal(values.bfloat16().float(), values):
            return False
    return True
