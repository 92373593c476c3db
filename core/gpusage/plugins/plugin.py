"""One plugin: where it is from, which hooks it implements, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A plugin as it was loaded, or set aside.

    Attributes:
        name: Of its entry point; of the module where it is built in.
        package: The distribution that it comes with; empty where that is not known.
        version: The distribution's.
        hooks: Those that it implements, sorted; none where it is set aside.
        trouble: Why it is set aside, as one sentence; ``None`` where it is not.
    """

    name: str
    package: str = ""
    version: str = ""
    hooks: tuple[str, ...] = ()
    trouble: str | None = None
