"""Reads models by name, ``timm:resnet50`` or ``hf:gpt2``, and Hugging Face configurations in a folder or file.

The library's own definition is built on PyTorch's meta device: no weights, no download, no code from a model's folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from gpusage.graphs.model_files import quoted
from gpusage_hooks import hookimpl
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph

CONFIGURATION = "config.json"
LIBRARIES = ("timm", "torchvision", "hf")
_BARE_NAME = re.compile(r"[\w.-]{1,80}")


@hookimpl(trylast=True)
def read_model(source: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph | None:
    """Read a model by the name that its library gives it, or from a Hugging Face folder or its configuration."""
    library, colon, name = source.partition(":")
    is_named = bool(colon) and library in LIBRARIES
    configuration = None if is_named else configuration_path(source)
    if not is_named and configuration is None:
        _refuse_without_library(source)
        return None
    from gpusage.graphs.named import huggingface, image_libraries  # called for every model; few have a name

    if configuration is not None:
        return huggingface.read_configuration(configuration, source, shape)
    return huggingface.read_name(name, shape) if library == "hf" else image_libraries.read(library, name, shape)


def _refuse_without_library(source: str) -> None:
    """Reject a model's name without its library, and name the libraries that have it.

    Raises:
        GraphError: *source* is such a name, and not a file.
    """
    if os.path.lexists(source) or not _BARE_NAME.fullmatch(source):
        return
    from gpusage.graphs.named import cards  # called for every model; few have no file

    sources = cards.sources_of(source)
    if sources:
        rule = f"Model {quoted(source)} must be named with its library, or be a file; got a name alone."
        message = f"{rule} Did you mean {' or '.join(sources)}?"
        raise GraphError(message)


def configuration_path(source: str) -> str | None:
    """Return the path of the configuration that *source* is or, as a folder, has; ``None`` if there is none."""
    if os.path.isdir(source):  # noqa: PTH112 - no Path for any text
        path = os.path.join(source, CONFIGURATION)  # noqa: PTH118 - as above
        return path if os.path.lexists(path) else None
    return source if PurePath(source).name == CONFIGURATION else None
