"""Cards of the models that libraries know by name, so that a submission by name needs neither torch nor its seconds.

Invariants:

1. A card is what the library's own definition gave when ``python -m gpusage_lab.zoo.make_named`` was run.
2. A name costs one block to unpack: the file is a ZIP archive of an index and of blocks of a few dozen cards.
3. The same cards give the same bytes, whatever order they were made in.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

from gpusage.graphs.card.fields import check_document
from gpusage_hooks.types import ModelGraph

FILE_NAME = "cards.zip"
BLOCK_CARDS = 32
_INDEX = "index.json"


class Contents(NamedTuple):
    """What the file holds.

    Attributes:
        names: Each name a user may write, ``timm:resnet50.a1_in1k``, and its card's key, ``timm:resnet50@3x224x224``:
            what stands after the ``@`` is the shape that the model has where nobody asks for another.
        cards: Each key's card, as JSON.
        made_with: The libraries' versions.
    """

    names: Mapping[str, str]
    cards: Mapping[str, str]
    made_with: Mapping[str, str]


def names() -> Mapping[str, str]:
    """Return each name and its card's key, as `Contents` has them."""
    found: Mapping[str, str] = _index()["names"]
    return found


def default_shape(source: str) -> str | None:
    """Return the shape that the model called *source* has by default, ``None`` where there is no card of it."""
    key = _index()["names"].get(source)
    return None if key is None else str(key).partition("@")[2]


def find(source: str, shape: str) -> ModelGraph | None:
    """Return the graph of the model called *source* at *shape*, ``None`` where there is no such card."""
    key = _index()["names"].get(source, "").partition("@")[0] + f"@{shape}"
    block = _index()["blocks"].get(key)
    if block is None:
        return None
    lines = _archive().read(str(block)).decode("ascii").splitlines()
    text = next(line.partition("\t")[2] for line in lines if line.startswith(f"{key}\t"))
    graph = check_document(json.loads(text), f"Card {key}")
    return replace(graph, name=source.partition(":")[2], source=source)


def pack(contents: Contents) -> bytes:
    """Return the file's content."""
    keys = sorted(contents.cards)
    blocks = [keys[start : start + BLOCK_CARDS] for start in range(0, len(keys), BLOCK_CARDS)]
    index = {
        "made_with": dict(sorted(contents.made_with.items())),
        "names": dict(sorted(contents.names.items())),
        "blocks": {key: number for number, block in enumerate(blocks) for key in block},
    }
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        _add(archive, _INDEX, json.dumps(index, separators=(",", ":")))
        for number, block in enumerate(blocks):
            _add(archive, str(number), "".join(f"{key}\t{contents.cards[key]}\n" for key in block))
    return made.getvalue()


def unpack(content: bytes) -> Contents:
    """Return what `pack` put into *content*."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        index = json.loads(archive.read(_INDEX))
        count = max(index["blocks"].values(), default=-1) + 1
        lines = [line for number in range(count) for line in archive.read(str(number)).decode("ascii").splitlines()]
    cards = dict(line.partition("\t")[::2] for line in lines)
    return Contents(names=index["names"], cards=cards, made_with=index["made_with"])


def _add(archive: zipfile.ZipFile, name: str, text: str) -> None:
    archive.writestr(zipfile.ZipInfo(name), text.encode("ascii"), zipfile.ZIP_LZMA)


@lru_cache(maxsize=1)
def _archive() -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(files("gpusage.graphs.named").joinpath(FILE_NAME).read_bytes()))


@lru_cache(maxsize=1)
def _index() -> dict[str, Any]:
    index: dict[str, Any] = json.loads(_archive().read(_INDEX))
    return index
