"""Evaluation against the original checkpoint, in float32 by torch."""
