"""The order of everything that happens between capture and lowering."""
from __future__ import annotations
from mixplan.passes.base import *
from mixplan.passes.spec import Level
from mixplan.passes.canonicalize.noops import DROP_CHECKS, DROP_NOOPS, NOOP_RULES
from mixplan.passes.canonicalize.functional import FUNCTIONALIZE
from mixplan.passes.canonicalize.slices import SLICES, SLICE_RULES
from mixplan.passes.canonicalize.reshapes import RESHAPES, RESHAPE_RULES
from mixplan.passes.canonicalize.permutes import PERMUTES, PERMUTE_RULES
from mixplan.passes.canonicalize.repeats import REPEATS, REPEAT_RULES
from mixplan.passes.canonicalize.linear_forms import LINEAR_FORMS
from mixplan.passes.canonicalize.constants import FOLD_CONSTANTS
from mixplan.passes.canonicalize.cse import ELIMINATE_COMMON, ELIMINATE_DEAD
from mixplan.passes.canonicalize.reshape_sinking import SINK_RULES
from mixplan.passes.canonicalize.attention_layout import ATTENTION_LAYOUT
from mixplan.passes.canonicalize.activations import ACTIVATIONS
from mixplan.passes.rules import rule_pass
SIMPLIFY = rule_pass("simplify","canonicalize","x",(*NOOP_RULES,*SLICE_RULES,*RESHAPE_RULES,*PERMUTE_RULES,*REPEAT_RULES,*SINK_RULES))
SIMPLIFY2 = rule_pass("simplify2","canonicalize","x",(*NOOP_RULES,*SLICE_RULES,*RESHAPE_RULES,*PERMUTE_RULES,*REPEAT_RULES,*SINK_RULES))
def default_passes(options):
    return [DROP_CHECKS, FUNCTIONALIZE, DROP_NOOPS, SLICES, RESHAPES, PERMUTES, REPEATS, FOLD_CONSTANTS, ELIMINATE_COMMON, ACTIVATIONS, LINEAR_FORMS, SIMPLIFY, ATTENTION_LAYOUT, SIMPLIFY2, ELIMINATE_DEAD]
LEVELS={"dead_code":Level.canonical}
