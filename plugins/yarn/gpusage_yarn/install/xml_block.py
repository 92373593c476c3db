"""Our properties inside a site's own Hadoop XML file: put in once, taken out without a trace.

Invariants:

1. `without_block(with_block(text, settings)) == text`, byte for byte; a file of ours alone becomes nothing.
2. The block stands last, for of two properties of one name Hadoop takes the later: no line of the site's changes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape, unescape

from gpusage_hooks.errors import RequestError

_BEGIN = "<!-- >>> gpusage: `gpusage yarn uninstall` takes this block out -->\n"
_END = "<!-- <<< gpusage -->\n"
_BLOCK = re.compile(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", re.DOTALL)
_ENTRY = re.compile(r"<name>([^<]*)</name>\s*<value>([^<]*)</value>")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CLOSED = re.compile(r"</configuration\s*>")
_HEAD = '<?xml version="1.0"?>\n<configuration>\n'
_TAIL = "</configuration>\n"


def with_block(text: str | None, settings: Mapping[str, str], path: str) -> str | None:
    """Return the file's *text* with *settings* as our block, in place of an older block; ``None`` for no file.

    Raises:
        RequestError: The file is not a Hadoop configuration.
    """
    bare = without_block(text)
    if not settings:
        return bare
    if bare is None:
        return f"{_HEAD}{_block(settings)}{_TAIL}"

    try:
        ET.fromstring(bare.encode())  # noqa: S314 - the admin's own file, and expat fetches nothing
    except (ET.ParseError, ValueError) as error:
        message = f"File {path!r} must be XML; got: {error}. Fix it, then install again."
        raise RequestError(message) from error

    # A comment may hold the end of a configuration; blank, it keeps every other character in its place.
    blanked = _COMMENT.sub(lambda match: " " * len(match[0]), bare)
    ends = [match.start() for match in _CLOSED.finditer(blanked)]
    if not ends:
        message = f"File {path!r} must end with </configuration>; it does not. Fix it, then install again."
        raise RequestError(message)
    return f"{bare[: ends[-1]]}{_block(settings)}{bare[ends[-1] :]}"


def without_block(text: str | None) -> str | None:
    """Return the file's *text* as the site wrote it, ``None`` where there would be no file without us."""
    if text is None:
        return None
    bare = _BLOCK.sub("", text)
    return None if bare != text and bare == _HEAD + _TAIL else bare


def block_settings(text: str | None) -> dict[str, str]:
    """Return the settings of our block in the file's *text*; none where it has none."""
    match = _BLOCK.search(text or "")
    return {unescape(name): unescape(value) for name, value in _ENTRY.findall(match[0] if match else "")}


def _block(settings: Mapping[str, str]) -> str:
    entries = "".join(
        f"  <property>\n    <name>{escape(name)}</name>\n    <value>{escape(value)}</value>\n  </property>\n"
        for name, value in settings.items()
    )
    return f"{_BEGIN}{entries}{_END}"
