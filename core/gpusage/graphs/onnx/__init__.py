"""ONNX files -> `ModelGraph`, by reading the graph and running it on shapes alone."""
