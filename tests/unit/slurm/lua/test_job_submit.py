"""gpusage.lua in a stand-in for slurmctld, with sockets that misbehave; tests/slurm has the real one."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpusage.store.annotation import parse_annotation
from gpusage_slurm.install.lua_scripts import LUA_FOLDER, job_submit_block, quoted
from waiting import LIMIT_S, wait_until

Drive = Callable[..., dict[str, Any]]
Behaviour = Callable[[socket.socket, bytes], None]

REWRITE = {
    "v": "1",
    "code": "REWRITE",
    "message": "gres/gpu:1 -> gres/mps:40 | 31 % \u2713",
    "set.gres": "mps:40",
    "set.prefer": "v100",
    "set.tres_per_job": "",
    "env.GPUSAGE_DECISION": "mps:40",
}
SUBMIT = """
  local gpusage = require("gpusage")
  local socket = require("socket")
  gpusage.wrap{ socket = %s, limit_ms = %s, first_part = 1 }
  local job = job_of(%s)
  local start = socket.gettime()
  local verdict = slurm_job_submit(job, {}, 1000)
  return {
    seconds = socket.gettime() - start, verdict = verdict, gres = job.tres_per_node, prefer = job.prefer,
    excluded = job.exc_nodes,
    per_job = job.tres_per_job, mark = job.environment.GPUSAGE_DECISION, card = job.environment.SLURM_GPUSAGE_CARD,
    cap = job.environment.CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, export = job.environment.SLURM_EXPORT_ENV,
    owner = job.environment.GPUSAGE_JOB, pipe = job.environment.CUDA_MPS_PIPE_DIRECTORY,
    deadlines = (job.environment.SLURM_GPUSAGE_DEADLINE or "") .. (job.environment.GPUSAGE_DEADLINE or ""),
    preload = job.environment.LD_PRELOAD, priority = job.priority, partition = job.partition,
  }
"""


@contextlib.contextmanager
def server(path: Path, behaviour: Behaviour) -> Iterator[list[bytes]]:
    """Serve *behaviour* at *path*; the questions that came are in the list."""
    questions: list[bytes] = []
    over = threading.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(0.05)

        def serve() -> None:
            while not over.is_set():
                with contextlib.suppress(OSError):
                    connection, _ = listener.accept()
                    connection.settimeout(LIMIT_S)
                    with connection, connection.makefile("rb") as lines:
                        question = lines.readline()
                        if question.endswith(b"\n"):  # else its limit was over before it was asked
                            questions.append(question)
                            behaviour(connection, question)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield questions
        over.set()
        thread.join(LIMIT_S)


def answering(answer: object) -> Behaviour:
    line = answer if isinstance(answer, bytes) else json.dumps(answer).encode() + b"\n"
    return lambda connection, _: connection.sendall(line)


def keeping(connection: socket.socket, question: bytes) -> None:
    """Answer this question and the next ones on one connection, as gpusaged does; the first after a space."""
    connection.sendall(b" ")
    with connection.makefile("rb") as lines, contextlib.suppress(OSError):
        while question.endswith(b"\n"):
            name = json.loads(question)["fields"].get("comment", "none")
            connection.sendall(json.dumps({"v": "1", "code": "KEEP", "message": name}).encode() + b"\n")
            question = lines.readline()


def dribbling(connection: socket.socket, _question: bytes) -> None:
    with contextlib.suppress(OSError):
        for byte in json.dumps(REWRITE).encode():
            connection.sendall(bytes([byte]))
            time.sleep(0.02)


def silent(connection: socket.socket, _question: bytes) -> None:
    connection.settimeout(LIMIT_S)
    connection.recv(1)  # until the client has gone


def flooding(connection: socket.socket, _question: bytes) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(b"x" * 1_000_000)


def submit(path: Path | str, job: str = "{}", limit_ms: int = 2000) -> str:
    return SUBMIT % (quoted(str(path)), limit_ms, job)


def test_nodes_that_a_share_avoids_are_set(drive: Drive, tmp_path: Path) -> None:
    with server(tmp_path / "s", answering({**REWRITE, "set.exc_nodes": "n9,n1"})):
        report = drive(submit(tmp_path / "s", "{ tres_per_node = 'gres:gpu:1', exc_nodes = 'n9' }"))
    assert (report["gres"], report["excluded"]) == ("gres:mps:40", "n9,n1")


def test_an_answer_is_applied_and_shown(drive: Drive, tmp_path: Path) -> None:
    with server(tmp_path / "s", answering(REWRITE)) as questions:
        report = drive(submit(tmp_path / "s", "{ tres_per_node = '', tres_per_job = 'gres:gpu:1' }"))
    assert (report["gres"], report["prefer"], report["per_job"], report["mark"]) == (
        "gres:mps:40",
        "v100",
        "",
        "mps:40",
    )
    assert report["printed"] == "gpusage: gres/gpu:1 -> gres/mps:40 | 31 % \u2713"
    assert (report["logged"], report["verdict"]) == ("", "0")
    assert len(questions) == 1


def test_the_question_says_all_that_the_protocol_has(drive: Drive, tmp_path: Path) -> None:
    job = """{ comment = 'model=r.onnx', min_nodes = 2, max_nodes = 4294967294, num_tasks = 3, shared = 65534,
               ntasks_per_node = 4, ntasks_per_tres = 65534, het_job_offset = 4294967294, features = 'a&b',
               partition = 'gpu',
               environment = { SLURM_GPUSAGE_CARD = 'QUJD', SLURM_EXPORT_ENV = 'NONE' } }"""
    with server(tmp_path / "s", answering({"v": "1", "code": "KEEP", "message": ""})) as questions:
        report = drive(submit(tmp_path / "s", job))
    question = json.loads(questions[0])
    assert (question["v"], question["manager"]) == (1, "slurm")
    expected = {
        "user_id": "1000", "comment": "model=r.onnx", "card": "QUJD", "tres_per_node": "gres:gpu:1", "min_nodes": "2",
        "num_tasks": "3", "ntasks_per_node": "4", "het": "0", "dry_run": "0", "script": "1", "features": "a&b",
        "partition": "gpu", "export": "NONE", "script_digest": question["fields"]["script_digest"],
    }  # fmt: skip
    assert question["fields"] == expected  # what is empty is left out
    assert all(isinstance(value, str) for value in question["fields"].values())
    assert (report["gres"], report["printed"], report["card"]) == ("gres:gpu:1", "", "")  # the card has done its work


@pytest.mark.parametrize(("value", "expected"), [("'1'", "1"), ("nil", "0"), ("'yes'", "0")])
def test_a_dry_run_is_told_of_where_our_filter_saw_one(drive: Drive, tmp_path: Path, value: str, expected: str) -> None:
    job = f"{{ environment = {{ SLURM_GPUSAGE_DRY_RUN = {value} }} }}"
    with server(tmp_path / "s", answering({"v": "1", "code": "KEEP"})) as questions:
        drive(submit(tmp_path / "s", job))
    assert json.loads(questions[0])["fields"]["dry_run"] == expected


def test_a_client_without_our_filter_may_send_a_card_under_its_plain_name(drive: Drive, tmp_path: Path) -> None:
    job = "{ environment = { GPUSAGE_CARD = 'QUJD', SLURM_EXPORT_ENV = 'ALL,GPUSAGE_CARD=QUJD,X=1' } }"
    with server(tmp_path / "s", answering({"v": "1", "code": "KEEP"})) as questions:
        drive(submit(tmp_path / "s", job))
    fields = json.loads(questions[0])["fields"]
    assert (fields["card"], fields["export"]) == ("QUJD", "ALL,X=1")


@pytest.mark.parametrize(
    ("environment", "deadline"),
    [
        ("SLURM_GPUSAGE_DEADLINE = '1800000000'", "uts=1800000000"),
        ("GPUSAGE_DEADLINE = '1800000000', SLURM_EXPORT_ENV = 'ALL,GPUSAGE_CARD=QUJD,GPUSAGE_DEADLINE=18,X=1'",
         "uts=1800000000"),
        ("SLURM_GPUSAGE_DEADLINE = 'soon'", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_the_deadline_that_our_filter_sent_is_in_the_question_and_no_longer_in_the_job(
    drive: Drive, tmp_path: Path, environment: str, deadline: str
) -> None:
    with server(tmp_path / "s", answering({"v": "1", "code": "KEEP"})) as questions:
        report = drive(submit(tmp_path / "s", f"{{ environment = {{ {environment} }} }}"))
    fields = json.loads(questions[0])["fields"]
    assert fields.get("deadline", "") == deadline
    assert fields.get("export") in (None, "ALL,X=1")
    assert report["deadlines"] == ""


def test_whoever_reads_sbatchs_output_by_machine_is_told_nothing(drive: Drive, tmp_path: Path) -> None:
    with server(tmp_path / "s", answering({"v": "1", "code": "KEEP", "message": "words"})):
        report = drive(submit(tmp_path / "s", "{ environment = { SLURM_GPUSAGE_QUIET = '1' } }"))
        assert report["printed"] == ""
        assert "words" in drive(submit(tmp_path / "s", "{ environment = {} }"))["printed"]


def test_lines_of_a_script_and_a_variable_are_in_the_question(drive: Drive, tmp_path: Path) -> None:
    script = "script = '#!/bin/sh\\n#GPUSAGE model=a.onnx\\n#GPUSAGE batch=4,\\ntrue\\n#GPUSAGE batch=9'"
    with server(tmp_path / "s", answering({"v": "1", "code": "KEEP"})) as questions:
        drive(submit(tmp_path / "s", f"{{ {script}, environment = {{ GPUSAGE_COMMENT = 'model=b.onnx' }} }}"))
        drive(submit(tmp_path / "s", "{ environment = { SLURM_GPUSAGE_LEARN = '/home/u/record' } }"))
    fields, of_first_run = (json.loads(question)["fields"] for question in questions)
    assert (fields["script_comment"], fields["variable_comment"]) == ("model=a.onnx,batch=4", "model=b.onnx")
    assert ("shows_model" in fields, of_first_run["shows_model"]) == (False, "1")


def test_a_direct_srun_and_a_heterogeneous_component_are_told_apart(drive: Drive, tmp_path: Path) -> None:
    with server(tmp_path / "s", answering({"v": "1", "code": "KEEP"})) as questions:
        drive(submit(tmp_path / "s", "{ script = '', het_job_offset = 0 }"))
    fields = json.loads(questions[0])["fields"]
    assert (fields["script"], fields["het"]) == ("0", "1")


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ("script = '#!/bin/sh\\nsrun --gpus=1 --mem-per-gpu=1G x\\n'", ""),
        ("script = '#!/bin/sh\\nsrun --cpus-per-gpu 4 x\\n'", "cpus-per-gpu"),
        ("script = '#!/bin/sh\\nexport SLURM_CPUS_PER_GPU=4\\n'", "cpus-per-gpu"),
        ("environment = { SLURM_CPUS_PER_GPU = '4' }", "cpus-per-gpu"),
        ("script = string.rep('x', 262145)", "unread"),
        ("script = ''", ""),
    ],
)
def test_srun_lines_that_a_share_could_not_carry_are_found(
    drive: Drive, tmp_path: Path, job: str, expected: str
) -> None:
    with server(tmp_path / "s", answering({"v": "1", "code": "KEEP"})) as questions:
        drive(submit(tmp_path / "s", f"{{ {job} }}"))
    assert json.loads(questions[0])["fields"].get("script_options", "") == expected


@pytest.mark.parametrize(
    ("job", "why"),
    [
        ("script = 'python train.py'", ""),
        ("script = 'python train.py', requeue = 1", ""),
        ("script = 'python train.py', requeue = 65534", ""),  # the site's own choice
        ("script = 'python train.py', requeue = 0", "no-requeue"),
        ("script = 'python -m submitit.core._submit /x'", "master"),
        ("script = 'x', std_out = '/dev/null'", "output"),
        ("script = 'x', std_out = '/dev/null', std_err = 'errors'", ""),
    ],
)
def test_a_job_that_cannot_run_again_unseen_is_known(drive: Drive, tmp_path: Path, job: str, why: str) -> None:
    with server(tmp_path / "s", answering({"v": "1", "code": "KEEP"})) as questions:
        drive(submit(tmp_path / "s", f"{{ {job} }}"))
    assert json.loads(questions[0])["fields"].get("unrepeatable", "") == why


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("#!/bin/sh\npython train.py --lr 0.1", "#!/bin/bash\n# seed 4\n  python  train.py --lr 0.25\n", True),
        ("#!/bin/sh\npython train.py", "#!/bin/sh\npython eval.py", False),
        ("#!/bin/sh\necho \u2713", "#!/bin/sh\necho \u2714", False),
        ("x" * 9_000, "x" * 9_001, True),
    ],
    ids=["numbers, comments and blanks", "another program", "other bytes", "only its beginning counts"],
)
def test_scripts_are_told_apart_by_a_digest_in_place_of_their_text(
    drive: Drive, tmp_path: Path, one: str, other: str, *, alike: bool
) -> None:
    digests = []
    for number, script in enumerate((one, other)):
        with server(tmp_path / f"s{number}", answering({"v": "1", "code": "KEEP"})) as questions:
            drive(submit(tmp_path / f"s{number}", f"{{ script = {quoted(script)} }}"))
        assert script.encode()[10:] not in questions[0]
        digests.append(json.loads(questions[0])["fields"]["script_digest"])
    assert all(len(digest) == 16 and digest.isdigit() for digest in digests)
    assert (digests[0] == digests[1]) is alike


@pytest.mark.parametrize(
    "comment",
    ['a"b\\c', "tab\tline\nend", "caf\u00e9 \u2713 \U0001f600", "\x01\x1f\x7f", "%s %d"],
)
def test_any_text_arrives_as_it_was(drive: Drive, tmp_path: Path, comment: str) -> None:
    with server(tmp_path / "s", answering({"v": "1", "code": "KEEP"})) as questions:
        drive(submit(tmp_path / "s", f"{{ comment = {quoted(comment)} }}"))
    assert json.loads(questions[0])["fields"]["comment"] == comment


def test_bytes_that_are_no_text_arrive_as_replacement_characters(drive: Drive, tmp_path: Path) -> None:
    # A lone continuation, an overlong form, a surrogate, beyond Unicode, a cut-off character.
    body = r'{ comment = "a\128b\192\175c\237\160\128d\244\144\128\128e\226\130" }'
    with server(tmp_path / "s", answering({"v": "1", "code": "KEEP"})) as questions:
        drive(submit(tmp_path / "s", body))
    comment = json.loads(questions[0])["fields"]["comment"]
    assert comment.replace("\ufffd", "") == "abcde"
    assert comment.count("\ufffd") >= 5


@pytest.mark.parametrize(
    "answer",
    [
        b"garbage\n",
        b"\n",
        b'{"v":"1"\n',
        b'{"v":1,"code":"REWRITE","set.gres":"mps:40"}\n',
        b'{"v":"2","set.gres":"mps:40"}\n',
        b'{"v":"1","set.gres":{"a":"b"}}\n',
        b'{"v":"1","set.gres":"mps:40","set.gres":"mps:41"}\n',
        b'{"v":"1","set.gres":"mps:40"} trailing\n',
        b'{"v":"1","set.gres":"mps:40\\q"}\n',
        b'{"v":"1","set.gres":"\\ud800"}\n',
        b'["v","1"]\n',
        b'{"v":"1","set.gres":"mps:40"}',  # half a line, then the end
        b"",
        b"\x00\xff\n",
    ],
)
def test_an_answer_that_is_not_of_the_protocol_changes_nothing(drive: Drive, tmp_path: Path, answer: bytes) -> None:
    with server(tmp_path / "s", answering(answer)):
        report = drive(submit(tmp_path / "s"))
    assert (report["gres"], report["verdict"], report["printed"]) == ("gres:gpu:1", "0", "")
    assert "job left as it is" in report["logged"]
    assert float(report["seconds"]) < 5


@pytest.mark.parametrize(("behaviour", "limit_ms"), [(dribbling, 100), (silent, 25)])
def test_the_limit_holds_for_the_whole_exchange(
    drive: Drive, tmp_path: Path, behaviour: Behaviour, limit_ms: int
) -> None:
    """A daemon that shows nothing of itself has a quarter of it."""
    with server(tmp_path / "s", behaviour):
        body = submit(tmp_path / "s", limit_ms=100)
        report = drive(body if behaviour is dribbling else body.replace(", first_part = 1", ""))
    assert report["gres"] == "gres:gpu:1"
    assert f"no answer within {limit_ms} ms" in report["logged"]
    assert limit_ms * 0.9e-3 < float(report["seconds"]) < 3  # the dribbling answer would take 4 s


SUBMIT_OFTEN = """
  local gpusage = require("gpusage")
  local socket = require("socket")
  local real, shift = socket.gettime, 0
  socket.gettime = function() return real() + shift end
  gpusage.wrap{ socket = %s, limit_ms = 200, first_part = 1 }
  local function submit(times)
    for _ = 1, times do slurm_job_submit(job_of(), {}, 1000) end
  end
  local function later(seconds) shift = shift + seconds end
  %s
  local start, job = real(), job_of()
  slurm_job_submit(job, {}, 1000)
  return { seconds = real() - start, gres = job.tres_per_node }
"""


def often(path: Path, steps: str) -> str:
    """Return what takes *steps* and then submits once more."""
    return SUBMIT_OFTEN % (quoted(str(path)), steps)


def test_a_daemon_that_was_silent_is_left_in_peace_for_a_moment(drive: Drive, tmp_path: Path) -> None:
    """Jobs that queued up behind the first do not each wait for the same silence."""
    with server(tmp_path / "s", silent) as questions:
        report = drive(often(tmp_path / "s", "submit(1) later(-0.01)"))
    assert len(questions) == 1
    assert report["gres"] == "gres:gpu:1"
    assert report["logged"].count("not asked again for 0.05 s") == 1
    assert "is not asked for a moment" in report["logged"].splitlines()[-1]


@pytest.mark.parametrize("shift_s", [1.5, -3600], ids=["after its rest", "with the clock set back"])
def test_the_daemon_is_asked_again(drive: Drive, tmp_path: Path, shift_s: float) -> None:
    with server(tmp_path / "s", silent):
        report = drive(often(tmp_path / "s", f"submit(1) later({shift_s})"))
    assert report["logged"].count("no answer within 200 ms") == 2


def test_a_rest_grows_to_two_seconds_and_no_longer(drive: Drive, tmp_path: Path) -> None:
    with server(tmp_path / "s", silent):
        report = drive(often(tmp_path / "s", "submit(1) for _ = 1, 6 do later(10) submit(1) end"))
    rests = [line.rpartition(" for ")[2] for line in report["logged"].splitlines() if "not asked again" in line]
    assert rests == ["0.05 s", "0.1 s", "0.2 s", "0.4 s", "0.8 s", "1.6 s", "2 s"]


def test_one_connection_serves_many_jobs_and_each_has_its_own_answer(drive: Drive, tmp_path: Path) -> None:
    """A space before an answer says that somebody is there."""
    steps = "for i = 1, 3 do slurm_job_submit(job_of{ comment = 'job' .. i }, {}, 1000) end"
    with server(tmp_path / "s", keeping) as questions:
        report = drive(often(tmp_path / "s", steps))
    assert report["printed"].splitlines() == [f"gpusage: {name}" for name in ("job1", "job2", "job3", "none")]
    assert len(questions) == 1  # of the first connection; there was no other


def test_a_question_tells_its_limit_and_how_many_jobs_before_it_got_no_answer(drive: Drive, tmp_path: Path) -> None:
    strange = answering(b"no answer\n")
    answers = iter([silent, strange, silent, answering(REWRITE), answering(REWRITE)])
    begun_s = time.time()

    def in_turn(connection: socket.socket, question: bytes) -> None:
        next(answers)(connection, question)

    with server(tmp_path / "s", in_turn) as questions:
        drive(often(tmp_path / "s", "submit(1) later(1) submit(2) later(-0.01) submit(1) later(1) submit(1)"))
    requests = [json.loads(question) for question in questions]
    assert [each.get("missed") for each in requests] == [
        None,
        {"silent": 1},  # this answer is none, but whoever gave it has counted
        {"strange": 1},
        {"strange": 1, "silent": 1, "rest": 1},  # told until somebody answers; one job was not asked about
        None,
    ]
    assert begun_s < requests[0]["until_s"] < begun_s + 30


def test_a_daemon_that_is_not_there_needs_no_rest_and_its_jobs_are_told_of_later(drive: Drive, tmp_path: Path) -> None:
    start = f"os.rename({quoted(str(tmp_path / 'later'))}, {quoted(str(tmp_path / 's'))})"
    with server(tmp_path / "later", answering(REWRITE)) as questions:
        report = drive(often(tmp_path / "s", f"submit(5) {start}").replace("limit_ms = 200", "limit_ms = 1000"))
    assert json.loads(questions[0])["missed"] == {"unreachable": 5}
    assert report["gres"] == "gres:mps:40"


def test_a_megabyte_is_refused_at_64_kib(drive: Drive, tmp_path: Path) -> None:
    with server(tmp_path / "s", flooding):
        report = drive(submit(tmp_path / "s"))
    assert report["gres"] == "gres:gpu:1"
    assert "above 65536 bytes" in report["logged"]


def test_a_socket_whose_queue_is_full_costs_no_more_than_the_limit(drive: Drive, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, contextlib.ExitStack() as waiting:
        listener.bind(str(tmp_path / "s"))
        listener.listen(0)
        for _ in range(4):
            client = waiting.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            client.setblocking(False)
            client.connect_ex(str(tmp_path / "s"))
        report = drive(submit(tmp_path / "s", limit_ms=100))
    assert (report["gres"], report["verdict"]) == ("gres:gpu:1", "0")
    assert float(report["seconds"]) < 5


@pytest.mark.parametrize("kind", ["missing", "plain file", "folder", "nobody listens", "a very long path"])
def test_a_socket_that_is_none_fails_at_once(drive: Drive, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "s"
    if kind == "plain file":
        path.write_text("")
    elif kind == "folder":
        path.mkdir()
    elif kind == "nobody listens":
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left_behind:
            left_behind.bind(str(path))
    elif kind == "a very long path":
        path = tmp_path / ("x" * 200)
    report = drive(submit(path, "{ environment = { SLURM_GPUSAGE_CARD = 'QUJD' } }"))
    assert (report["gres"], report["verdict"]) == ("gres:gpu:1", "0")
    assert float(report["seconds"]) < 5
    assert report["logged"].count("\n") == 0
    assert "job left as it is" in report["logged"]
    assert report["printed"] == "gpusage: gpusaged cannot be reached; the request stays as it is"


def test_without_luasocket_every_job_goes_through_and_one_line_says_why(drive: Drive) -> None:
    report = drive(
        """
        package.preload["socket.unix"] = function() error("module not found") end
        package.loaded["socket.unix"] = nil
        local gpusage = require("gpusage")
        gpusage.wrap{ socket = "/nowhere" }
        local job = job_of()
        local verdict = slurm_job_submit(job, {}, 0) + slurm_job_submit(job, {}, 0)
        return { gres = job.tres_per_node, verdict = verdict }
        """
    )
    assert (report["gres"], report["verdict"]) == ("gres:gpu:1", "0")
    assert report["logged"].count("LuaSocket is missing") == 1


def test_only_fields_and_variables_of_the_list_are_ever_set(drive: Drive, tmp_path: Path) -> None:
    answer = {**REWRITE, "set.priority": "1", "set.partition": "root", "env.LD_PRELOAD": "x.so", "other": "x"}
    with server(tmp_path / "s", answering(answer)):
        report = drive(submit(tmp_path / "s", "{ priority = 'own', partition = 'gpu' }"))
    assert (report["gres"], report["priority"], report["partition"]) == ("gres:mps:40", "own", "gpu")
    assert "preload" not in report


@pytest.mark.parametrize(
    "broken",
    [
        "environment = setmetatable({}, { __newindex = function() error('no environment') end })",
        "prefer = false",  # the field cannot be written: the stand-in takes texts only where there was one
    ],
)
def test_where_one_field_cannot_be_set_none_is(drive: Drive, tmp_path: Path, broken: str) -> None:
    body = submit(tmp_path / "s", f"{{ {broken} }}")
    if "prefer" in broken:
        body = body.replace("local start", "job.store.prefer = nil\n  local start")
    with server(tmp_path / "s", answering(REWRITE)):
        report = drive(body)
    assert (report["gres"], report["verdict"], report["printed"]) == ("gres:gpu:1", "0", "")
    assert not report.get("mark")
    assert "job left as it is" in report["logged"]


def test_a_job_without_a_gpu_is_not_even_asked_about(drive: Drive, tmp_path: Path) -> None:
    report = drive(submit(tmp_path / "missing", "{ tres_per_node = 'gres:nvme:1' }"))
    assert (report["gres"], report["logged"]) == ("gres:nvme:1", "")


def test_the_marks_of_an_enclosing_job_are_emptied(drive: Drive, tmp_path: Path) -> None:
    environment = (
        "environment = { GPUSAGE_DECISION = 'mps:40', CUDA_MPS_PINNED_DEVICE_MEM_LIMIT = '0=1M', GPUSAGE_JOB = '6',"
        " CUDA_MPS_PIPE_DIRECTORY = '/run/x',"
        " SLURM_EXPORT_ENV = 'ALL,GPUSAGE_CARD=QUJD', SLURM_GPUSAGE_CARD = 'QUJD' }"
    )
    report = drive(submit(tmp_path / "missing", f"{{ {environment} }}"))
    assert (report["mark"], report["cap"], report["card"], report["export"]) == ("", "", "", "ALL")
    assert (report["owner"], report["pipe"]) == ("", "")


@pytest.mark.parametrize(
    ("own", "verdict", "is_requested"),
    [
        ("return slurm.ERROR", "-1", False),
        ("return slurm.SUCCESS", "0", True),
        ("job.prefer = 'site'", "nil", True),
        ("return 2006", "2006", False),
    ],
)
def test_the_sites_own_verdict_comes_first(drive: Drive, own: str, verdict: str, *, is_requested: bool) -> None:
    report = drive(
        f"""
        function slurm_job_submit(job, parts, uid) {own} end
        local gpusage = require("gpusage")
        gpusage.wrap{{ socket = "/nowhere" }}
        gpusage.wrap{{ socket = "/nowhere" }}
        return {{ verdict = tostring(slurm_job_submit(job_of(), {{}}, 1)), modify = slurm_job_modify() }}
        """
    )
    assert (report["verdict"], report["modify"]) == (verdict, "0")
    assert report["logged"].count("job left as it is") == int(is_requested)


def test_an_error_of_the_sites_own_script_stays_its_own(drive: Drive) -> None:
    report = drive(
        """
        function slurm_job_submit() error("site") end
        require("gpusage").wrap{ socket = "/nowhere" }
        local done, problem = pcall(slurm_job_submit, job_of(), {}, 1)
        return { done = done, problem = problem }
        """
    )
    assert report["done"] == "false"
    assert "site" in report["problem"]


def test_the_sites_own_modify_has_its_word(drive: Drive) -> None:
    report = drive(
        """
        slurm_job_modify = function() return 7 end
        require("gpusage").wrap{}
        local job = { comment = "x [failed in its share, says gpusage]" }
        return { verdict = slurm_job_modify(job, {}), comment = job.comment }
        """
    )
    assert (report["verdict"], report["comment"]) == ("7", "x [failed in its share, says gpusage]")


@pytest.mark.parametrize(
    ("comment", "left"),
    [
        ("model=a.onnx [failed in its share, says gpusage]", "model=a.onnx"),
        ("[failed in its share, says gpusage]", ""),
        ("[failed in its share, says gpusage] no", "[failed in its share, says gpusage] no"),
    ],
)
def test_what_our_epilog_says_of_a_failed_share_goes_to_gpusaged_and_not_into_the_comment(
    drive: Drive, tmp_path: Path, comment: str, left: str
) -> None:
    """The number is that of the job's mark, which its user cannot write."""
    body = f"""
        require("gpusage").wrap{{ socket = "{tmp_path / "s"}", limit_ms = 1000 }}
        local job = {{ comment = "{comment}" }}
        local record = {{ user_id = 7, admin_comment = "gpusage 0123456789ab REWRITE x" }}
        local verdict = slurm_job_modify(job, record, {{}}, 7)
        return {{ verdict = verdict, comment = job.comment }}
        """
    with server(tmp_path / "s", answering({"v": "1", "code": "OK"})) as questions:
        report = drive(body)
        if left != comment:
            wait_until(lambda: questions)
    assert (report["verdict"], report["comment"]) == ("0", left)
    requests = [json.loads(question) for question in questions]
    assert requests == ([{"v": 1, "op": "failure", "number": "0123456789ab", "user": "7"}] if left != comment else [])


def test_a_sites_refusal_to_change_a_share_is_counted(drive: Drive, tmp_path: Path) -> None:
    """By what doctor says then: without it no job that runs out of its share's memory runs again."""
    body = f"""
        function slurm_job_modify() return slurm.ERROR end
        require("gpusage").wrap{{ socket = "{tmp_path / "s"}", limit_ms = 1000 }}
        local share = {{ user_id = 7, admin_comment = "gpusage 0123456789ab REWRITE gres/gpu:1 -> gres/mps:50 | x" }}
        local whole = {{ user_id = 7, admin_comment = "gpusage 0123456789ab KEEP gres/gpu:1 | x" }}
        local verdict = slurm_job_modify({{ tres_per_node = "gres:gpu:1" }}, share, {{}}, 7)
        slurm_job_modify({{ tres_per_node = "gres:gpu:1" }}, share, {{}}, 8)
        slurm_job_modify({{ tres_per_node = "gres:gpu:1" }}, whole, {{}}, 7)
        slurm_job_modify({{ comment = "x" }}, share, {{}}, 7)
        slurm_job_submit(job_of(), {{}}, 7)
        return {{ verdict = verdict }}
        """
    with server(tmp_path / "s", answering(REWRITE)) as questions:
        report = drive(body)
    assert report["verdict"] == "-1"
    assert json.loads(questions[0])["missed"] == {"refused": 1}


def test_nobody_tells_of_a_failure_of_another_users_job(drive: Drive, tmp_path: Path) -> None:
    """The controller asks job_submit before it looks whether who submits an update may do so."""
    body = f"""
        require("gpusage").wrap{{ socket = "{tmp_path / "s"}", limit_ms = 1000 }}
        local job = {{ comment = "[failed in its share, says gpusage]" }}
        slurm_job_modify(job, {{ user_id = 7, admin_comment = "gpusage 0123456789ab REWRITE x" }}, {{}}, 8)
        slurm_job_modify(job, {{ user_id = 7, admin_comment = "gpusage 0123456789ab REWRITE x" }})
        local own = job_of()
        slurm_job_submit(own, {{}}, 8)
        return {{ comment = job.comment }}
        """
    with server(tmp_path / "s", answering(REWRITE)) as questions:
        report = drive(body)
    assert report["comment"] == "[failed in its share, says gpusage]"
    assert [b"failure" in question for question in questions] == [False]


def test_a_flood_of_failures_waits_no_longer_for_a_gpusaged_that_hangs_than_questions_do(
    drive: Drive, tmp_path: Path
) -> None:
    body = f"""
        local now = require("socket").gettime
        require("gpusage").wrap{{ socket = "{tmp_path / "s"}", limit_ms = 1000, rest_s = 2 }}
        local start = now()
        for _ = 1, 50 do
          local job = {{ comment = "[failed in its share, says gpusage]" }}
          slurm_job_modify(job, {{ user_id = 7, admin_comment = "gpusage 0123456789ab REWRITE x" }}, {{}}, 7)
        end
        return {{ seconds = now() - start }}
        """
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.bind(str(tmp_path / "s"))
        listener.listen(0)
        waiting = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        waiting.connect(str(tmp_path / "s"))  # its queue is full
        report = drive(body)
    assert float(report["seconds"]) < 1


@pytest.mark.parametrize(
    "job",
    [
        "script = '#!/bin/sh\\n#GPUSAGE x' .. (','):rep(4000000) .. 'y\\n'",
        "script = '#GPUSAGE ' .. (' ,'):rep(2000000) .. 'y\\n'",
        "script = '#GPUSAGE a\\n' .. ('#\\n'):rep(2000000)",
        "script = '#GPUSAGE a\\n' .. ('\\n'):rep(4000000)",
        "script = ('#GPUSAGE a\\n'):rep(400000)",
        "script = ('submitit.core._submi'):rep(200000)",
        "script = ('d'):rep(4000000)",
        "environment = { GPUSAGE_COMMENT = ('\\1'):rep(4000000), SLURM_EXPORT_ENV = (',GPUSAGE_CARD=a'):rep(200000) }",
        "comment = ('\\200\\1\"'):rep(2700)",
    ],
)
def test_no_text_of_a_users_keeps_slurmctld_busy(drive: Drive, tmp_path: Path, job: str) -> None:
    """Its default lets a script have 4 MB. Half a second is for a busy host."""
    body = f"""
        require("gpusage").wrap{{ socket = "{tmp_path / "none"}" }}
        local job = job_of{{ {job} }}
        local start = os.clock()
        slurm_job_submit(job, {{}}, 1000)
        return {{ seconds = os.clock() - start }}
        """
    assert float(drive(body)["seconds"]) < 0.5


def test_the_installers_block_wraps_a_sites_script(drive: Drive, tmp_path: Path) -> None:
    folder = tmp_path / 'odd "folder" \u00e9'
    folder.mkdir()
    for name in ("gpusage.lua", "gpusage_request.lua"):
        (folder / name).write_bytes((LUA_FOLDER / name).read_bytes())
    block = job_submit_block(folder, str(tmp_path / "s"), 2000)
    assert len(block.splitlines()) <= 8
    script = f"package.path = ''\nfunction slurm_job_submit() return 0 end\n{block}"
    with server(tmp_path / "s", answering(REWRITE)):
        report = drive(
            f"local path = package.path\n{script}\npackage.path = path\nlocal job = job_of()\n"
            "slurm_job_submit(job, {}, 0)\nreturn { gres = job.tres_per_node }"
        )
    assert report["gres"] == "gres:mps:40"


def test_the_installers_block_survives_that_gpusage_is_gone(drive: Drive, tmp_path: Path) -> None:
    block = job_submit_block(tmp_path, "/run/gpusage.sock", 40)
    calls = "submit = slurm_job_submit({}, {}, 0), modify = slurm_job_modify()"
    report = drive(f"package.path = ''\n{block}\npackage.path = arg[1] .. '/?.lua'\nreturn {{ {calls} }}")
    assert "module 'gpusage' not found" in report["logged"]
    assert (report["submit"], report["modify"]) == ("0", "0")


def test_a_standalone_script_needs_nothing_else(lua: Any, tmp_path: Path) -> None:  # conftest's Lua
    code = (
        "slurm = { SUCCESS = 0, log_info = print, log_user = print }"
        f" assert(dofile({quoted(str(LUA_FOLDER / 'job_submit.lua'))}) == 0)"
        f" assert(dofile({quoted(str(LUA_FOLDER / 'cli_filter.lua'))}) == 0)"
        " assert(slurm_job_submit({}, {}, 0) == 0 and slurm_job_modify() == 0)"
        " assert(slurm_cli_setup_defaults() == 0 and slurm_cli_pre_submit({}, 0) == 0 and slurm_cli_post_submit() == 0)"
    )
    done = lua.run("-e", code, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_standalone_script_survives_that_gpusage_is_gone(lua: Any, tmp_path: Path) -> None:
    for name in ("job_submit.lua", "cli_filter.lua"):
        (tmp_path / name).write_bytes((LUA_FOLDER / name).read_bytes())
    code = (
        "slurm = { SUCCESS = 0, log_info = print, log_debug = print }"
        " assert(dofile('job_submit.lua') == 0 and dofile('cli_filter.lua') == 0)"
        " assert(slurm_job_submit({}, {}, 0) == 0 and slurm_job_modify() == 0)"
        " assert(slurm_cli_setup_defaults() == 0 and slurm_cli_pre_submit({}, 0) == 0 and slurm_cli_post_submit() == 0)"
    )
    done = lua.run("-e", code, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


MARK = "gpusage 69215f4a0c3e KEEP gres/gpu:2 | the job asks for 2 GPUs"


@pytest.mark.parametrize(
    ("earlier", "after"),
    [
        ("", MARK),
        ("the site's own", f"the site's own; {MARK}"),
        ("x" * 970, "x" * 970 + "; " + MARK[:49] + "..."),
        ("x" * 990, "x" * 990 + "; " + MARK[:29] + "..."),
        ("x" * 991, "x" * 991),
        ("x" * 1024, "x" * 1024),
    ],
)
def test_the_mark_stands_behind_what_the_site_wrote_and_alone_is_shortened(
    drive: Drive, tmp_path: Path, earlier: str, after: str
) -> None:
    body = submit(tmp_path / "s", f"{{ admin_comment = {quoted(earlier)} }}")
    body = body.replace("return {", "return { comment = job.admin_comment,")
    with server(tmp_path / "s", answering({"v": "1", "code": "KEEP", "message": "", "mark": MARK})):
        report = drive(body)
    assert report["comment"] == after
    assert len(report["comment"]) <= 1024
    assert report["logged"] == f"gpusage: uid 1000: {MARK.removeprefix('gpusage ')}"


CARD = "tres_per_node = 'gres:gpu:1', environment = { SLURM_GPUSAGE_CARD = 'QUJD' }"


@pytest.mark.parametrize(
    ("behaviour", "why", "notice"),
    [
        (None, "gpusaged at {}: No such file or directory", "gpusaged cannot be reached"),
        (
            silent,
            "gpusaged at {}: no answer within 300 ms; it is not asked again for 0.05 s",
            "gpusaged did not answer in time",
        ),
        (answering(b"nonsense\n"), "the answer is not of the protocol", "gpusaged's answer cannot be used"),
        (
            answering({"v": "1", "code": "KEEP", "message": "", "overdue": "1"}),
            "gpusaged did not come to it in time",
            "",
        ),
    ],
    ids=["dead", "silent", "strange", "late"],
)
def test_a_job_that_names_a_model_and_got_no_decision_says_so_itself(
    drive: Drive, tmp_path: Path, behaviour: Behaviour | None, why: str, notice: str
) -> None:
    """It has no record, so its mark has no number; without a card nobody knows whether it is ours to mark."""
    path = tmp_path / "s"
    with server(path, behaviour) if behaviour else contextlib.nullcontext():
        comments, printed = [], []
        for job in (f"{{ {CARD} }}", f"{{ admin_comment = 'site', {CARD} }}", "{}"):
            body = submit(path, job, limit_ms=300).replace("return {", "return { comment = job.admin_comment,")
            report = drive(body)
            comments.append(report.get("comment"))
            printed.append(report["printed"])
    mark = f"gpusage KEEP | {why.format(path)}"
    assert comments == [mark, f"site; {mark}", ""]
    assert printed == [*[f"gpusage: {notice}; the request stays as it is" if notice else ""] * 2, ""]
    annotation = parse_annotation(mark)
    assert annotation
    assert (annotation.number, annotation.code, annotation.reasons) == ("", "KEEP", why.format(path))


def test_where_our_own_code_failed_the_notice_does_not_blame_an_answer(drive: Drive, tmp_path: Path) -> None:
    body = submit(tmp_path / "s", f"{{ {CARD} }}")
    report = drive(
        body.replace(
            "local job =", "require('gpusage_request').script_digest = function() error('a mistake') end local job ="
        )
    )
    assert report["printed"] == "gpusage: gpusaged was not asked; the request stays as it is"
    assert "a mistake" in report["logged"]


def test_a_job_that_is_not_asked_about_during_a_rest_says_so_too(drive: Drive, tmp_path: Path) -> None:
    body = often(tmp_path / "s", "submit(1) later(-0.01)").replace("job_of()", f"job_of{{ {CARD} }}")
    body = body.replace("return {", "return { comment = job.admin_comment,")
    with server(tmp_path / "s", silent):
        report = drive(body)
    why = "gpusaged is not asked for a moment, because it did not answer in time"
    assert report["comment"] == f"gpusage KEEP | {why}"


def test_what_is_logged_is_printable_and_a_mark_that_cannot_be_left_costs_nothing(drive: Drive, tmp_path: Path) -> None:
    """On a Slurm that would not let us write the admin comment, the request is still rewritten."""
    body = submit(tmp_path / "s", "{ admin_comment = 7 }")
    with server(tmp_path / "s", answering({**REWRITE, "mark": "gpusage x\x1b[31m\n\u2713"})):
        report = drive(body)
    assert report["gres"] == "gres:mps:40"
    assert report["logged"] == "gpusage: uid 1000: x?[31m????"
