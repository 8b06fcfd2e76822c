"""Text in and out of a plan: tokenizer, chat template, streaming decode, stop strings. Only this package imports `tokenizers`."""

from __future__ import annotations

from mixplan.runtime.text.chat import ChatTemplate, Message
from mixplan.runtime.text.stop import StopScanner
from mixplan.runtime.text.stream import StreamDecoder
from mixplan.runtime.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Message", "StopScanner", "StreamDecoder", "Tokenizer"]
