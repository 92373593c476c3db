"""What `gpusage slurm late` tells while it looks again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from gpusage_hooks.errors import RequestError
from gpusage_slurm.late.actions import _look

if TYPE_CHECKING:
    from gpusage_slurm.late.second_look import SecondLook, Seen


class Looking:
    """Looks that meet these troubles, one after the other; an empty one is none."""

    def __init__(self, *troubles: str) -> None:
        self._troubles = [*troubles]

    def look(self) -> tuple[Seen, ...]:
        """Return that nobody is late, or raise the next trouble."""
        trouble = self._troubles.pop(0)
        if trouble:
            raise RequestError(trouble)
        return ()


def test_a_trouble_that_lasts_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    troubles = ("no Slurm", "no Slurm", "", "no Slurm", "no answer")
    second_look, told = cast("SecondLook", Looking(*troubles)), ""
    for _ in troubles:
        told = _look(second_look, told, as_json=False)
    assert capsys.readouterr().err.splitlines() == [
        f"gpusage: {each}" for each in ("no Slurm", "no Slurm", "no answer")
    ]
