"""What this machine can do at most, measured: memory read by working-set size, and operations per second of each unit."""

from mixplan.targets.cpu.ceilings.measure import DEFAULT_SIZES, measure
from mixplan.targets.cpu.ceilings.probe import Probe
from mixplan.targets.cpu.ceilings.record import Ceilings, PeakRate, ReadRate

__all__ = ["DEFAULT_SIZES", "Ceilings", "PeakRate", "Probe", "ReadRate", "measure"]
