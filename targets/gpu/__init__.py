"""The GPU target: Triton kernels, built ahead of time for each architecture."""
