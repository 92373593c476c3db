"""The kill switch as `gpusage slurm drain --yes` makes it; tests/slurm has a real Slurm and a real gpusaged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpusage_hooks.errors import RequestError
from gpusage_slurm.jobs import drain


def switch_states(*seen: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any] | None]:
    """Yield what gpusaged says of its switch, one look after the other, the last one for ever; ``None``: nothing."""
    yield from seen
    while True:
        yield seen[-1]


@pytest.mark.parametrize(
    ("seen", "line"),
    [
        ([{"on": False, "path": "off"}] * 2 + [{"on": True, "path": "off"}], "is on: new jobs stay as they are"),
        ([{"on": False, "path": "/else"}], "rewritten: gpusaged looks for /else"),
        ([None], "rewritten: no gpusaged answers on this host"),
    ],
)
def test_the_switch_is_on_when_gpusaged_says_so(
    seen: list[Mapping[str, Any] | None], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks twice a second; what it would rewrite meanwhile was said to be left alone."""
    reported = switch_states(*seen)

    def find_status(paths: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
        switch = next(reported)
        if switch is None:
            raise RequestError(paths[0])
        return paths[0], {"kill_switch": switch}

    monkeypatch.setattr(drain, "find_status", find_status)
    monkeypatch.setattr(drain, "_SEEN_WITHIN_S", 0.2)
    switch = drain.enable_kill_switch(str(tmp_path / "etc" / "off"), ["socket"])
    assert (Path(switch.path).exists(), switch.made) == (True, True)
    assert line in next(iter(drain.lines((), switch, act=True)))
    assert (switch.trouble is None) == bool(seen[-1] and seen[-1]["on"])
    assert not drain.enable_kill_switch(switch.path, ["socket"]).made
