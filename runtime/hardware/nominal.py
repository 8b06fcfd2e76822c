"""The record that costs are read from where none is measured, or where a plan must be the same wherever it is compiled."""

from __future__ import annotations

from mixplan.runtime.hardware.record import Hardware

__all__ = ["NOMINAL"]

NOMINAL = Hardware(
    "cpu",
    model="nominal: about two cores of a server",
    cores=2,
    bandwidth=((1 << 30, 20e9),),
    peaks={"int8": 1e12, "bf16": 4e11, "f32": 2e11},
)
"""20 GB/s, and 1 TOPS of int8, 0.4 TFLOPS of bf16 and 0.2 of f32."""
