"""What a real gpusaged answers, and what it records of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpusage.decisions.advisor import advisor
from gpusage.graphs.card.text import encode
from gpusage.service.protocol import json_line
from gpusage.store.annotation import parse_annotation
from records import annotation_of_record

if TYPE_CHECKING:
    from tests.daemon.conftest import Daemon

KEEP_ANSWER = {"v": "1", "code": "KEEP", "message": ""}


def test_ping_is_answered_and_status_tells_what_is_seen(daemon: Daemon) -> None:
    """`gpusage slurm status` shows this."""
    assert daemon.ask({"v": 1, "op": "ping"}) == {"v": "1", "code": "OK"}
    status = daemon.status()
    assert (status["code"], status["mode"]) == ("OK", "enforce")
    assert status["clusters"]["slurm"]["pools"][0]["site_type"] == "v100"
    assert status["kill_switch"] == {"path": f"{daemon.folder}/off", "on": False}
    assert status["configuration"]["error"] is None


def test_a_request_is_rewritten_and_recorded(daemon: Daemon) -> None:
    """The main job: one whole GPU becomes 40 units of MPS."""
    answer = daemon.ask()
    assert answer["code"] == "REWRITE"
    assert answer["set.gres"] == "mps:40"
    assert all(isinstance(value, str) for value in answer.values())
    assert answer["message"].startswith("gres/gpu:1 -> gres/mps:40")
    (record,) = daemon.records()
    assert answer["mark"] == str(annotation_of_record(record))
    assert answer["mark"].startswith(f"gpusage {record.number} REWRITE gres/gpu:1 -> gres/mps:40")
    assert int(record.number[:8], 16) == int(record.decided_at_s)
    assert (record.manager, record.origin, record.mode, record.model) == ("slurm", "uid 1000", "enforce", "tiny.onnx")
    assert record.decision.code.value == "REWRITE"
    assert record.workload is not None
    assert record.workload.batch_size == 8
    assert abs(record.decided_at_s - time.time()) < 60
    # The log is written behind the answer.
    daemon.wait(lambda: "slurm uid 1000: REWRITE (enforce) gres/gpu:1 -> gres/mps:40" in daemon.log())


def test_the_same_question_again_gets_the_same_answer_and_a_record_of_its_own(daemon: Daemon) -> None:
    """Answers are remembered; jobs are not, and each carries its own record's number."""
    answers = [daemon.ask() for _ in range(3)]
    marks = [parse_annotation(answer.pop("mark")) for answer in answers]
    assert answers[0] == answers[1] == answers[2]
    assert [mark.number for mark in marks[::-1] if mark] == [record.number for record in daemon.records()]
    assert len({mark.number for mark in marks if mark}) == 3
    assert daemon.status()["lines"]["remembered"] >= 1


def test_who_looks_for_a_first_byte_has_one_before_the_answer_to_a_new_question(daemon: Daemon) -> None:
    """White space before JSON; where the client has given up for want of it, the job is recorded with its request."""
    now_s = time.time()
    question = daemon.question() | {"until_s": now_s + 4.0, "first_by_s": now_s + 4.0}
    assert [daemon.raw(json_line(question))[:2] for _ in range(2)] == [b" {", b'{"']
    late = daemon.question(comment="model=tiny.onnx,batch=9") | {"until_s": now_s + 4.0, "first_by_s": now_s - 1.0}
    assert b'"overdue":"1"' in daemon.raw(json_line(late))
    daemon.wait(lambda: [record.decision.code.value for record in daemon.records()] == ["KEEP", "REWRITE", "REWRITE"])


def test_jobs_that_differ_in_user_name_and_script_alone_are_judged_once(daemon: Daemon) -> None:
    """Else every job of a busy site would be predicted anew; the records know the jobs apart.

    On a busy machine the first may be late, and a new look at the cluster may come between two.
    """
    for number in range(6):
        fields = {"user_id": str(1000 + number), "name": f"job-{number}", "script_digest": f"{number:016}"}
        daemon.ask(daemon.question(**fields))
    assert daemon.status()["lines"]["remembered"] >= 1
    assert [record.origin for record in daemon.records()] == [f"uid {1000 + number}" for number in (5, 4, 3, 2, 1, 0)]


def test_observe_says_nothing_and_sets_nothing_but_records_what_it_would_do(idle: Daemon) -> None:
    """So a site can look before it dares; the job carries what would have been done, and nothing else of ours."""
    idle.configure(mode="observe")
    idle.start()
    answer = idle.ask()
    (record,) = idle.records()
    mark = answer.pop("mark")
    assert answer == KEEP_ANSWER
    assert mark.startswith(f"gpusage {record.number} REWRITE (observe) gres/gpu:1 -> gres/mps:40")
    assert (record.mode, record.decision.code.value, record.rendered.after[:12]) == (
        "observe",
        "REWRITE",
        "gres/mps:40",
    )


def test_advise_tells_the_user_and_sets_nothing(idle: Daemon) -> None:
    """The user can then write it into the script."""
    idle.configure(mode="advise")
    idle.start()
    answer = idle.ask()
    assert set(answer) == {"v", "code", "message", "mark"}
    assert answer["code"] == "KEEP"
    assert " REWRITE (advise) " in answer["mark"]
    assert answer["message"].startswith("advice only in mode advise: gres/gpu:1 -> gres/mps:40")


def test_a_job_that_says_nothing_to_us_is_declined(daemon: Daemon) -> None:
    """Also where it opted out."""
    assert daemon.ask(daemon.question(comment=""))["code"] == "DECLINE"
    assert daemon.ask(daemon.question(comment="gpusage=off"))["code"] == "DECLINE"
    assert [record.decision.code.value for record in daemon.records()] == ["DECLINE", "DECLINE"]


def test_a_dry_run_is_answered_and_is_no_job(daemon: Daemon) -> None:
    """`sbatch --test-only` submits nothing, so it is in no list and no report, and takes no room.

    A job that runs all the same, because its user said that it is one, must have no share that nobody knows of.
    """
    daemon.ask()
    answer = daemon.ask(daemon.question(dry_run="1"))
    assert answer["code"] == "REWRITE"
    assert "gres/gpu:1 -> gres/mps:40" in answer["message"]
    assert not [key for key in answer if key.startswith(("set.", "env.", "mark"))]
    daemon.ask()
    assert len(daemon.records()) == 2
    assert daemon.status()["lines"]["rewrite"] == 3


def test_another_manager_than_any_adapter_knows_is_declined(daemon: Daemon) -> None:
    """And nothing is recorded, because nothing was understood."""
    assert daemon.ask({**daemon.question(), "manager": "pbs"})["code"] == "DECLINE"
    assert daemon.records() == ()


def test_a_job_without_a_card_is_kept_with_the_reason_in_the_record(daemon: Daemon) -> None:
    """The daemon reads no model."""
    answer = daemon.ask(daemon.question(""))
    assert answer["code"] == "KEEP"
    assert "no description of the model came with the job" in answer["message"]
    assert answer["mark"] == str(annotation_of_record(daemon.records()[0]))
    assert " KEEP gres/gpu:1 | " in answer["mark"]


@pytest.mark.parametrize("name", ["timm:resnet18", "torchvision:resnet18", "hf:bert-base-uncased"])
def test_a_model_of_a_known_name_needs_no_card(daemon: Daemon, name: str) -> None:
    comment = f"model={name},batch=8,mode=infer,utilization=30"
    card = encode(advisor().read(name))
    answer, with_card = (daemon.ask(daemon.question(text, comment=comment)) for text in ("", card))
    assert (answer["code"], answer["message"]) == ("REWRITE", with_card["message"])


@pytest.mark.parametrize(
    "model", ["timm:resnet18,shape=input=3x32x32", "timm:nobody", "hf:../../etc/passwd", "/etc/passwd.onnx"]
)
def test_what_gpusaged_has_no_card_of_it_reads_nowhere(daemon: Daemon, model: str) -> None:
    answer = daemon.ask(daemon.question("", comment=f"model={model},batch=8"))
    assert "no description of the model came with the job" in answer["message"]


def test_a_job_that_names_no_model_or_meets_the_kill_switch_carries_no_mark(daemon: Daemon) -> None:
    """Nothing of ours is written on the jobs of those who did not ask us, or while we are switched off."""
    assert "mark" not in daemon.ask(daemon.question(comment=""))
    assert "mark" not in daemon.ask(daemon.question(comment="model=tiny.onnx,gpusage=off"))
    (daemon.folder / "off").touch()
    daemon.wait(lambda: daemon.ask() == KEEP_ANSWER)


def test_a_job_whose_run_shows_its_model_carries_a_mark_that_says_so(daemon: Daemon) -> None:
    answer = daemon.ask(daemon.question(comment="learn=on", shows_model="1"))
    assert answer["message"] == "gres/gpu:1 kept | learn=on: this run shows the model"
    assert answer["mark"].endswith(" KEEP gres/gpu:1 | learn=on: this run shows the model")


def test_a_card_that_is_none_is_kept(daemon: Daemon) -> None:
    """Anyone can put anything into an environment variable."""
    for forged in ("x", "AAAA" * 100, "\u2603", daemon.card()[:-8]):
        answer = daemon.ask(daemon.question(forged))
        assert (answer["code"], set(answer)) == ("KEEP", {"v", "code", "message", "mark"})
    assert daemon.ask()["code"] == "REWRITE"
    assert daemon.status()["lines"]["failed"] == 0


def test_a_malformed_comment_is_kept_and_the_user_told(daemon: Daemon) -> None:
    """A typo costs the advice, never the job."""
    answer = daemon.ask(daemon.question(comment="model=tiny.onnx,bacth=8"))
    assert answer["code"] == "KEEP"
    assert "Did you mean 'batch'?" in answer["message"]
    assert "Did you mean 'batch'?" in answer["mark"]


def test_a_fault_in_a_plugin_is_kept_logged_and_counted(daemon: Daemon) -> None:
    """Nothing that a plugin raises may cost a job; and the next one may go well, so nothing is remembered."""
    for _ in range(2):
        answer = daemon.ask(daemon.question(daemon.card("fault=1")))
        assert "ZeroDivisionError" in answer.pop("mark")
        assert answer == KEEP_ANSWER
    assert daemon.status()["lines"]["failed"] == 2
    assert "ZeroDivisionError" in daemon.log()
    assert "ZeroDivisionError" in daemon.records()[0].decision.reasons[0]


def test_a_slow_decision_is_answered_in_time_and_remembered_for_the_next_job(idle: Daemon) -> None:
    """The record tells what the first job really got: what it asked for."""
    idle.start()
    slow = idle.question(idle.card("sleep=1.2"))
    answer = idle.ask({**slow, "until_s": time.time() + 0.4})
    assert (answer["code"], answer["overdue"]) == ("KEEP", "1")
    assert set(answer) == {"v", "code", "message", "overdue", "mark"}
    assert "longer than the limit allows" in answer["message"]
    idle.wait(idle.records)
    (record,) = idle.records()
    assert (record.model, record.rendered.before, record.rendered.after) == ("tiny.onnx", "gres/gpu:1", "gres/gpu:1")
    assert answer["message"] == f"{record.decision.reasons[0]}. The request stays as it is."
    idle.wait(lambda: idle.ask(slow)["code"] == "REWRITE")
    assert idle.status()["lines"]["overdue"] >= 1


def test_a_job_that_waited_behind_a_slow_one_is_recorded_with_its_request_and_remembered_too(idle: Daemon) -> None:
    """Nobody could read it in time; the judge comes to it when nobody waits any more."""
    idle.start()
    behind = idle.question(idle.card("behind"), comment="model=behind.onnx")
    with idle.connected() as connection:
        connection.sendall(_line(idle.question(idle.card("sleep=1.5"), comment="model=slow.onnx")))
        idle.wait(lambda: idle.status()["lines"]["requests"] == 1)
        soon_s = time.time() + 0.2
        assert idle.ask({**behind, "until_s": soon_s}) == {**KEEP_ANSWER, "overdue": "1"}
        # It says nothing to us, and nobody knew.
        assert idle.ask({**idle.question(comment=""), "until_s": soon_s + 0.2})["code"] == "KEEP"
    idle.wait(lambda: len(idle.records()) == 3)
    records = {record.model: record for record in idle.records()}
    assert {record.rendered.after for record in records.values()} == {"gres/gpu:1"}
    assert "longer than the limit" in records["slow.onnx"].decision.reasons[0]
    assert "longer than the limit" in records["behind.onnx"].decision.reasons[0]
    assert records[None].decision.code.value == "DECLINE"
    assert idle.ask(behind)["code"] == "REWRITE"
    assert idle.status()["lines"]["overdue"] == 3


def test_an_answer_that_comes_after_the_clients_deadline_is_recorded_as_what_it_was(daemon: Daemon) -> None:
    """On a busy machine a question is read when its client has gone; by another clock than ours nobody is late."""
    assert daemon.ask()["code"] == "REWRITE"
    assert daemon.ask({**daemon.question(), "until_s": time.time() - 0.01})["code"] == "KEEP"
    daemon.wait(lambda: len(daemon.records()) == 2)
    assert daemon.records()[0].decision.code.value == "KEEP"
    assert "longer than the limit" in daemon.records()[0].decision.reasons[0]
    for until_s in (time.time() + 1, time.time() - 3600, time.time() + 3600, 1e999, "soon"):
        assert daemon.ask({**daemon.question(), "until_s": until_s})["code"] == "REWRITE"


def test_jobs_that_got_no_answer_are_counted_when_the_client_tells_of_them(daemon: Daemon) -> None:
    """The Lua in slurmctld knows of those that it did not ask about, and why."""
    assert set(daemon.status()["missed"].values()) == {0}
    daemon.ask({**daemon.question(), "missed": {"silent": 3, "rest": 40}})
    daemon.ask({**daemon.question(), "missed": {"rest": 2, "else": 1, "strange": -1, "unreachable": True}})
    daemon.ask({**daemon.question(), "missed": [1]})
    daemon.ask({**daemon.question(), "until_s": time.time() - 0.01, "missed": {"silent": 5}})  # will be told once more
    assert daemon.status()["missed"] == {"silent": 3, "rest": 42, "unreachable": 0, "strange": 0, "refused": 0}
    assert "slurm: jobs before this one were left unchanged: silent 3, rest 40" in daemon.log()


def test_an_adapter_that_can_wait_longer_says_so_and_gets_its_answer(idle: Daemon) -> None:
    """YARN's does: a submission there holds up nobody else."""
    idle.start()
    slow = idle.question(
        idle.card("sleep=1.0")
    )  # a client that does not say has a second, of which 0.7 are the judge's
    assert idle.ask({**slow, "until_s": time.time() + 4})["code"] == "REWRITE"


def test_remembered_questions_are_answered_while_a_slow_one_is_decided(idle: Daemon) -> None:
    """A forged card that takes long holds up nobody who asks what was asked before."""
    idle.start()
    idle.wait(lambda: idle.ask()["code"] == "REWRITE")
    before = idle.status()["lines"]["requests"]
    with idle.connected() as connection:
        connection.sendall(_line(idle.question(idle.card("sleep=30"))))
        idle.wait(lambda: idle.status()["lines"]["requests"] > before)
        begun_s = time.monotonic()
        idle.ask()
        assert time.monotonic() - begun_s < 15


def test_a_plugin_hears_of_each_decision(daemon: Daemon, tmp_path: Path) -> None:
    """Before it is written down."""
    heard = tmp_path / "heard"
    daemon.behave(heard=str(heard))
    daemon.ask()
    assert len(daemon.records()) == 1
    assert heard.read_text() == "REWRITE tiny.onnx\n"


def test_a_plugin_that_fails_to_hear_changes_nothing(daemon: Daemon) -> None:
    """It is logged, and the decision is recorded."""
    daemon.behave(deaf="no ears")
    assert daemon.ask()["code"] == "REWRITE"
    assert len(daemon.records()) == 1
    daemon.wait(lambda: "no ears" in daemon.log())


def _line(message: dict[str, object]) -> bytes:

    return json_line(message)
