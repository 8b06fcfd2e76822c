"""Targets: what each kind of hardware can do, what it costs, and how a region is lowered for it."""
