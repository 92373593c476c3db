"""Cards of the models that libraries define by name: with a card, a submission by name does not import torch.

Invariants:

1. A card is the graph of the library's own definition; ``python -m gpusage_lab.zoo.make_named`` makes the file.
2. A name costs decompressing one block: the file is a ZIP archive of an index and of blocks of a few dozen cards.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

from gpusage.graphs.card.validation import graph_from_document
from gpusage_hooks.types import ModelGraph

FILE_NAME = "cards.zip"
INDEX = "index.json"


def names() -> Mapping[str, str]:
    """Return the key of its card for each name that a user may write.

    The card of ``timm:resnet50.a1_in1k`` is ``timm:resnet50@3x224x224``: the text after the ``@`` is the default shape.
    """
    keys: Mapping[str, str] = _index()["names"]
    return keys


def default_shape(source: str) -> str | None:
    """Return the default shape of the model called *source*, ``None`` if there is no card of it."""
    key = _index()["names"].get(source)
    return None if key is None else str(key).partition("@")[2]


def sources_of(word: str) -> list[str]:
    """Return the full names of the models called *word*: ``timm:resnet50`` for ``resnet50``."""
    wanted = f":{word.lower()}"
    return sorted(name for name in names() if name.endswith(wanted))


def exists(source: str, shape: str) -> bool:
    """Return whether there is a card of the model called *source* at *shape*."""
    return _key(source, shape) in _index()["blocks"]


def find(source: str, shape: str) -> ModelGraph | None:
    """Return the graph of the model called *source* at *shape*, ``None`` if there is no such card."""
    key = _key(source, shape)
    block = _index()["blocks"].get(key)
    if block is None:
        return None

    # A block holds a few dozen cards, one a line.
    lines = _archive().read(str(block)).decode("ascii").splitlines()
    text = next(line.partition("\t")[2] for line in lines if line.startswith(f"{key}\t"))
    graph = graph_from_document(json.loads(text), f"Card {key}")
    return replace(graph, name=source.partition(":")[2], source=source)


def _key(source: str, shape: str) -> str:
    default = str(_index()["names"].get(source, ""))
    return f"{default.partition('@')[0]}@{shape}"


@lru_cache(maxsize=1)
def _archive() -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(files("gpusage.graphs.named").joinpath(FILE_NAME).read_bytes()))


@lru_cache(maxsize=1)
def _index() -> dict[str, Any]:
    index: dict[str, Any] = json.loads(_archive().read(INDEX))
    return index
