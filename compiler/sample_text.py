"""The tokens on which a plan is compared with its model, node by node."""

from __future__ import annotations

import numpy as np

from mixplan.runtime.errors import RequestError
from mixplan.runtime.model import Model

__all__ = ["sample_tokens"]

_TEXT = (
    "The lighthouse keeper wrote down the weather every evening: wind from the north-west, a falling barometer, rain before "
    "midnight. In 1893 the log ran to 365 pages, and not one of them was blank. When the ships stopped coming, he kept writing, "
    "because a record with a gap in it, he said, is only half a record. Years later a student counted the entries, plotted them on "
    "a chart, and found that the storms had moved eleven days earlier in the year. def mean(values): return sum(values) / "
    "len(values). The keeper had no word for that, but he had the numbers, and the numbers were enough."
)


def sample_tokens(running: Model, text: str | None, tokens: int) -> list[int]:
    """The first `tokens` token ids of a text, None for a short one that comes with the package; of a plan without a tokenizer random ids.

    RequestError for a text of less than 2 tokens, and for one given to a plan without a tokenizer.
    """
    limit = min(tokens, running.plan.model.context_length)
    if "tokenizer.json" in running.plan.files:
        ids = running.tokenizer.encode(_TEXT if text is None else text)[:limit]
    elif text is None:
        ids = np.random.default_rng(0).integers(0, running.plan.model.vocab_size, limit).tolist()
    else:
        raise RequestError("The plan has no tokenizer, so a text cannot be used.", hint="Leave the text out, for random tokens.")
    if len(ids) < 2:
        raise RequestError(f"The text has {len(ids)} tokens; at least 2 are needed.")
    return [int(i) for i in ids]
