"""Each op's lowering to ONNX."""
