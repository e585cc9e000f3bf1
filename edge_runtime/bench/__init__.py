"""``fedtailor edge bench``: what a bundle costs on this device, beside a bare ONNX Runtime session of the same network."""
