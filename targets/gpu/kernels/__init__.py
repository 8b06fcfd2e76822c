"""Triton kernels, one a file. `common`, `words`, `epilogue` and `product` hold the device functions that they share."""
