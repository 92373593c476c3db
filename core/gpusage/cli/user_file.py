"""A file that a user names on the command line: read, written whole, or refused in one sentence."""

from __future__ import annotations

import json
import os
import shlex
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

import click

from gpusage.boundary.atomic_file import atomic_write
from gpusage.boundary.printable_text import one_line
from gpusage.boundary.typed_documents import MismatchError
from gpusage.reports.pages.html import Origin
from gpusage_hooks.errors import RequestError
from gpusage_hooks.units import MIB

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAXIMUM_BYTES = 16 * MIB


@contextmanager
def reading(path: Path, name: str) -> Iterator[None]:
    """Turn what fails while the file at *path* is read into one sentence; *name* is what it is, for people.

    Raises:
        RequestError: It cannot be read, or is no UTF-8 text.
    """
    try:
        yield
    except OSError as error:
        message = f"{name} {str(path)!r} must be a readable file; got: {error.strerror}. Check the path."
        raise RequestError(message) from error
    except UnicodeDecodeError as error:
        message = f"{name} {str(path)!r} must be UTF-8 text; got byte {error.start} of another kind. Convert it."
        raise RequestError(message) from error


def read_text(path: Path, name: str, maximum_bytes: int = MAXIMUM_BYTES) -> str:
    """Return the text of a file, without a byte order mark.

    Args:
        path: Of the file.
        name: What it is, for people: ``Cluster file``.
        maximum_bytes: A larger file is refused, not cut off.

    Raises:
        RequestError: It cannot be read, is too large, or is no UTF-8 text.
    """
    require_regular(path, name)
    with reading(path, name):
        # Windows editors begin a file with a byte order mark, which TOML and JSON refuse.
        return read_content(path, name, maximum_bytes).decode("utf-8-sig")


def require_regular(path: Path, name: str) -> None:
    """Refuse a file that blocks its reader, such as a named pipe; opening reports a missing one.

    Raises:
        RequestError: There is something else than a file or a folder.
    """
    with suppress(OSError):
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            message = f"{name} {str(path)!r} must be a regular file; got a pipe, socket or device. Write a file first."
            raise RequestError(message)


def require_readable(path: Path, name: str) -> None:
    """Refuse what cannot be opened to be read.

    Raises:
        RequestError: It is not there, or the caller may not read it.
    """
    require_regular(path, name)
    with reading(path, name):
        path.open("rb").close()


def read_document(path: Path, name: str) -> object:
    """Return what a JSON or TOML file holds; see `read_text`."""
    require_regular(path, name)
    content = read_content(path, name, MAXIMUM_BYTES)
    try:
        text = content.decode("utf-8-sig")
        return tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"{name} {str(path)!r} must be JSON, or TOML if its name ends in .toml; got: {error}. Fix it."
        raise RequestError(message) from error


def refusal(error: MismatchError, where: str, cure: str) -> RequestError:
    """Return the sentence about what does not fit a document.

    Args:
        error: What does not fit.
        where: In which document, for people: ``cluster 'site.toml', pool 2``.
        cure: What to do where the key is a known one.
    """
    # At most 80 characters of a value: the sentence must stay one line.
    value = "nothing" if error.value is None else f"{error.value!r:.80}"
    return RequestError(f"Key {error.key!r} of {where} must be {error.rule}; got {value}. {error.hint or cure}")


def read_content(path: Path, name: str, maximum_bytes: int) -> bytes:
    """Return the bytes of a file, or of a pipe; see `read_text`."""
    # At most one byte more than the limit: a device or a pipe may never end.
    with reading(path, name), path.open("rb") as file:
        content = file.read(maximum_bytes + 1)
    if len(content) > maximum_bytes:
        message = f"{name} {str(path)!r} must be at most {maximum_bytes // MIB} MiB; got more. Is it the right file?"
        raise RequestError(message)

    return content


def write_output(path: Path, text: str) -> None:
    """Write *text* to *path*, whole or not at all, and say so on standard error.

    Raises:
        RequestError: *path* cannot be written.
    """
    try:
        atomic_write(path, text)
    except OSError as error:
        message = f"Output {str(path)!r} must be a file that you may write; got: {error.strerror}. Name another one."
        raise RequestError(message) from error
    click.echo(one_line(f"Written: {path}"), err=True)


def page_origin() -> Origin:
    """Return where a page of this process is from; ``SOURCE_DATE_EPOCH`` sets its time, to compare pages."""
    # The reproducible-builds.org variable: two pages of one command then are equal.
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = datetime.now().astimezone()
    if epoch.isdecimal():
        with suppress(OverflowError, ValueError):  # no year has so many digits
            now = datetime.fromtimestamp(int(epoch), tz=timezone.utc)

    program, *arguments = sys.argv or [""]
    return Origin(
        version=version("gpusage"),
        date=now.strftime("%Y-%m-%d %H:%M %Z"),
        command=shlex.join([Path(program).name, *arguments]),
    )
