"""Whose runs count for whom."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage.learning.findings import NOTHING, Finding
from gpusage.learning.identity import fingerprint
from gpusage.learning.learned import NOTHING_LEARNED, Learned
from gpusage.learning.lessons import learn
from gpusage.learning.runs import Run
from gpusage.service.precedents import Traced
from gpusage_hooks.types import Submitter, Workload
from graphs import convolution_graph
from runs import RUN, V100, WHO, runs

GRAPH = convolution_graph()
WORKLOAD = Workload(batch_size=32)
WHOLE = (V100, 100)


def of_graph(*groups: list[Run]) -> Learned:
    """Return what runs of `GRAPH` teach."""
    return learn(
        replace(run, identity=replace(run.identity, fingerprint=fingerprint(GRAPH)))
        for group in groups
        for run in group
    )


def found(learned: Learned, user: str = "1000", job_name: str = "train", batch_size: int = 32) -> Finding:
    submitter = Submitter(fields={"user": user, "job_name": job_name})
    return learned.find(GRAPH, Workload(batch_size=batch_size), submitter)


def utilization(finding: Finding) -> float | None:
    return finding.experience.utilization[WHOLE].value if finding.experience else None


def test_a_job_s_own_runs_come_before_its_user_s_and_its_user_s_before_others() -> None:
    learned = of_graph(runs(0.3), runs(0.5, job_name="other"), runs(0.9, user="2"), runs(0.9, user="3"))
    assert utilization(found(learned)) == pytest.approx(0.3)
    assert utilization(found(learned, job_name="third")) == pytest.approx(0.387, abs=0.01)
    assert utilization(found(learned, user="4")) == pytest.approx(0.9)
    assert found(learned, user="4").whose == "runs of this model by others"


def test_one_stranger_s_runs_decide_nobody_s_job_however_many_there_are() -> None:
    learned = of_graph(runs(*[0.1] * 50))
    assert found(learned, user="2") is NOTHING
    learned = of_graph(runs(*[0.1] * 50, user="2"), runs(0.8, user="3"), runs(0.9, user="4"))
    assert utilization(found(learned, user="5")) == pytest.approx(0.8)


def test_another_batch_is_another_job() -> None:
    assert found(of_graph(runs(0.3)), batch_size=64) is NOTHING


def test_a_job_that_never_ran_is_judged_by_its_kind_where_three_jobs_of_it_did() -> None:
    three = [runs(0.45, job_name=name) for name in ("a", "b", "c")]
    other = replace(WHO, fingerprint="0" * 16)
    learned = learn(
        replace(run, identity=replace(run.identity, fingerprint="0" * 16)) for group in three for run in group
    )
    assert other.family == "resnet"
    habit = found(learned).habit
    assert habit is not None
    assert habit.job_count == 3
    assert 0.5 < habit.ratio.value < 1  # half as busy as predicted, held back
    assert found(learn(runs(0.45))) is NOTHING


def test_one_stranger_s_jobs_tell_nothing_of_a_kind_however_many_there_are() -> None:
    """Three idle jobs of one user made every new job at the site count as idle, and share its GPU."""
    idle = [runs(0.05, job_name=name) for name in ("a", "b", "c", "d")]
    no_model = [[replace(run, identity=replace(run.identity, fingerprint="0" * 16)) for run in job] for job in idle]
    assert found(learn(run for job in no_model for run in job), user="2") is NOTHING
    busy = replace(RUN, utilization=0.9, identity=replace(WHO, fingerprint="1" * 16, user="3"))
    habit = found(learn([*(run for job in no_model for run in job), busy]), user="2").habit
    assert habit is not None
    assert habit.ratio.high == pytest.approx(1.0)  # what is promised rests on the busiest


def test_a_family_whose_promises_are_broken_is_only_advised_for_that_user() -> None:
    broken = [replace(RUN, share_percent=50, promised=1.3, lacked_memory=True, ended_at_s=hour) for hour in range(6)]
    learned = learn(broken)
    graph = replace(GRAPH, name="resnet18")
    assert learned.why_not_enforced(graph, Submitter(fields={"user": "1000"})) == (
        "6 of the last 6 predictions for your resnet jobs missed, so gpusage only advises until they hold again"
    )
    assert learned.why_not_enforced(graph, Submitter(fields={"user": "2"})) == ""
    assert learned.why_not_enforced(GRAPH, Submitter(fields={"user": "1000"})) == ""


def test_who_submits_is_not_looked_at_where_nothing_was_learned() -> None:
    """Answers are remembered for all who agree in what was looked at."""
    fields = Traced({"user": "1000"})
    assert NOTHING_LEARNED.find(GRAPH, WORKLOAD, Submitter(fields=fields)) is NOTHING
    assert fields.seen() == frozenset()


@given(st.permutations([*runs(0.3, 0.4, 0.5), *runs(0.8, user="2"), *runs(0.7, job_name="b")]))
def test_the_order_in_which_runs_come_changes_nothing(shuffled: list[Run]) -> None:
    in_order = sorted(shuffled, key=lambda run: (run.ended_at_s, run.identity.user, run.identity.job_name))
    assert learn(shuffled).experiences.keys() == learn(in_order).experiences.keys()
    own = (WHO.fingerprint, RUN.manner, "1000", "train")
    assert learn(shuffled).experiences[own] == learn(in_order).experiences[own]
