"""Will this bundle run here? Each file looks at one thing; nothing here needs numpy or ONNX Runtime to work."""
