"""Reads ``.pt2`` programs of `torch.export.save` without PyTorch and without a pickle; rejects other files.

A program is a zip; two texts of bounded size are read from it and nothing else. The weights and sample inputs in the
same zip, which may be pickles, are never opened.
"""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import IO, cast

from gpusage.graphs.model_files import open_regular_file, printable, quoted
from gpusage.graphs.torch.pt2_program import Program, program_graph
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph

MAXIMUM_PROGRAM_BYTES = 16 * 1024 * 1024
"""Parsed, it takes up to 27 times as much memory: less than half a GiB."""
MAXIMUM_LIST_BYTES = 4 * 1024 * 1024
MAXIMUM_DIRECTORY_BYTES = 4 * 1024 * 1024
"""For some 40,000 members, one per weight; parsed, it takes up to 15 times as much memory."""
# Methods that zipfile decompresses in bounded pieces; one piece of bz2 or LZMA can become two gigabytes.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1
# What `zipfile`, `json` and the walk through the document raise for a damaged or hostile file.
_MALFORMED = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    RuntimeError,  # a RecursionError is one, and a NotImplementedError
    OSError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    struct.error,
)


def read_model(source: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph:
    """Return the graph of the program at *source*.

    Raises:
        GraphError: It is not a file that may be read, or not a program.
    """
    try:
        text, weights = _texts(source)
        # Two weights with one path in the zip are one.
        configuration = json.loads(weights).get("config", {})
        weight_paths = {name: str(entry["path_name"]) for name, entry in configuration.items()}
        return program_graph(
            Program(json.loads(text), weight_paths),
            name=printable(PurePath(source).stem),
            source=printable(source),
            shape=shape,
        )
    except _MALFORMED as error:
        message = (
            f"Model {quoted(source)} must be a program as torch.export.save writes it; "
            f"got a file that is not ({type(error).__name__}: {printable(str(error))[:80]}). Export it again."
        )
        raise GraphError(message) from error


def _texts(source: str) -> tuple[bytes, bytes]:
    """Return the JSON of the program in the zip at *source*, and that of the list of its weights."""
    with (
        open_regular_file(source) as descriptor,
        _BoundedReader(os.dup(descriptor), source) as file,
        zipfile.ZipFile(cast("IO[bytes]", file)) as archive,
    ):
        # The table of contents has been read: from here on members are.
        file.limit_bytes = MAXIMUM_PROGRAM_BYTES
        members = sorted(archive.namelist())
        weights = [name for name in members if name.endswith("model_weights_config.json")]
        program = _read(archive, _program_member(members, source), source, MAXIMUM_PROGRAM_BYTES)
        return program, _read(archive, weights[0], source, MAXIMUM_LIST_BYTES) if weights else b"{}"


class _BoundedReader(io.BufferedReader):
    """A file that returns at most `limit_bytes` at once.

    `zipfile` reads a table of contents of any length that the file claims.
    """

    def __init__(self, descriptor: int, source: str) -> None:
        super().__init__(io.FileIO(descriptor))
        self.limit_bytes = MAXIMUM_DIRECTORY_BYTES
        self._source = source

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to *size* bytes, all of the rest if it is negative."""
        # One byte more tells a full read from one that was cut.
        most = self.limit_bytes + 1
        content = super().read(most if size is None or size < 0 else min(size, most))
        if len(content) == most:
            raise _too_large(self._source, "a table of contents", self.limit_bytes)
        return content


def _read(archive: zipfile.ZipFile, member: str, source: str, limit_bytes: int) -> bytes:
    # zipfile would ask for a password, or unpack without a bound.
    about = archive.getinfo(member)
    if about.compress_type not in _METHODS or about.flag_bits & _ENCRYPTED:
        message = (
            f"Model {quoted(source)} must be stored or deflated, as torch.export.save does it; "
            f"got a member that is {'encrypted' if about.flag_bits & _ENCRYPTED else 'packed in another way'}. "
            "Export it again."
        )
        raise GraphError(message)

    with archive.open(about) as opened:
        text = opened.read(limit_bytes + 1)
    if len(text) > limit_bytes:
        raise _too_large(source, "a program", limit_bytes)
    return text


def _too_large(source: str, subject: str, limit_bytes: int) -> GraphError:
    message = f"Model {quoted(source)} must have {subject} of at most {limit_bytes} bytes; got more. Use ONNX instead."
    return GraphError(message)


def _program_member(members: Sequence[str], source: str) -> str:
    """Return the member with the program: ``models/*.json``, before PyTorch 2.9 one with a fixed name."""
    for member in members:
        parts = PurePath(member).parts
        inside = len(parts) > 1 and parts[-2] == "models" and parts[-1].endswith(".json")
        if parts and (inside or parts[-1] == "serialized_exported_program.json"):
            return member

    message = (
        f"Model {quoted(source)} must hold a program of torch.export.save; got a zip without one. "
        "Compiled packages and TorchScript cannot be read; export the model with torch.export.save."
    )
    raise GraphError(message)
