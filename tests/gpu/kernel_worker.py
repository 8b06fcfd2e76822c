"""Runs kernels for the tests in a process of its own: in the interpreter on CPU tensors, or on the GPU where there is one.

Triton decides on its import whether it interprets, for the whole process. Reads and writes length-prefixed pickles of
(kernel, grid, arguments, compile-time arguments) and of the arrays among the arguments, as they are after the run.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import traceback
from typing import BinaryIO

import numpy as np
import torch


def _send(to: BinaryIO, message: object) -> None:
    data = pickle.dumps(message)
    to.write(len(data).to_bytes(8, "little") + data)
    to.flush()


def _run(device: str, name: str, grid: tuple[int, ...], arguments: list[object], options: dict[str, object]) -> list[object]:
    module, _, function = name.partition(":")
    kernel = getattr(importlib.import_module(f"mixplan.targets.gpu.kernels.{module}"), function or module)
    given = [torch.from_numpy(a).to(device) if isinstance(a, np.ndarray) else a for a in arguments]
    kernel[grid](*given, **options)
    return [g.cpu().numpy() for g in given if isinstance(g, torch.Tensor)]


def main() -> None:
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    source = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a kernel prints must not come between the answers
    while head := source.read(8):
        request = pickle.loads(source.read(int.from_bytes(head, "little")))
        try:
            answer: object = _run(device, *request)
        except Exception:
            answer = traceback.format_exc()
        _send(answers, answer)


if __name__ == "__main__":
    main()
