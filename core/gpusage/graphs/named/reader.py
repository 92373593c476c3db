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


@hookimpl(trylast=True)
def read_model(source: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph | None:
    """Read a model by the name that its library gives it, or from a Hugging Face folder or its configuration."""
    library, colon, name = source.partition(":")
    if colon and library in {"timm", "torchvision"}:
        from gpusage.graphs.named import image_libraries  # noqa: PLC0415 - only where it is asked for

        return image_libraries.read(library, name, shape)
    if colon and library == "hf":
        from gpusage.graphs.named import huggingface  # noqa: PLC0415 - as above

        return huggingface.read_name(name, shape)
    path = os.path.join(source, CONFIGURATION) if os.path.isdir(source) else source  # noqa: PTH112, PTH118 - no Path for any text
    if PurePath(path).name != CONFIGURATION or (path != source and not os.path.lexists(path)):
        return None
    from gpusage.graphs.named import huggingface  # noqa: PLC0415 - as above

    return huggingface.read_configuration(path, source, shape)
