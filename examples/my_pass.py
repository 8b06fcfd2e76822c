"""A pass of one's own: square ReLU instead of SiLU, and what it does to the output.

    mixplan compile MODEL -o relu.plan --pass my_pass:relu_for_silu@after=drop_noops

or run this file: `python examples/my_pass.py MODEL` compiles with and without the pass and compares the logits.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import fx

import mixplan
from mixplan.passes.base import PassContext, PassResult


def relu_for_silu(graph: fx.GraphModule, context: PassContext) -> PassResult:
    """Replace every SiLU by ReLU, whose output is mostly zeros."""
    matches = 0
    for node in graph.graph.nodes:
        if node.target is torch.ops.aten.silu.default:
            node.target = torch.ops.aten.relu.default
            matches += 1
    graph.recompile()
    return PassResult(graph, changed=matches > 0, matches=matches)


def main() -> None:
    source = Path(sys.argv[1])
    tokens = np.arange(8)
    logits = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, passes in (("plain", ()), ("relu", ("my_pass:relu_for_silu@after=drop_noops",))):
            report = mixplan.compile(source, output=Path(folder) / name, scheme="FP32", passes=passes, isa=("native",))
            print(f"{name}: {report.effective_bits:.2f} bits per weight, rewrites {report.matches.get('my_pass:relu_for_silu', 0)}")
            with mixplan.runtime.load(Path(folder) / name) as model:
                logits[name] = model.step(tokens, tokens, np.zeros(8, int), logits="all")
    print(f"largest change of a logit: {np.abs(logits['plain'] - logits['relu']).max():.4f}")


if __name__ == "__main__":
    main()
