"""What `gpusage slurm late` prints while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from gpusage_hooks.errors import RequestError
from gpusage_slurm.late.decisions import _run_pass

if TYPE_CHECKING:
    from gpusage_slurm.late.decisions import LateDecider, LateOutcome


class Failing:
    """Passes that meet these errors, one after the other; an empty one is none."""

    def __init__(self, *errors: str) -> None:
        self._errors = [*errors]

    def decide_all(self) -> tuple[LateOutcome, ...]:
        """Return that nobody is late, or raise the next error."""
        error = self._errors.pop(0)
        if error:
            raise RequestError(error)
        return ()


def test_a_error_that_lasts_is_last_error_once(capsys: pytest.CaptureFixture[str]) -> None:
    errors = ("no Slurm", "no Slurm", "", "no Slurm", "no answer")
    decider, last_error = cast("LateDecider", Failing(*errors)), ""
    for _ in errors:
        last_error = _run_pass(decider, last_error, as_json=False)
    assert capsys.readouterr().err.splitlines() == [
        f"gpusage: {each}" for each in ("no Slurm", "no Slurm", "no answer")
    ]
