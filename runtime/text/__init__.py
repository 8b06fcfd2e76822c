"""Text in and out of a plan: tokenizer, chat template, streaming decode, stop strings. Only this package imports `tokenizers`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixplan.runtime.text.chat import ChatTemplate, Message
    from mixplan.runtime.text.stop import StopScanner
    from mixplan.runtime.text.stream import StreamDecoder
    from mixplan.runtime.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Message", "StopScanner", "StreamDecoder", "Tokenizer"]

_HOMES = {"ChatTemplate": "chat", "Message": "chat", "StopScanner": "stop", "StreamDecoder": "stream", "Tokenizer": "tokenizer"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'mixplan.runtime.text' has no attribute {name!r}")
    return getattr(import_module(f"mixplan.runtime.text.{home}"), name)
