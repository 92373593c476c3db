"""What every reader of a user's model obeys: regular files only, and a limit on every number and name.

A model's file comes from a user and may be made to harm: no limit here depends on what the file says of itself.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from math import prod
from pathlib import Path

from gpusage.boundary.printable_text import shortened, visible
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import Shape

MAXIMUM_RANK = 32
"""Dimensions of one tensor."""
MAXIMUM_ELEMENTS = 2**48
"""Of one tensor; at 8 bytes each this is 2 PiB, far beyond any GPU and far from overflowing 64 bits."""
DYNAMIC_BATCH = "Export it from 2 samples, with dynamic_shapes=({0: torch.export.Dim.AUTO},)"
"""What makes the first size of a model's input free, in `torch.export.export` and `torch.onnx.export`."""
MAXIMUM_NODES = 50_000
"""Of one graph: bounds the time and memory that reading takes, whatever the file."""
MAXIMUM_TEXT = 256
"""Characters of a name in a message."""

_FILE_TYPES = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


@contextmanager
def open_regular_file(path: str) -> Iterator[int]:
    """Open the regular file at *path* for reading and yield its descriptor.

    O_NONBLOCK: a FIFO without a writer, or a device, would keep the caller waiting; it is opened at once and refused.

    Raises:
        GraphError: There is no such file, it may not be read, or it is not a regular file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        start = ""
        with suppress(OSError):  # this folder may be gone
            # A relative path starts here, not at the script that names it.
            start = "" if path.startswith("/") else f" in {quoted(str(Path.cwd()))}"
        message = (
            f"Model {quoted(path)} must be a file that you can read; got: {reason.lower()}{start}. Check the path."
        )
        raise GraphError(message) from error

    try:
        file_type = stat.S_IFMT(os.fstat(descriptor).st_mode)
        if file_type != stat.S_IFREG:
            name = _FILE_TYPES.get(file_type, "something else")
            message = f"Model {quoted(path)} must be a regular file; got {name}. Check the path."
            raise GraphError(message)
        yield descriptor
    finally:
        os.close(descriptor)


def read_bounded_file(path: str, limit_bytes: int) -> bytes:
    """Return the content of the file at *path*.

    Raises:
        GraphError: As `open_regular_file`, or the file is larger than *limit_bytes*.
    """
    # One byte more than the limit tells a file of exactly that length from a longer one.
    with open_regular_file(path) as descriptor, os.fdopen(os.dup(descriptor), "rb") as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        message = (
            f"Model {quoted(path)} must be at most {limit_bytes} bytes; got more. Check that it is the right file."
        )
        raise GraphError(message)

    return content


def check_shape(shape: Sequence[int], subject: str) -> Shape:
    """Return *shape* if a tensor may have it; a negative size, a multiple of the batch, counts by its absolute value.

    Raises:
        GraphError: It has too many dimensions or elements.
    """
    # The usual case first: this runs for every tensor of a model.
    if is_allowed_shape(shape):
        return tuple(shape)
    if len(shape) > MAXIMUM_RANK:
        message = f"{subject} must have at most {MAXIMUM_RANK} dimensions; got {len(shape)}. Check the model."
        raise GraphError(message)

    sizes = "x".join(str(size) if abs(size) <= MAXIMUM_ELEMENTS else "huge" for size in shape)
    message = f"{subject} must have at most 2^48 elements; got {sizes}. Check the model's shapes."
    raise GraphError(message)


def is_allowed_shape(shape: Sequence[int]) -> bool:
    """Return whether a tensor may have *shape*."""
    if len(shape) > MAXIMUM_RANK:
        return False
    elements = prod(shape) or prod(size or 1 for size in shape)  # a size of 0 must not hide a huge one beside it
    return -MAXIMUM_ELEMENTS <= elements <= MAXIMUM_ELEMENTS


def printable(text: str) -> str:
    """Return *text* without control characters, which a terminal would obey, cut to `MAXIMUM_TEXT`."""
    return shortened(visible(text[: MAXIMUM_TEXT + 1]), MAXIMUM_TEXT)


def quoted(text: str) -> str:
    """Return *text* printable and in quotes, for one line of a message."""
    return f"'{printable(text)}'"
