"""Every op of a plan: its signature, its shape rule and its numpy reference, defined once."""

from mixplan.runtime.ops.base import OpSpec, Signature, StepContext
from mixplan.runtime.ops.table import OPS, op_spec

__all__ = ["OPS", "OpSpec", "Signature", "StepContext", "op_spec"]
