"""What each onnxruntime execution provider takes, one table a file."""
