"""Turns the nodes of a region into launches."""
