"""A worker that computes nothing: each step takes as long as its config says. Started by the tests as a peer's worker is."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.compare.workers.protocol import Worker, main


class Fake(Worker):
    """Says of every entry of a vocabulary of 1024 that it is equally likely."""

    def first(self, ids):
        if self.config.get("fails"):
            raise RuntimeError("no such prompt")
        sys.stdout.write("noise on stdout is not part of the protocol\n")
        return len(ids)

    def decode(self, ids, steps):
        if self.config.get("dies"):
            sys.stderr.write("last words\n")
            sys.stderr.flush()
            raise SystemExit(3)
        return [self.config["step_seconds"]] * steps

    def batch(self, prompts, steps):
        assert len({tuple(ids) for ids in prompts}) == len(prompts)
        return [self.config["step_seconds"] * 2] * steps

    def logits(self, ids):
        return np.zeros((len(ids), 1024), np.float32)

    def facts(self):
        return {"version": "fake 1", "weights_bytes": 1}

    def other(self, request):
        if request["do"] == "ceilings":
            return {"read": 50.0, "int8_vnni": 1000.0}
        if request["do"] == "overhead":
            return {"share": 0.01}
        return super().other(request)


if __name__ == "__main__":
    main(Fake)
