"""Passes that join nodes into the fused ops, one rule a file."""
