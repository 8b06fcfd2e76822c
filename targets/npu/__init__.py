"""The NPU target: regions as ONNX QDQ models."""
