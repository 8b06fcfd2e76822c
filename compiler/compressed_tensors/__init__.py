"""Export of a plan's decisions as a Hugging Face directory in the compressed-tensors format, for other engines."""
