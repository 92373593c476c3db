"""slurm.conf as text: its settings, with our few edits, and without them again.

Invariants:

1. An edited line ends with a comment that holds the original line; an added line says so. Nothing is stored elsewhere.
2. `without_edits(with_...(text)) == text`, byte for byte, whatever else changed in the file meanwhile.
3. Keys are looked up as Slurm does: case does not matter, the last line wins, `#` begins a comment, and quotes are no
   part of a value.
"""

from __future__ import annotations

import re
from pathlib import Path

from gpusage.boundary.edits import read_text
from gpusage.cli.user_file import require_regular
from gpusage_hooks.errors import RequestError

_WAS = "  # gpusage: was "
_ADDED = "  # gpusage: added"
ADDED_ITEMS = {
    "JobSubmitPlugins": ("lua",),
    "CliFilterPlugins": ("lua",),
    "AccountingStorageTRES": ("gres/gpu", "gres/mps"),
    "SchedulerParameters": ("ignore_prefer_validation",),
}
"""What we add to lists: taken out by name from a line that the site has changed since."""
_INCLUDE = re.compile(r"^\s*include\s+(\S+)", re.IGNORECASE | re.MULTILINE)


def read_files(path: Path) -> dict[Path, str]:
    """Return the texts of the file at *path* and of the files that it includes, each once.

    In a name ``%c`` is the cluster's; one without a folder lies beside the file that includes it.
    """
    texts: dict[Path, str] = {}
    cluster, waiting = "", [path]
    while waiting:
        each = waiting.pop(0)
        require_regular(each, "File")
        text = None if any(each.samefile(known) for known in texts if each.exists()) else read_text(each)
        if text is not None:
            texts[each] = text

            # Includes come right behind the file that names them, as Slurm reads them in place.
            cluster = cluster or (setting(text, "ClusterName") or "").lower()
            waiting[:0] = [each.parent / name.replace("%c", cluster) for name in _INCLUDE.findall(text)]
    return texts


def setting(text: str, key: str) -> str | None:
    """Return the value of *key*, ``None`` where no line sets it."""
    index = _last_index_of(text.splitlines(), key)
    return None if index is None else _value(text.splitlines()[index])


def with_setting(text: str, key: str, value: str) -> str:
    """Return *text* where *key* has *value*."""
    lines = text.splitlines(keepends=True)
    index = _last_index_of(lines, key)
    if index is None:
        # Where the file's last line has no end, the added line has none either: that is how it is known again.
        complete = not text or text.endswith("\n")
        return f"{text}{key}={value}{_ADDED}\n" if complete else f"{text}\n{key}={value}{_ADDED}"
    if _value(lines[index]) == value:
        return text

    line, end = _split_end(lines[index])

    # The comment that holds the original line cannot hold two lines.
    if line.endswith("\\"):
        message = (
            f"Key {key!r} of slurm.conf must stand on one line to be changed; got one that goes on with a backslash. "
            f"Set {key}={value} by hand."
        )
        raise RequestError(message)

    original = _original(line)
    lines[index] = f"{key}={value}{_ADDED if original is None else _WAS + original}{end}"
    return "".join(lines)


def with_list_items(text: str, key: str, *items: str) -> str:
    """Return *text* where the comma-separated list of *key* holds each of *items*."""
    value = setting(text, key) or ""
    present = [item for item in value.split(",") if item]
    missing = [item for item in items if not list_contains(value, item)]
    return with_setting(text, key, ",".join([*present, *missing])) if missing else text


def list_contains(value: str, item: str) -> bool:
    """Return whether the list *value* holds *item*; of plugins Slurm also takes the long name, ``job_submit/lua``."""
    words = {word.strip().lower() for word in value.split(",")}
    return bool(words & {item.lower(), f"job_submit/{item}".lower(), f"cli_filter/{item}".lower()})


def without_edits(text: str) -> str:
    """Return *text* without any edit of ours."""
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        bare, end = _split_end(line)
        site_line = _changed_since(bare)
        if site_line is not None:
            lines.append(site_line + end)
        elif _WAS in bare:
            lines.append(bare.split(_WAS, 1)[1] + end)
        elif bare.endswith(_ADDED):
            # An added line without an end stands behind one that had none.
            if not end and lines:
                lines[-1] = lines[-1].removesuffix("\n")
        else:
            lines.append(line)

    return "".join(lines)


def _changed_since(line: str) -> str | None:
    """Return a line of ours whose list the site has changed, without our items; ``None`` where it has not."""
    original = _original(line)
    if not line.endswith(_ADDED) and original == line:
        return None

    # What we would have written; the site has edited the line where it has something else.
    key = line.partition("=")[0].strip()
    ours = next((items for name, items in ADDED_ITEMS.items() if name.lower() == key.lower()), ())
    before = [item for item in _value(original or "").split(",") if item]
    now = [item for item in _value(line).split(",") if item]
    expected = [*before, *(item for item in ours if item in now and item not in before)]
    if not ours or now == expected:
        return None

    remaining = [item for item in now if item in before or item not in ours]
    return f"{key}={','.join(remaining)}" if remaining else None


def _last_index_of(lines: list[str], key: str) -> int | None:
    pattern = re.compile(rf"\s*{re.escape(key)}\s*=", re.IGNORECASE)

    # The last line wins, as in Slurm.
    indices = [index for index, line in enumerate(lines) if pattern.match(line)]
    return indices[-1] if indices else None


def _value(line: str) -> str:
    return line.split("#", 1)[0].partition("=")[2].strip().strip('"')


def _original(line: str) -> str | None:
    """Return *line* as the site wrote it, ``None`` where we added it."""
    if line.endswith(_ADDED):
        return None
    return line.split(_WAS, 1)[1] if _WAS in line else line


def _split_end(line: str) -> tuple[str, str]:
    bare = line.rstrip("\r\n")
    return bare, line[len(bare) :]
