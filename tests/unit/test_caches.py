"""Attributes that are worked out when they are first asked for."""

from __future__ import annotations

from gpusage.caches import lazy


class Counted:
    """Counts how often its answer was worked out."""

    def __init__(self) -> None:
        self.count = 0

    @lazy
    def generation(self) -> int:
        """The answer."""
        self.count += 1
        return 42


def test_an_attribute_is_worked_out_once_for_each_object() -> None:
    """Then it is an attribute like any other."""
    first, second = Counted(), Counted()
    assert not first.count
    assert (first.generation, first.generation, second.generation) == (42, 42, 42)
    assert (first.count, second.count) == (1, 1)
