"""Reads ``.pt2`` programs of `torch.export.save` without PyTorch and without a pickle; rejects other files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from gpusage.graphs.guard import shown
from gpusage_hooks import hookimpl
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph

SUFFIX = ".pt2"
PICKLES = frozenset({".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth", ".safetensors", ".tar"})

FOREIGN = frozenset({".engine", ".gguf", ".ggml", ".h5", ".joblib", ".keras", ".mlmodel", ".pb", ".plan", ".tflite"})
"""Formats of other programs: llama.cpp, Keras, TensorFlow, TensorRT, Core ML, scikit-learn."""


@hookimpl(trylast=True)
def read_model(source: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph | None:
    """Read the graph of a ``.pt2`` program; say of files of weights alone that they are no model."""
    suffix = PurePath(source).suffix.lower()
    if suffix in PICKLES and os.path.lexists(source):
        message = (
            f"Model {shown(source)} must hold a graph; got weights, which gpusage never loads. "
            "Export it with torch.export.save (.pt2) or torch.onnx.export (.onnx)."
        )
        raise GraphError(message)
    if suffix in FOREIGN and os.path.lexists(source):
        message = (
            f"Model {shown(source)} must be in a format that gpusage reads; got {suffix}. "
            "Export it to ONNX, or give the Hugging Face folder that it was made from."
        )
        raise GraphError(message)
    if suffix != SUFFIX:
        return None
    from gpusage.graphs.torch.pt2_archive import read_program  # noqa: PLC0415 - commands that read no .pt2 start faster

    return read_program(source, shape)
