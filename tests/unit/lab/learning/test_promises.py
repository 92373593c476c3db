"""What comes of a rule that gives shares, by measured prices."""

from __future__ import annotations

import pytest

from gpusage import read_model
from gpusage.decisions.advisor import make_advisor
from gpusage_hooks.types import Interval, Price, Workload
from gpusage_lab.learning.promises import (
    WHOLE,
    Measured,
    PromiseScore,
    candidate_of,
    promise_scores,
    rules_at,
    shares_of,
)

ADVISOR = make_advisor()
GPU = ADVISOR.catalogue.find("v100")
NEED = ADVISOR.predict(read_model("timm:resnet18"), Workload(mode="infer"), [GPU])[0]


def job(measured: float, predicted: float) -> Measured:
    """A job whose half costs *measured* and is predicted to cost *predicted*; three quarters cost nothing."""
    prices = (Price(gpu=GPU.name, share_percent=50, slowdown=Interval(value=predicted, low=1.0, high=predicted)),)
    return Measured(
        known=shares_of(candidate_of(GPU, NEED, prices)),
        unknown={},
        slowdowns={50: measured, 75: 1.0},
    )


def test_a_promise_is_kept_where_the_measured_step_stays_within_the_limit_and_a_whole_gpu_always_keeps_it() -> None:
    jobs = [job(1.2, 1.1), job(1.4, 1.1), job(1.1, 1.9), job(1.4, 1.9)]
    lines = {line.rule: line for line in promise_scores(jobs, rules_at(1.25, (50,), (50, 75)), 1.25)}
    # two shares of 50 and two whole GPUs; the second share is broken
    price = PromiseScore(
        rule="price, step time known",
        shares_percent=50,
        mean_share_percent=75,
        gpu_time_percent=82.5,
        met_percent=75,
        of_shares_percent=50,
    )
    assert lines["price, step time known"] == price
    assert (lines["price, nothing known"].shares_percent, lines["price, nothing known"].met_percent) == (0, 100)
    always, oracle = (lines[name] for name in ("always 50 %", "oracle"))
    assert (always.mean_share_percent, always.met_percent) == (50, 50)
    assert (oracle.mean_share_percent, oracle.met_percent) == (pytest.approx(62.5), 100)


def test_a_size_that_was_not_measured_is_not_given_to_all() -> None:
    (line,) = promise_scores([job(1.0, 1.0)], {"same": rules_at(1.25, (25,), ())["always 25 %"]}, 1.25)
    assert (line.shares_percent, line.mean_share_percent) == (0, WHOLE)
