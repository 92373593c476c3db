"""Hadoop's configuration files as a client reads them: names and values, variables filled in."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

from gpusage_hooks.errors import RequestError

SITE = "yarn-site.xml"
_VARIABLE = re.compile(r"\$\{([^}$\s]+)\}")
_DEEPEST = 20  # Hadoop's own limit
_USUAL = Path("/etc/hadoop/conf")


def conf_folder(named: str | Path | None = None) -> Path:
    """Return the folder of Hadoop's configuration: *named*, else what the environment names, else the usual one."""
    chosen = named or os.environ.get("YARN_CONF_DIR") or os.environ.get("HADOOP_CONF_DIR")
    return Path(chosen) if chosen else _USUAL


def read_settings(path: Path, text: str | None = None) -> dict[str, str]:
    """Return the settings in one file, none where there is no file; the last value of a name is in force.

    Args:
        path: The file.
        text: Read in place of what is in it.

    Raises:
        RequestError: The file cannot be read, or is not XML.
    """
    try:
        root = ET.fromstring(path.read_bytes() if text is None else text.encode())  # noqa: S314 - the admin's own file, and expat fetches nothing
    except FileNotFoundError:
        return {}
    except (OSError, ET.ParseError, ValueError, LookupError) as error:
        message = f"File {str(path)!r} must be readable XML; got: {error}. Mend it, or name another folder."
        raise RequestError(message) from error
    return settings_of(root)


def settings_of(root: ET.Element) -> dict[str, str]:
    """Return the settings below *root*; one that was declared final is not set again."""
    settings: dict[str, str] = {}
    final: set[str] = set()
    for element in root.iter("property"):
        name = (element.findtext("name") or "").strip()
        value = element.findtext("value")
        if name and value is not None and name not in final:
            settings[name] = value
        if (element.findtext("final") or "").strip() == "true":
            final.add(name)
    return {name: expanded(value, settings) for name, value in settings.items()}


def expanded(value: str, settings: Mapping[str, str]) -> str:
    """Return *value* with each ``${name}`` replaced by that setting; unknown ones stay."""
    for _ in range(_DEEPEST):
        filled = _VARIABLE.sub(lambda match: settings.get(match[1], match[0]), value)
        if filled == value:
            break
        value = filled
    return value
