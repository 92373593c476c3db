"""A card as a file that people can read, and the plugin that reads it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpusage.graphs.card.document import document_of, dumped, parsed
from gpusage.graphs.guard import printable, read_whole, shown
from gpusage.whole_file import write_whole
from gpusage_hooks import hookimpl
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph

SUFFIX = ".card.json"
MAXIMUM_FILE_BYTES = 16 * 1024 * 1024


def write_file(graph: ModelGraph, path: str | os.PathLike[str]) -> None:
    """Write *graph* to *path* as readable JSON, whole or not at all."""
    try:
        write_whole(Path(path), _readable(document_of(graph)))
    except OSError as error:
        message = f"Card {shown(str(path))} must be writable; got: {error.strerror}. Choose another path."
        raise GraphError(message) from error


@hookimpl(trylast=True)
def read_model(source: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph | None:
    """Read a card that `write_file` saved; its shapes are resolved already, so *shape* must be empty."""
    if not source.endswith(SUFFIX):
        return None
    if shape:
        names = ", ".join(sorted(shape))
        message = f"Card {shown(source)} must be used without shapes; got {printable(names)}. Make a new card."
        raise GraphError(message)
    return parsed(read_whole(source, MAXIMUM_FILE_BYTES), f"Card {shown(source)}")


def _readable(document: Mapping[str, Any]) -> str:
    """Return *document* with one kind per line, which people can read and programs can parse."""
    lines = [f" {json.dumps(key)}: {dumped(value)}" for key, value in document.items() if key != "kinds"]
    kinds = ",\n  ".join(json.dumps(kind, ensure_ascii=False) for kind in document["kinds"])
    lines.insert(-2, f' "kinds": [\n  {kinds}]')
    return "{\n" + ",\n".join(lines) + "\n}\n"
