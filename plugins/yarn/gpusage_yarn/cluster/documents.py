"""How the ResourceManager's JSON is read: what is missing is empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Document = Mapping[str, Any]
"""A JSON object; versions of YARN differ in what it holds."""


def as_list(document: object, *path: str) -> list[Any]:
    """Return the list at *path*; what is missing is empty, and a list of one may come without its brackets."""
    for name in path:
        document = document.get(name) if isinstance(document, Mapping) else None
    if document is None:
        return []
    return document if isinstance(document, list) else [document]


def resource_amounts(resource: object) -> dict[str, int]:
    """Return how much of each resource type a resource vector holds."""
    entries = as_list(resource, "resourceInformations", "resourceInformation")
    return {str(entry.get("name")): int(entry.get("value", 0)) for entry in entries}
