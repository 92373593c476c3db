"""How the ResourceManager's JSON is read: a missing part is empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]
"""A JSON object; versions of YARN differ in what it holds."""


def with_repeated_names(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the JSON object of *pairs*; a name that stands in it several times has the list of its values.

    So Hadoop writes maps: ``"resourceSecondsMap": {"entry": {...}, "entry": {...}}`` (tried on 3.4.2).
    """
    document = dict(pairs)
    if len(document) == len(pairs):
        return document

    values: dict[str, list[Any]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return {name: each[0] if len(each) == 1 else each for name, each in values.items()}


def as_list(document: object, *path: str) -> list[Any]:
    """Return the list at *path*, empty where it is missing; a list of one item may come without its brackets."""
    for name in path:
        document = document.get(name) if isinstance(document, Mapping) else None
    if document is None:
        return []
    return document if isinstance(document, list) else [document]


def resource_seconds(application: object) -> dict[str, int]:
    """Return how long an application held each resource type, in units times seconds."""
    entries = as_list(application, "resourceSecondsMap", "entry")
    return {str(entry["key"]): int(entry["value"]) for entry in entries}


def resource_amounts(resource: object) -> dict[str, int]:
    """Return how much of each resource type a resource vector holds."""
    entries = as_list(resource, "resourceInformations", "resourceInformation")
    return {str(entry.get("name")): int(entry.get("value", 0)) for entry in entries}
