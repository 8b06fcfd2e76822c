"""A captured or rewritten graph over many windows of text, by torch, with weights that are read once and dropped.

    from mixplan.compiler.streaming import Observer, stream, text_windows

    class Hessians(Observer):
        def on_input(self, layer, x): ...

    stream(captured.graph, captured.weights, windows, Hessians())

The graph is cut into segments of a bounded number of weight bytes. A segment's weights are read, every batch of windows is taken through
the segment, and what later segments need of it waits in memory: the residual stream, as a rule.
"""

from __future__ import annotations

from mixplan.compiler.streaming.executor import StreamReport, stream
from mixplan.compiler.streaming.observer import Observer
from mixplan.compiler.streaming.windows import text_windows

__all__ = ["Observer", "StreamReport", "stream", "text_windows"]
