"""The file of named models' cards, whole: what it holds, packed and unpacked. A submission reads one card of it.

The same cards give the same bytes, whatever order they were made in.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from typing import NamedTuple

from gpusage.graphs.named.cards import INDEX

BLOCK_CARDS = 32


class Contents(NamedTuple):
    """What the file holds.

    Attributes:
        names: Each name that a user may write, and its card's key, as `gpusage.graphs.named.cards.names` has them.
        cards: Each key's card, as JSON.
        made_with: The libraries' versions.
    """

    names: Mapping[str, str]
    cards: Mapping[str, str]
    made_with: Mapping[str, str]


def pack(contents: Contents) -> bytes:
    """Return the file's content."""
    keys = sorted(contents.cards)
    blocks = [keys[start : start + BLOCK_CARDS] for start in range(0, len(keys), BLOCK_CARDS)]
    index = {
        "made_with": dict(sorted(contents.made_with.items())),
        "names": dict(sorted(contents.names.items())),
        "blocks": {key: number for number, block in enumerate(blocks) for key in block},
    }
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        _add(archive, INDEX, json.dumps(index, separators=(",", ":")))
        for number, block in enumerate(blocks):
            _add(archive, str(number), "".join(f"{key}\t{contents.cards[key]}\n" for key in block))
    return content.getvalue()


def unpack(content: bytes) -> Contents:
    """Return what `pack` put into *content*."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        index = json.loads(archive.read(INDEX))
        count = max(index["blocks"].values(), default=-1) + 1
        lines = [line for number in range(count) for line in archive.read(str(number)).decode("ascii").splitlines()]
    cards = dict(line.partition("\t")[::2] for line in lines)
    return Contents(names=index["names"], cards=cards, made_with=index["made_with"])


def _add(archive: zipfile.ZipFile, name: str, text: str) -> None:
    archive.writestr(zipfile.ZipInfo(name), text.encode("ascii"), zipfile.ZIP_LZMA)
