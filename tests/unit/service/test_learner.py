"""What a site has learned, and how its file of history is read."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from gpusage.experience.history import History
from gpusage.experience.learned import FirstRun, Learned
from gpusage.experience.runs import runs_of
from gpusage.service import learner
from gpusage.settings.configuration import Configuration, LearningSettings
from gpusage.store.opening import open_store
from gpusage.store.rows import Observation
from gpusage_hooks.types import Allocation, Code, DecisionRecord, JobIdentity
from gpusage_hooks.units import DAY_S
from gpusage_lab.history.training import write_history
from records import RECORD, USAGE

UNMARKED = replace(USAGE, number="", user_id="1000", granted=Allocation(), alone_s=USAGE.sampled_s)
"""The run of a job that named no model, alone on a whole GPU."""
SHOWED = FirstRun(gpu=USAGE.gpu, utilization=0.31, peak_utilization=0.31, memory_bytes=UNMARKED.memory_bytes or 0)
NOW_S = USAGE.ended_at_s + 60.0


def test_the_file_of_history_is_read_once_and_again_when_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a large one holds up all answers, and learning is anew at each run that comes."""
    path, reads, read_history = tmp_path / "h.json", [], learner.read_history
    monkeypatch.setattr(learner, "read_history", lambda each: (reads.append(each), read_history(each))[1])
    settings = LearningSettings(history="observe", history_file=str(path))
    with closing(open_store(f"sqlite:///{tmp_path}/d.db")) as store:
        for number in (1, 2):
            write_history(History(runs=number), path)
            os.utime(path, ns=(number, number))
            for now_s in (10.0, 20.0):
                assert learner.learn_from_store(store, settings, now_s).history == History(runs=number)
    assert reads == [path, path]


def test_a_sound_run_without_a_model_is_known_by_its_user_and_number(tmp_path: Path) -> None:
    with closing(open_store(f"sqlite:///{tmp_path}/d.db")) as store:
        store.record_all([replace(RECORD, number=USAGE.number)])
        store.record_usage(
            [
                UNMARKED,
                replace(UNMARKED, job_id="8", number=USAGE.number),  # it named a model
                replace(UNMARKED, job_id="9", granted=replace(UNMARKED.granted, share_percent=50)),
                replace(UNMARKED, job_id="10", alone_s=0.0),
                replace(UNMARKED, job_id="11", sampled_s=10.0, alone_s=10.0),
                replace(UNMARKED, job_id="13", outcome="failed"),
                replace(UNMARKED, job_id="14", gpu_count=2),
                replace(UNMARKED, job_id="15", memory_bytes=None),
                replace(UNMARKED, job_id="12", user_id="1001", gpu_utilization=0.9),
            ]
        )
        known = learner.first_runs_in_store(store, LearningSettings(), NOW_S)
        busy = replace(SHOWED, utilization=0.9, peak_utilization=0.9)
        assert known == {("1000", "7"): SHOWED, ("1001", "12"): busy}
        assert learner.first_runs_in_store(store, LearningSettings(capture="off"), NOW_S) == {}


def test_the_smallest_shares_of_a_week_are_known_once_enough_jobs_were_decided(tmp_path: Path) -> None:
    def record(number: int, percent: int | None, *types: str, days: float = 1.0) -> DecisionRecord:
        request = replace(RECORD.decision.request, mps_thread_percent=percent, required_gpus=types)
        decision = replace(RECORD.decision, request=request)
        return replace(RECORD, number=str(number), decided_at_s=8 * DAY_S - days * DAY_S, decision=decision)

    def smallest(*records: DecisionRecord, ended: Sequence[DecisionRecord] = ()) -> Mapping[str, int]:
        with closing(open_store(f"sqlite:///{tmp_path}/{len(records)}.db")) as store:
            store.record_all(records)
            return learner.smallest_shares(store, 8 * DAY_S, learner.predicted_requests(ended, 8 * DAY_S))

    whole = [record(number, None) for number in range(19)]
    shares = [record(20, 75), record(21, 50, "v100"), record(22, 33, "v100", "a100"), record(23, 25, days=7.5)]
    assert smallest(*whole, ended=whole) == {}
    assert smallest(*whole, *shares) == {"": 75, "v100": 33, "a100": 33}
    assert smallest(*shares, ended=whole) == {"": 75, "v100": 33, "a100": 33}
    assert smallest(*whole, record(20, None)) == {"": 100}


def test_experience_is_the_same_whichever_users_runs_stand_between(tmp_path: Path) -> None:
    """It is read user by user; a job that failed in its share and one that lifts it are of one user."""
    outcomes = {"999": ("failed",), "1000": ("failed", "completed"), "1001": ("completed", "failed")}
    decided = replace(RECORD, mode="enforce", decision=replace(RECORD.decision, code=Code.REWRITE))
    with closing(open_store(f"sqlite:///{tmp_path}/d.db")) as store:
        for user, at, outcome in [(user, at, each) for user, of in outcomes.items() for at, each in enumerate(of)]:
            identity = JobIdentity(user=user, job_name="a", fingerprint="f")
            store.record_all([replace(decided, number=f"{user}{at}", identity=identity)])
            run = replace(USAGE, user=f"u{user}", user_id=user, job_id=f"{user}{at}", number=f"{user}{at}")
            store.record_usage([replace(run, outcome=outcome, ended_at_s=USAGE.ended_at_s + at)])
        learned = learner.learn_from_store(store, LearningSettings(), NOW_S)
    assert {likeness[0] for likeness in learned.failures["f"]} == {"999", "1001"}
    assert {key[2] for key in learned.experiences} == {"1000", "1001"}


def test_no_users_many_runs_displace_the_first_run_of_another(tmp_path: Path) -> None:
    """2,000 jobs of one user's, all of them later, made gpusaged forget another's."""
    flood = [
        replace(
            UNMARKED, job_id=str(number), started_at_s=UNMARKED.started_at_s + 1.0, ended_at_s=UNMARKED.ended_at_s + 1
        )
        for number in range(100, 2_100)
    ]
    with closing(open_store(f"sqlite:///{tmp_path}/d.db")) as store:
        store.record_usage([replace(UNMARKED, user="bob", user_id="1001"), *flood])
        known = learner.first_runs_in_store(store, LearningSettings(), NOW_S)
    assert known["1001", "7"] == SHOWED
    assert len(known) == 1 + learner.FIRST_RUNS_PER_USER


def test_a_run_without_a_model_is_published_at_once_and_nothing_twice(tmp_path: Path) -> None:
    opened = partial(open_store, f"sqlite:///{tmp_path}/d.db")
    published: list[Learned] = []
    task = learner.Learner(Configuration, opened, published.append)
    task.run_once()
    with closing(opened()) as store:
        store.record_usage([replace(UNMARKED, started_at_s=time.time() - 3600.0, ended_at_s=time.time())])
    task.run_once()
    task.run_once()
    assert [each.first_runs for each in published] == [{}, {("1000", "7"): SHOWED}]


def test_what_is_learned_from_runs_is_the_same_without_what_teaches_nothing() -> None:
    """A month of a large site has 20,000 runs to learn from, of 10 KB each."""
    observations = [Observation(usage=each, decision=RECORD) for each in (USAGE, UNMARKED)]
    first, second = learner.learnable(observations)
    assert first.decision is not None
    assert second.decision is not None
    assert (first.decision.decision.reasons, first.decision.decision.need) == ((), RECORD.decision.need)
    assert first.decision.workload is second.decision.workload
    whole, slim = ([run for _, run in runs_of(each, 10.0)] for each in (observations, [first, second]))
    assert whole == slim
