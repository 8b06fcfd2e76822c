"""What a checkpoint says about text, ready to be written into a plan."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["TextAssets"]


@dataclass(frozen=True)
class TextAssets:
    """Files of the plan by name, and the ids that the runtime stops at.

    files: `tokenizer.json` (always, where the checkpoint has a tokenizer), `chat.json` and `chat_template.jinja` (where it has a template).
    notes: what the user should know (a template that is not of literal form, a tokenizer that was converted).
    """

    files: dict[str, bytes] = field(default_factory=dict)
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
