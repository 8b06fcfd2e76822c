"""Quantizers beyond rounding each weight to its nearest code (compiler/quantize.py)."""
