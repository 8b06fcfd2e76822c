"""Tokenizer and chat template of a checkpoint, in the form that a plan holds: `tokenizer.json`, `chat.json`, `chat_template.jinja`."""

from __future__ import annotations

from mixplan.compiler.tokenizer.assets import TextAssets
from mixplan.compiler.tokenizer.gguf import gguf_text_assets
from mixplan.compiler.tokenizer.hf import hf_text_assets

__all__ = ["TextAssets", "gguf_text_assets", "hf_text_assets"]
