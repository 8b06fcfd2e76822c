"""The order of everything that happens between capture and lowering."""

from __future__ import annotations

from mixplan.passes.base import Pass, PassOptions
from mixplan.passes.canonicalize.activations import ACTIVATIONS
from mixplan.passes.canonicalize.attention_layout import ATTENTION_LAYOUT
from mixplan.passes.canonicalize.constants import FOLD_CONSTANTS
from mixplan.passes.canonicalize.cse import common_pass
from mixplan.passes.canonicalize.functional import FUNCTIONALIZE
from mixplan.passes.canonicalize.linear_forms import LINEAR_FORMS
from mixplan.passes.canonicalize.noops import DROP_CHECKS, DROP_NOOPS, NOOP_RULES
from mixplan.passes.canonicalize.permutes import PERMUTE_RULES, PERMUTES
from mixplan.passes.canonicalize.repeats import REPEAT_RULES, REPEATS
from mixplan.passes.canonicalize.reshape_sinking import SINK_RULES
from mixplan.passes.canonicalize.reshapes import RESHAPE_RULES, RESHAPES
from mixplan.passes.canonicalize.slices import SLICE_RULES, SLICES
from mixplan.passes.fusion.bias import Bias
from mixplan.passes.fusion.experts import ExpertGate, SortExpertRows
from mixplan.passes.fusion.gated import Gated
from mixplan.passes.fusion.l2_norm import L2Norm
from mixplan.passes.fusion.layer_norm import AtenLayerNorm, CentredRmsNorm, VarianceNorm
from mixplan.passes.fusion.logit_rows import LOGIT_ROWS
from mixplan.passes.fusion.merge_qkv import MERGE_QKV
from mixplan.passes.fusion.norm_affine import NormBias, NormWeight
from mixplan.passes.fusion.quantize_activation import QUANTIZE_ACTIVATION
from mixplan.passes.fusion.quantize_norm import QuantizeNorm
from mixplan.passes.fusion.residual import Residual
from mixplan.passes.fusion.rms_norm import AtenRmsNorm, RmsNorm
from mixplan.passes.fusion.rope import Rope
from mixplan.passes.fusion.rope_partial import RopePartial
from mixplan.passes.fusion.rope_split import RopeSplit
from mixplan.passes.fusion.scale import Scale
from mixplan.passes.fusion.scale_inputs import SCALE_INPUTS
from mixplan.passes.manager import PassManager
from mixplan.passes.placement.name_nodes import NAME_NODES
from mixplan.passes.placement.place import PLACE
from mixplan.passes.precision.assign import ASSIGN_PRECISION
from mixplan.passes.rules import rule_pass
from mixplan.passes.spec import Level
from mixplan.passes.user import insert_user_passes

__all__ = ["LEVELS", "default_passes", "pass_manager"]

_SIMPLIFY_RULES = (*NOOP_RULES, *SLICE_RULES, *RESHAPE_RULES, *PERMUTE_RULES, *REPEAT_RULES, *SINK_RULES)
_NORM_RULES = (RmsNorm(), AtenRmsNorm(), AtenLayerNorm(), CentredRmsNorm(), VarianceNorm(), L2Norm(), NormWeight(), NormBias())
_ROPE_RULES = (Rope(), RopeSplit(), RopePartial())

LEVELS = {"canonical_form": Level.canonical, "assign_precision": Level.decided}
"""What the graph spec promises from a pass on (see spec.py)."""


def default_passes(options: PassOptions) -> list[Pass]:
    """The pipeline, top to bottom. The user's passes from `options` are in their places."""
    passes: list[Pass] = [
        # canonicalize: one spelling for everything that fusion looks for
        DROP_CHECKS,
        FUNCTIONALIZE,
        DROP_NOOPS,
        SLICES,
        RESHAPES,
        PERMUTES,
        REPEATS,
        FOLD_CONSTANTS,
        common_pass("common_subexpressions", "canonicalize"),
        ACTIVATIONS,
        LINEAR_FORMS,
        rule_pass("simplify", "canonicalize", "the rules above again, and reshapes behind products and elementwise ops", _SIMPLIFY_RULES),
        ATTENTION_LAYOUT,
        rule_pass("simplify_layout", "canonicalize", "what the new attention layout leaves to cancel", _SIMPLIFY_RULES),
        common_pass("canonical_form", "canonicalize"),
        # precision: every layer's scheme, before layers are joined
        ASSIGN_PRECISION,
        # fuse: from the inside out
        rule_pass("fuse_norms", "fusion", "RMSNorm, LayerNorm and L2 norm with their weights and biases", _NORM_RULES),
        rule_pass("fuse_rope", "fusion", "rotary embedding: halves, neighbours, partial", _ROPE_RULES),
        rule_pass("fuse_linear", "fusion", "biases and constant factors go into the linear layer before them", (Bias(), Scale())),
        SCALE_INPUTS,
        rule_pass("fuse_gated", "fusion", "act(gate(x)) * up(x) to one gated linear layer", (Gated(),)),
        rule_pass("fuse_experts", "fusion", "rows of gated experts in order; experts that stay apart", (SortExpertRows(), ExpertGate())),
        MERGE_QKV,
        rule_pass("fuse_residual", "fusion", "the residual stream is added by the linear layer before it", (Residual(),)),
        LOGIT_ROWS,
        QUANTIZE_ACTIVATION,
        rule_pass("quantize_norm", "fusion", "norms that only feed a quantization write int8", (QuantizeNorm(),)),
        rule_pass("simplify_fused", "fusion", "what fusion leaves to cancel", (*NOOP_RULES, *SLICE_RULES, *RESHAPE_RULES, *PERMUTE_RULES)),
        common_pass("common_fused", "fusion"),
        # place: which target runs what
        PLACE,
        NAME_NODES,
    ]
    return insert_user_passes(passes, options.user_passes)


def pass_manager(options: PassOptions) -> PassManager:
    """The manager of the default pipeline."""
    return PassManager(default_passes(options), LEVELS)
