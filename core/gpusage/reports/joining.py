"""The sum of reports: a report on a long time is the sum of those on its parts.

Invariants:

1. Numbers add, mappings and tables join by key, structures by field; of texts the last stands, and ``None`` is nothing.
2. A row of a table has ``KEY``, the fields that name it, and maybe ``rank``, its place, else its key; ``MOST`` stay.
3. A class that adds up in another way has a method ``joined``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

Part = TypeVar("Part")
Key = TypeVar("Key")
Value = TypeVar("Value")


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Return the values of *pairs* by their keys, both in their order."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def joined(parts: Sequence[Part]) -> Part:
    """Return the sum of *parts*, of the same class and at least one, the oldest first."""
    return _joined([*parts])  # type: ignore[no-any-return]  # of one class, which the parts name


def _joined(parts: list[Any]) -> Any:
    parts = [part for part in parts if part is not None] or parts[:1]
    first, kind = parts[0], type(parts[0])
    if len(parts) == 1:
        return first
    if kind in (int, float):
        return sum(parts)
    if kind is bytes:
        return b"".join(parts)
    if issubclass(kind, Mapping):
        return {
            key: _joined(values) for key, values in grouped(pair for part in parts for pair in part.items()).items()
        }
    if kind is tuple:
        return _joined_table([row for table in parts for row in table])
    if hasattr(kind, "joined"):
        return kind.joined(parts)
    names, key = getattr(kind, "__struct_fields__", ()), getattr(kind, "KEY", ())
    if not names:
        return parts[-1]
    columns = {name: [getattr(part, name) for part in parts] for name in names}
    return kind(**{name: values[0] if name in key else _joined(values) for name, values in columns.items()})


def _joined_table(rows: list[Any]) -> tuple[Any, ...]:
    if not rows or not hasattr(rows[0], "KEY"):
        return tuple(dict.fromkeys(rows))
    members = grouped((tuple(getattr(row, name) for name in row.KEY), row) for row in rows)
    rows = [_joined(members[key]) for key in sorted(members)]
    ranked = sorted(rows, key=lambda row: getattr(row, "rank", 0))
    return tuple(ranked[: getattr(rows[0], "MOST", None)])
