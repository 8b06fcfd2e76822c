"""Drive the runtime step by step: two sequences of different lengths in one call, then one token of each.

    python examples/ragged_steps.py PLAN

This is what a server does: prefill, decode and continuous batching are the same call with other tokens.
"""

import sys

import numpy as np

from mixplan import runtime


def main() -> None:
    with runtime.load(sys.argv[1]) as model:
        vocabulary = model.plan.model.vocab_size
        first, second = np.arange(5) % vocabulary, np.arange(3) % vocabulary

        # Prefill both prompts together. "last" asks for the logits after each sequence's last token.
        logits = model.step(
            token_ids=np.concatenate([first, second]),
            positions=np.concatenate([np.arange(5), np.arange(3)]),
            sequences=np.array([0] * 5 + [1] * 3),
            logits="last",
        )
        print("prefill:", logits.shape)

        # Decode: one token of each sequence, at its next position.
        for _ in range(4):
            tokens = logits.argmax(axis=-1)
            positions = [model.length(0), model.length(1)]
            logits = model.step(tokens, positions, [0, 1])
            print("decoded:", tokens.tolist(), "lengths:", model.length(0), model.length(1))

        model.free(0)
        model.free(1)


if __name__ == "__main__":
    main()
