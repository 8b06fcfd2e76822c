"""This machine's devices, each as one record of normalised facts, which cost models, `mixplan targets` and `mixplan bench` read.

`hardware()` is the record of the CPU, `devices()` those of all that can be found, `samples()` what changes from moment to moment. A fact
that the system does not tell, or tells in a form that is not understood, is None: nothing here raises.
"""

from mixplan.runtime.hardware.devices import devices, hardware, samples
from mixplan.runtime.hardware.nominal import NOMINAL
from mixplan.runtime.hardware.record import CacheLevel, Hardware, Sample

__all__ = ["NOMINAL", "CacheLevel", "Hardware", "Sample", "devices", "hardware", "samples"]
