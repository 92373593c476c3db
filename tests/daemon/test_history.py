"""A real gpusaged and jobs that name no model: recorded, told by their history, and changed once that has earned it."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpusage.devices.catalogue import Catalogue, describe_gpus
from gpusage.store.opening import open_store
from gpusage_hooks.types import DecisionRecord, Usage
from gpusage_lab.history.training import fit_history, write_history
from past_runs import ADA, GIB, past_runs

if TYPE_CHECKING:
    from tests.daemon.conftest import Daemon

USAGE = Usage(
    number="",
    manager="slurm",
    job_id="7",
    user="ada",
    gpu="v100-sxm2-16gb",
    outcome="completed",
    started_at_s=0.0,
    ended_at_s=3600.0,
    sampled_s=3600,
    alone_s=3600,
    gpu_utilization=0.1,
    peak_utilization=0.2,
    memory_bytes=2 * GIB,
)


def request_decision(daemon: Daemon, **fields: str) -> dict[str, Any]:
    """Return the answer to a job that says nothing to us."""
    usual = {"comment": "", "name": "train_4", "account": "physics", "script_digest": ADA.script_digest}
    return daemon.ask(daemon.question("", **{**usual, **fields}))


def put_history(daemon: Daemon) -> None:
    """Write a history of thirty runs of the user 1000, each busy 20 % at most and with 2 GiB."""
    runs = [replace(run, memory_bytes=2 * GIB) for run in past_runs([0.2] * 30)]
    history, _ = fit_history(runs, Catalogue(describe_gpus()).find, 0.0)
    write_history(history, daemon.folder / "history.json")


def put_checked(daemon: Daemon, reported: DecisionRecord, users: int = 5, count: int = 40) -> None:
    """Put into the store that jobs of several users did what *reported* says."""
    records, usages, now_s = [], [], time.time()
    for user in range(1000, 1000 + users):
        for run in range(count):
            number = f"{user:06x}{run:06x}"
            assert reported.identity is not None
            records.append(replace(reported, number=number, identity=replace(reported.identity, user=str(user))))
            usages.append(replace(USAGE, number=number, job_id=number, started_at_s=now_s - 3600, ended_at_s=now_s))
    with closing(open_store(f"sqlite:///{daemon.store}")) as store:
        store.record_all(records)
        store.record_usage(usages)


def test_by_default_a_job_that_names_no_model_is_left_alone(idle: Daemon) -> None:
    idle.learn_every(0.1)
    idle.start()
    answer = request_decision(idle)
    assert (answer["code"], answer["message"], "mark" in answer) == ("DECLINE", "", False)


def test_observed_jobs_get_a_mark_and_nothing_else(idle: Daemon) -> None:
    """The mark leads from what a job did to what it was; the record knows it by features, without its script."""
    idle.learn_every(0.1, history="observe")
    idle.start()
    answer = request_decision(idle)
    (record,) = idle.records()
    mark = answer.pop("mark")
    assert answer == {"v": "1", "code": "KEEP", "message": ""}
    assert mark.startswith(f"gpusage {record.number} KEEP gres/gpu:1 | the job names no model; ")
    assert record.identity == replace(ADA, job_name="train_4", request="1 any, 1 cores, 0 GiB")
    shown = request_decision(idle, script_comment="learn=on", shows_model="1")
    assert shown["message"].endswith("; learn=on: this run shows the model")
    for left_alone in ({"comment": "gpusage=off"}, {"tres_per_node": ""}):
        assert "mark" not in request_decision(idle, **left_alone)


def test_history_is_observed_until_it_has_earned_to_decide(idle: Daemon) -> None:
    """Two hundred checked runs of five users, forty of the user whose job it is."""
    idle.learn_every(0.1, history="enforce")
    idle.behave(silent=True)
    put_history(idle)
    idle.start()
    idle.wait(lambda: "REWRITE" in request_decision(idle)["mark"])
    answer = request_decision(idle)
    assert set(answer) == {"v", "code", "message", "mark"}
    assert (answer["code"], answer["message"]) == ("KEEP", "")
    assert " REWRITE (observe) gres/gpu:1 -> gres/mps:" in answer["mark"]
    assert (
        "12 runs of yours with this script and name: busy 20 % (up to 20 %), 2.0 GiB (up to 2.2 GiB)" in answer["mark"]
    )
    assert "history is observed only: 0 of 200 runs of this site are checked yet" in answer["mark"]
    record = idle.records()[0]
    assert record.decision.need is not None
    assert record.decision.need.source == "history"
    put_checked(idle, record)
    idle.wait(lambda: request_decision(idle)["code"] == "REWRITE")
    answer = request_decision(idle)
    assert answer["set.gres"].startswith("mps:")
    assert answer["message"].startswith("gres/gpu:1 -> gres/mps:")
    assert request_decision(idle, user_id="4000")["code"] == "KEEP"  # of whom nothing is known
    assert "REWRITE" not in request_decision(idle, user_id="1001")["mark"]  # checked, but without runs in the history


def test_in_observe_nothing_is_enforced_whatever_was_earned(idle: Daemon) -> None:
    idle.learn_every(0.1, history="observe")
    idle.behave(silent=True)
    put_history(idle)
    idle.start()
    idle.wait(lambda: "REWRITE" in request_decision(idle)["mark"])
    put_checked(idle, idle.records()[0])
    time.sleep(1.0)
    answer = request_decision(idle)
    assert answer["code"] == "KEEP"
    assert "history is observed only, as [learning] history says" in answer["mark"]


def test_a_file_that_is_no_history_changes_nothing_but_the_log(idle: Daemon) -> None:
    idle.learn_every(0.1, history="enforce")
    (idle.folder / "history.json").write_text('{"schema": "x"}')
    idle.start()
    idle.wait(lambda: "must be what gpusage train --history writes" in (idle.folder / "log").read_text())
    assert request_decision(idle)["code"] == "KEEP"
