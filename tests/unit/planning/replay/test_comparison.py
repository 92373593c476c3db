"""Figures from stays on GPUs, and how far two gains are apart."""

from __future__ import annotations

import json

import pytest

from gpusage_planning.replay import comparison
from gpusage_planning.replay.comparison import Delays, Outcome, Repetition
from gpusage_planning.replay.virtual_gpus import Ending, Stay


def stay(job: int, start_s: float, end_s: float, device: int = 0, ending: Ending = "done") -> Stay:
    return Stay(job=job, node="n", device=device, start_s=start_s, end_s=end_s, ending=ending)


STAYS = (
    stay(0, 60.0, 3660.0),
    stay(1, 120.0, 150.0, ending="out_of_memory"),
    stay(1, 270.0, 1800.0, device=1),
    stay(2, 3720.0, 7260.0),
)


def test_figures_of_stays() -> None:
    """Job 0 ends at 3660, 1 at 1800, 2 at 7260; the GPUs have jobs for 3600 + 3540 and for 1530 s."""
    one = comparison.outcome_of(STAYS, 7260.0, 2)
    assert one.makespan_s == 7260.0
    assert one.jct_s == pytest.approx((3660 + 1800 + 7260) / 3)
    assert one.utilization == pytest.approx(0.5)
    assert one.gpu_hours == pytest.approx(8670 / 3600)
    assert one.out_of_memory == 1


def test_delays_are_of_the_real_clock() -> None:
    """Starts 60 s after the release, 120, 270, and 60 s after job 0 left: median 90; at 60 times the speed."""
    assert comparison.delays_of(STAYS, 60.0) == Delays(start_s=1.5, rescue_s=2.0)
    assert comparison.delays_of(STAYS[:1], 60.0).rescue_s is None


def outcomes(off_s: float, on_s: float) -> dict[str, Outcome]:
    return {
        state: Outcome(makespan_s=seconds, jct_s=seconds, utilization=0.5, out_of_memory=0, gpu_hours=1.0)
        for state, seconds in (("off", off_s), ("on", on_s))
    }


def repetition() -> Repetition:
    """Return one in which gpusage saves 30 % on the real scheduler and 40 % in the simulator."""
    delays = comparison.delays_of(STAYS, 60.0)
    return Repetition(
        real=outcomes(100.0, 70.0),
        simulations=[outcomes(80.0, 50.0), outcomes(120.0, 70.0)],
        at_once=outcomes(100.0, 70.0),
        delays={"off": delays, "on": delays},
        backfilled={"off": 0, "on": 2},
        differing=1,
        stays={"off": STAYS, "on": STAYS},
    )


def test_gains_and_how_far_they_are_apart() -> None:
    one = repetition()
    assert comparison.gain(one.real, "jct_s") == pytest.approx(0.3)
    assert comparison.relative_difference(one.real, one.simulated, "jct_s") == pytest.approx(0.7 / 0.6 - 1)
    assert comparison.relative_difference(one.real, one.at_once, "jct_s") == pytest.approx(0.0)


def test_the_table_says_whether_both_agree() -> None:
    both = [repetition(), repetition()]
    assert len([*comparison.rows(both)]) == 6
    notes = [*comparison.sentences(both)]
    assert "30.0 % real, 40.0 % simulated" in notes[0]
    assert "real +16.7 % from simulated (goal 10: missed)" in notes[1]
    assert "+17 %, +17 %" in notes[2]
    assert notes[3] == "the same of single simulations from their mean: -3 % to +4 %"
    assert "+0.0 %; single repetitions: +0 %, +0 %" in notes[4]
    assert "a start 1.50 s after there was room, a job that ran out of memory again after 2.0 s" in notes[10]
    assert notes[13] == "gpusage on: starts by backfill: 2 of 4, 2 of 4"
    assert notes[14] == "jobs whose share the simulator has otherwise: 1, 1"


def test_the_document_is_json_with_every_stay() -> None:
    document = json.loads(json.dumps(comparison.document([repetition()])))
    assert document["gains"]["real"]["jct_s"] == pytest.approx(0.3)
    assert len(document["repetitions"][0]["stays"]["on"]) == len(STAYS)
