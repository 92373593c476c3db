"""Whose runs count for whom."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage.experience.identity import fingerprint
from gpusage.experience.learned import (
    NO_FINDING,
    NOTHING_LEARNED,
    Experience,
    FamilyRatio,
    Finding,
    FirstRun,
    Learned,
)
from gpusage.experience.learning import learn
from gpusage.experience.runs import Run
from gpusage.service.decision_cache import AccessRecordingMapping
from gpusage_hooks.comment import parse_model
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


def find_run(learned: Learned, user: str = "1000", job_name: str = "train", batch_size: int = 32) -> Finding:
    submitter = Submitter(fields={"user": user, "job_name": job_name})
    return learned.find(GRAPH, Workload(batch_size=batch_size), submitter)


def utilization(finding: Finding) -> float | None:
    return finding.experience.utilization[WHOLE].value if finding.experience else None


def others(finding: Finding) -> list[float]:
    """Return how busy each of the other users' runs of a model were."""
    seen = [each.utilization[WHOLE] for each in finding.others if isinstance(each, Experience)]
    return sorted(each.value for each in seen)


def test_a_job_s_own_runs_come_before_its_user_s_and_its_user_s_before_others() -> None:
    three = [runs(0.9, user=user) for user in ("2", "3", "5")]
    learned = of_graph(runs(0.3), runs(0.5, job_name="other"), *three)
    assert utilization(find_run(learned)) == pytest.approx(0.3)
    assert utilization(find_run(learned, job_name="third")) == pytest.approx(0.387, abs=0.01)
    assert others(find_run(learned, user="4")) == [pytest.approx(value, abs=0.01) for value in (0.387, 0.9, 0.9, 0.9)]
    assert find_run(learned, user="4").source == "runs of this model"


@pytest.mark.parametrize(("batch", "says"), [("", True), ("@32", True), ("@16", False)])
def test_a_step_of_another_batch_was_not_measured_in_the_first_run(batch: str, says: bool) -> None:
    run = FirstRun(gpu=V100, utilization=0.5, peak_utilization=0.6, memory_bytes=10**9)
    learned = replace(NOTHING_LEARNED, first_runs={("1000", "7"): run})
    request = parse_model(f"r.onnx,batch=32,first_run=7,step_time=30ms@{V100}{batch}")
    memory = learned.measured(request, Submitter(fields={"user": "1000"}))[V100].memory_bytes
    assert memory is not None
    assert ("30 ms a step" in memory.source) is says


def test_two_strangers_runs_tell_nothing_of_a_job_however_many_there_are_and_three_count_once_each() -> None:
    many = runs(*[0.1] * 50, user="2")
    assert find_run(of_graph(many), user="5") is NO_FINDING
    assert find_run(of_graph(many, runs(0.8, user="3")), user="5") is NO_FINDING
    learned = of_graph(many, runs(0.8, user="3"), runs(0.9, user="4"))
    assert others(find_run(learned, user="5")) == [pytest.approx(value) for value in (0.1, 0.8, 0.9)]
    assert utilization(find_run(learned, user="4")) == pytest.approx(0.9)  # one's own come first
    assert find_run(learned, user="4", batch_size=64) is NO_FINDING


def test_another_batch_is_another_job() -> None:
    assert find_run(of_graph(runs(0.3)), batch_size=64) is NO_FINDING


def test_a_job_that_never_ran_is_judged_by_its_kind_where_three_jobs_of_it_did() -> None:
    three = [runs(0.45, job_name=name) for name in ("a", "b", "c")]
    other = replace(WHO, fingerprint="0" * 16)
    learned = learn(
        replace(run, identity=replace(run.identity, fingerprint="0" * 16)) for group in three for run in group
    )
    assert other.family == "resnet"
    ratio = find_run(learned).family_ratio
    assert ratio is not None
    assert ratio.job_count == 3
    assert 0.5 < ratio.ratio.value < 1  # half as busy as predicted, held back
    assert find_run(learn(runs(0.45))) is NO_FINDING


def test_of_a_kind_three_users_beside_the_job_s_own_are_needed_and_each_counts_once() -> None:
    """24 idle jobs of one user against six of two others made every new job at the site share its GPU."""
    idle = [runs(0.05, job_name=f"job {number}") for number in range(24)]
    busy = [runs(0.9, user=user, job_name=str(number)) for user in ("2", "3") for number in range(3)]
    no_model = [
        [replace(run, identity=replace(run.identity, fingerprint="0" * 16)) for run in job] for job in (*idle, *busy)
    ]
    seen = [run for job in no_model for run in job]
    assert find_run(learn(seen), user="2").family_ratio is not None  # one's own three
    assert sorted(
        each.job_count for each in find_run(learn(seen), user="4").others if isinstance(each, FamilyRatio)
    ) == [
        3,
        3,
        24,
    ]
    two = [run for run in seen if run.identity.user != "3"]
    assert find_run(learn(two), user="4") is NO_FINDING
    own = [*two, *runs(0.9, user="4")]  # two beside one's own are too few
    assert find_run(learn(own), user="4", batch_size=8) is NO_FINDING


def test_a_family_whose_promises_are_broken_is_only_advised_for_that_user() -> None:
    broken = replace(RUN, share_percent=50, promised_slowdown=1.3, out_of_memory=True)
    learned = learn(replace(broken, ended_at_s=hour) for hour in range(6))
    graph = replace(GRAPH, name="resnet18")
    assert learned.why_not_enforced(graph, Submitter(fields={"user": "1000"})) == (
        "6 of the last 6 predictions for your resnet jobs missed, so gpusage only advises until they hold again"
    )
    assert learned.why_not_enforced(graph, Submitter(fields={"user": "2"})) == ""
    assert learned.why_not_enforced(GRAPH, Submitter(fields={"user": "1000"})) == ""


def test_who_submits_is_not_looked_at_where_nothing_was_learned() -> None:
    """Answers are remembered for all who agree in what was looked at."""
    fields = AccessRecordingMapping({"user": "1000"})
    assert NOTHING_LEARNED.find(GRAPH, WORKLOAD, Submitter(fields=fields)) is NO_FINDING
    assert fields.fields_read() == frozenset()


@given(st.permutations([*runs(0.3, 0.4, 0.5), *runs(0.8, user="2"), *runs(0.7, job_name="b")]))
def test_the_order_in_which_runs_come_changes_nothing(shuffled: list[Run]) -> None:
    in_order = sorted(shuffled, key=lambda run: (run.ended_at_s, run.identity.user, run.identity.job_name))
    assert learn(shuffled).experiences.keys() == learn(in_order).experiences.keys()
    own = (WHO.fingerprint, RUN.settings, "1000", "train")
    assert learn(shuffled).experiences[own] == learn(in_order).experiences[own]
