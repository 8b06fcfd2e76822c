"""The run half of each target, behind the hardware abstraction layer."""
