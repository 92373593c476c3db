"""Reads models by name, ``timm:resnet50`` or ``hf:gpt2``, and Hugging Face configurations in a folder or file.

The library's own definition is built on PyTorch's meta device: no weights, no download, no code from a model's folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from gpusage_hooks import hookimpl
from gpusage_hooks.types import ModelGraph

CONFIGURATION = "config.json"
LIBRARIES = ("timm", "torchvision", "hf")


@hookimpl(trylast=True)
def read_model(source: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph | None:
    """Read a model by the name that its library gives it, or from a Hugging Face folder or its configuration."""
    library, colon, name = source.partition(":")
    is_named = bool(colon) and library in LIBRARIES
    configuration = None if is_named else _configuration(source)
    if not is_named and configuration is None:
        return None
    from gpusage.graphs.named import huggingface, image_libraries  # noqa: PLC0415 - asked about every model, read few

    if configuration is not None:
        return huggingface.read_configuration(configuration, source, shape)
    return huggingface.read_name(name, shape) if library == "hf" else image_libraries.read(library, name, shape)


def _configuration(source: str) -> str | None:
    """Return the path of the configuration that *source* is or holds, None where there is none."""
    if os.path.isdir(source):  # noqa: PTH112 - no Path for any text
        path = os.path.join(source, CONFIGURATION)  # noqa: PTH118 - as above
        return path if os.path.lexists(path) else None
    return source if PurePath(source).name == CONFIGURATION else None
