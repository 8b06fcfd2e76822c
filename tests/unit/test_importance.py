"""Calibration: what each column of a weight meets, and that rounding heeds it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from mixplan.compiler.calibration.statistics import InputStatistics
from mixplan.compiler.constants import Constants, Parameter
from mixplan.compiler.frontends import open_checkpoint
from mixplan.compiler.importance import calibration_ids, input_moments
from mixplan.compiler.quantize import quantize_rows
from mixplan.compiler.replay import Replay, load_parameters
from mixplan.runtime.formats import WeightFormat


def test_moments_are_those_of_the_model(tiny_llama_dir: Path) -> None:
    """Every linear layer is seen once, with the mean square of the input that torch gives it, on weights that are read on the way."""
    checkpoint = open_checkpoint(tiny_llama_dir)
    try:
        captured = checkpoint.capture()
        moments = input_moments(captured)
        ids = calibration_ids(captured, 512)
        load_parameters(captured.graph, captured.weights)
        seen: dict[str, torch.Tensor] = {}

        class Spy(Replay):
            def run_node(self, n: torch.fx.Node) -> object:
                if n.target is torch.ops.aten.linear.default:
                    x = self.env[n.args[0]]  # type: ignore[index]
                    seen[str(n.args[1].target)] = x.reshape(-1, x.shape[-1]).square().mean(0)  # type: ignore[union-attr]
                return super().run_node(n)

        Spy(captured.graph).step(ids, list(range(len(ids))), [0] * len(ids))
    finally:
        checkpoint.close()
    assert moments.keys() == seen.keys() and len(moments) > 7
    for name, got in moments.items():
        torch.testing.assert_close(got, seen[name])


def test_rounding_heeds_importance() -> None:
    """The error that counts is smaller than without, for symmetric codes and with zero points."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(64, 128, generator=generator)
    importance = torch.rand(128, generator=generator) ** 8
    for symmetric in (True, False):
        fmt = WeightFormat.of("i4", 32, symmetric)
        errors = []
        for given in (None, importance):
            made = quantize_rows(fmt, rows, "w", None if given is None else InputStatistics(given))
            zeros = 8.0 if made.zeros is None else np.repeat(made.zeros.astype(np.float32), 32, 1)
            values = (made.codes.astype(np.float32) - zeros) * np.repeat(made.scales.astype(np.float32), 32, 1)
            errors.append(float((((torch.from_numpy(values) - rows) ** 2) * importance).sum()))
        assert errors[1] < 0.9 * errors[0]


def test_importance_of_expressions() -> None:
    """Only of weights as they are in the checkpoint."""
    known = torch.arange(1.0, 5.0)
    constants = Constants(None, {"a": known})
    assert constants.inputs(Parameter("a", (8, 4))).moments is known
    assert constants.inputs(Parameter("b", (8, 4))) is None
