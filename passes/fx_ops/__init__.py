"""The custom fx ops, one family a file; importing the package registers them with torch.

The upper-case names are the targets that fx nodes carry.
"""

from __future__ import annotations

from mixplan.passes.fx_ops.attention import attention
from mixplan.passes.fx_ops.attention_tm import ATTENTION, ATTENTION_TM
from mixplan.passes.fx_ops.embedding import EMBEDDING
from mixplan.passes.fx_ops.gated_linear import GATED_LINEAR
from mixplan.passes.fx_ops.grouped_linear import GROUPED_LINEAR, grouped_linear
from mixplan.passes.fx_ops.linear import LINEAR
from mixplan.passes.fx_ops.linear_q import GATED_LINEAR_Q, LINEAR_Q
from mixplan.passes.fx_ops.norms import LAYER_NORM, RMS_NORM
from mixplan.passes.fx_ops.norms_quant import LAYER_NORM_QUANT, RMS_NORM_QUANT
from mixplan.passes.fx_ops.quantize import QUANTIZE_ACT
from mixplan.passes.fx_ops.rope import ROPE

__all__ = [
    "ATTENTION",
    "ATTENTION_TM",
    "EMBEDDING",
    "GATED_LINEAR",
    "GATED_LINEAR_Q",
    "GROUPED_LINEAR",
    "LAYER_NORM",
    "LAYER_NORM_QUANT",
    "LINEAR",
    "LINEAR_Q",
    "QUANTIZE_ACT",
    "RMS_NORM",
    "RMS_NORM_QUANT",
    "ROPE",
    "attention",
    "grouped_linear",
]
