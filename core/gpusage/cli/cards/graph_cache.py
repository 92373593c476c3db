"""A cache of the graphs that only a library can build, below the user's cache folder.

Reading a Hugging Face configuration, or a Hugging Face name at a length without a card, imports PyTorch and
transformers and runs the model: many seconds. Most other sources take a fraction of a second, and are not cached.

Invariants:

1. The key is the source, the configuration, the shape, the source files of our readers, and the libraries' versions.
2. If a third-party plugin reads models, nothing is cached: we cannot see when it changes.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING

import click

from gpusage.boundary.printable_text import visible
from gpusage.cli.cards.cache import read_own, source_files, user_cache, write_atomically
from gpusage.graphs.card.text import compact_json, parse_graph, to_document
from gpusage.graphs.model_files import read_bounded_file
from gpusage.graphs.reader import configuration_path
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph

if TYPE_CHECKING:  # commands import this before they know whether they predict
    from gpusage.decisions.advisor import Advisor

MAXIMUM_CONFIGURATION_BYTES = 1024 * 1024
MAXIMUM_GRAPH_BYTES = 16 * 1024 * 1024
NOTICE_AFTER_S = 2.0
_FORMAT = "1"
_READERS = ("graphs/**/*",)
_LIBRARIES = ("torch", "transformers", "diffusers")


def read_graph(advisor: Advisor, source: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph:
    """Return the graph of the model at *source*, from the user's cache if it is there.

    Raises:
        GraphError: As `Advisor.read`.
    """
    path = _cache_path(source, shape) if advisor.hooks.are_ours("read_model") else None
    if path is not None:
        with suppress(GraphError):  # none is cached, or another version wrote it
            return parse_graph(read_own(path, MAXIMUM_GRAPH_BYTES) or b"", "Graph")
    # A person waits many seconds; a program needs no word of it.
    notice = Timer(NOTICE_AFTER_S, click.echo, [f"Reading {visible(source)} on shapes alone ..."], {"err": True})
    if sys.stderr.isatty():
        notice.start()
    try:
        graph = advisor.read(source, shape)
    finally:
        notice.cancel()
    if path is not None:
        write_atomically(path, compact_json(to_document(graph)))
    return graph


def _cache_path(source: str, shape: Mapping[str, Sequence[int]]) -> Path | None:
    """Return the path of the cached graph of *source*, ``None`` if transformers does not build it."""
    path = configuration_path(source)
    library, _, name = source.partition(":")
    configuration: object = None
    try:
        if path is not None:
            configuration = read_bounded_file(path, MAXIMUM_CONFIGURATION_BYTES)
        elif library == "hf":
            from gpusage.graphs.named import huggingface  # every command imports this module; few models have a name

            # A name with a card needs no library, so its graph is not cached.
            if not huggingface.find_card(name, shape):
                configuration = huggingface.find_configuration(name)
    except GraphError:
        return None  # its reader raises the error
    if configuration is None:
        return None

    versions = []
    for each in _LIBRARIES:
        with suppress(PackageNotFoundError):
            versions.append((each, version(each)))
    identity = (
        _FORMAT,
        str(Path(path).absolute()) if path else "",
        source,
        configuration,
        sorted((name, tuple(sizes)) for name, sizes in shape.items()),
        versions,
        tuple(source_files(_READERS)),
    )
    return user_cache() / "graphs" / hashlib.sha256(repr(identity).encode("utf-8", "replace")).hexdigest()
