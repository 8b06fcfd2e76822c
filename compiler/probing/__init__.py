"""`mixplan probe`: what a model's tensors, layers and heads are like on a text, and what that says about formats."""

from __future__ import annotations

from mixplan.compiler.probing.record import Advice, HeadRecord, LayerRecord, ProbeReport, TensorRecord
from mixplan.compiler.probing.run import probe

__all__ = ["Advice", "HeadRecord", "LayerRecord", "ProbeReport", "TensorRecord", "probe"]
