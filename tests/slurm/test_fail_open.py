"""Whatever is wrong with us, fifty submissions to a real slurmctld go through in time, unchanged or changed rightly."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socketserver
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from gpusage.decisions.advisor import advisor
from gpusage.graphs.card.text import encode
from gpusage_sandboxes import processes
from gpusage_sandboxes.gpusaged import start_gpusaged
from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.slurm.creation import install_plugin, submission_time_ms
from slurm_jobs import configure, gpusaged_status
from waiting import wait_until

pytestmark = pytest.mark.slurm

MODEL = Path(__file__).parents[2] / "examples" / "models" / "dlrm.onnx"
SUBMISSIONS = 50
LIMIT_MS = 50
"""Not the default 10: clients, controller, daemon and nodes share one small machine; bench/submit.py measures 10."""

SLACK_MS = 400
"""What slurmctld itself may take on two busy cores; a missing limit would show as seconds, in each submission."""

WHOLE = re.compile(r"(gres[:/])?gpu:1")
SHARE = re.compile(r"(gres[:/])?mps:\d+")


@pytest.fixture(scope="module")
def cluster(slurm_release: str | None) -> Iterator[Sandbox]:
    """Return a cluster with gpusage installed whose clients send a card themselves, as a REST client would."""
    with start_sandbox(ClusterPlan(nodes=parse_nodes("1xv100:2")), release=slurm_release) as sandbox:
        install_plugin(sandbox, "enforce", f"[slurm]\nlimit_ms = {LIMIT_MS}\n")
        text = sandbox.layout.slurm_conf.read_text()
        sandbox.layout.slurm_conf.write_text(text.replace("CliFilterPlugins=lua", "#CliFilterPlugins=lua"))
        clock = sandbox.layout.etc / "clock"
        script = sandbox.layout.etc / "job_submit.lua"
        script.write_text(SHIFTED_CLOCK.format(path=clock) + script.read_text() + NO_REST)
        sandbox.restart_controller()
        yield sandbox


NO_REST = 'require("gpusage").rest_s = 0  -- so that each of the fifty meets the trouble\n'
SHIFTED_CLOCK = """\
-- The test's clock: what the file says is added to the time that LuaSocket tells.
do
  local socket = require("socket")
  local real = socket.gettime
  socket.gettime = function()
    local file = io.open("{path}")
    if not file then return real() end
    local shift = tonumber(file:read("*a")) or 0
    file:close()
    return real() + shift
  end
end
"""


@pytest.fixture
def daemon(cluster: Sandbox) -> Iterator[Sandbox]:
    """Return the cluster with a fresh gpusaged that has answered once, and clean up whatever a test leaves."""
    end_daemon(cluster)
    settings = cluster.layout.etc / "gpusage.toml"
    good = settings.read_text()
    start_gpusaged(cluster)
    cluster.restart_controller()  # it may still leave a daemon in peace that did not answer in the test before
    wait_until(lambda: SHARE.fullmatch(requests(cluster, submitted(cluster, 1))[0]))
    yield cluster
    settings.write_text(good)
    end_daemon(cluster)
    (cluster.layout.etc / "clock").unlink(missing_ok=True)
    cluster.run("scancel", "--state=PENDING", check=False)


def end_daemon(cluster: Sandbox) -> None:
    pid_file = cluster.layout.pid_file("gpusaged")
    pid = processes.read_pid(pid_file)
    processes.end([pid] if pid else [])
    pid_file.unlink(missing_ok=True)
    cluster.layout.socket.unlink(missing_ok=True)


def daemon_pid(cluster: Sandbox) -> int:
    pid = processes.read_pid(cluster.layout.pid_file("gpusaged"))
    assert pid is not None
    return pid


def submitted(cluster: Sandbox, count: int) -> Iterator[str]:
    """Submit *count* held jobs and yield their numbers; a refused one fails the test."""
    command = ("sbatch", "--parsable", "--hold", "--gres=gpu:1", "--comment=model=dlrm.onnx,batch=8,mode=infer")
    card = encode(advisor().read(str(MODEL)))
    for _ in range(count):
        yield cluster.run(*command, "--wrap=true", environment={"GPUSAGE_CARD": card}).stdout.strip()


def one_more(cluster: Sandbox) -> bool:
    """Submit one job more, and tell that the wait goes on."""
    return [*submitted(cluster, 1)] == []


def submit(cluster: Sandbox, count: int = SUBMISSIONS) -> list[str]:
    """Submit *count* held jobs and return their numbers; a refused one, or slow ones, fail the test."""
    jobs, times_ms = [], [submission_time_ms(cluster)]
    for job in submitted(cluster, count):
        jobs.append(job)
        times_ms.append(submission_time_ms(cluster))
    slow = [after - before for before, after in pairwise(times_ms) if after - before > LIMIT_MS + SLACK_MS]
    assert len(slow) <= count // 25, slow  # a busy machine can halt slurmctld itself for a moment
    return jobs


def requests(cluster: Sandbox, numbers: Iterable[str]) -> list[str]:
    """Return the GPU request of each job as Slurm has it."""
    jobs = [*numbers]
    lines = cluster.run("squeue", "-h", "--states=all", "-O", "JobID:20,tres-per-node:60").stdout.splitlines()
    actual = dict(line.split() for line in lines)
    assert set(jobs) <= set(actual), "a job was lost"
    return [actual[job] for job in jobs]


def assert_untouched(cluster: Sandbox) -> None:
    jobs = submit(cluster)
    wrong = [text for text in requests(cluster, jobs) if not WHOLE.fullmatch(text)]
    assert wrong == []


def assert_still_rewritten(cluster: Sandbox) -> None:
    """They are rewritten, all to the same share; one that was late on a busy machine is as its user wrote it."""
    jobs = submit(cluster)
    actual = requests(cluster, jobs)
    shares = [text for text in actual if SHARE.fullmatch(text)]
    assert [text for text in actual if not SHARE.fullmatch(text) and not WHOLE.fullmatch(text)] == []

    def are_enough() -> bool:
        if len(shares) < SUBMISSIONS // 5:
            shares.extend(text for text in requests(cluster, submitted(cluster, 5)) if SHARE.fullmatch(text))
        return len(shares) >= SUBMISSIONS // 5

    wait_until(are_enough)
    assert len(set(shares)) == 1


@contextlib.contextmanager
def stand_in(cluster: Sandbox, behave: Callable[[socketserver.StreamRequestHandler], None]) -> Iterator[None]:
    """Put a server in gpusaged's place that does as *behave* says."""
    end_daemon(cluster)
    calls: list[bytes] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                calls.append(self.rfile.readline())
                behave(self)

    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True
        request_queue_size = 64

    with Server(str(cluster.layout.socket), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        # A thread may take its question late; slurmctld may be halted for so long that it has no time left to ask.
        wait_until(lambda: len(calls) >= SUBMISSIONS or one_more(cluster))
        server.shutdown()


@pytest.mark.short
def test_with_the_daemon_alive_jobs_are_rewritten(daemon: Sandbox) -> None:
    assert_still_rewritten(daemon)


@pytest.mark.short
def test_daemon_killed(daemon: Sandbox) -> None:
    os.kill(daemon_pid(daemon), signal.SIGKILL)
    assert daemon.layout.socket.exists()
    assert_untouched(daemon)


def test_daemon_stopped(daemon: Sandbox) -> None:
    os.kill(daemon_pid(daemon), signal.SIGSTOP)
    assert_untouched(daemon)


def test_daemon_slow(daemon: Sandbox) -> None:
    with stand_in(daemon, lambda handler: (time.sleep(1), handler.wfile.write(b'{"v":"1","set.gres":"mps:1"}\n'))[0]):
        assert_untouched(daemon)


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00\xff\xfe garbage \x80\n",
        b'{"v":"1","code":"REWRITE","set.gres":"mps:1"',
        b"x" * 2**20,
        b'{"v":"1","code":"REWRITE","set.gres":{"mps":1}}\n',
        b'{"v":"2","code":"REWRITE","set.gres":"mps:1"}\n',
        b'{"v":"1","code":"REWRITE","set.partition":"root","set.time_limit":"1"}\n',
        b"",
    ],
    ids=["garbage", "half a line", "a megabyte", "a nested value", "another version", "forbidden fields", "nothing"],
)
def test_daemon_talks_nonsense(daemon: Sandbox, answer: bytes) -> None:
    with stand_in(daemon, lambda handler: (handler.wfile.write(answer), time.sleep(0.2))[1]):
        assert_untouched(daemon)


def test_daemon_sends_an_endless_dribble(daemon: Sandbox) -> None:
    def dribble(handler: socketserver.StreamRequestHandler) -> None:
        for _ in range(500):
            handler.wfile.write(b" ")
            time.sleep(0.002)

    with stand_in(daemon, dribble):
        assert_untouched(daemon)


def test_socket_missing(daemon: Sandbox) -> None:
    end_daemon(daemon)
    assert_untouched(daemon)


def test_plain_file_in_the_sockets_place(daemon: Sandbox) -> None:
    end_daemon(daemon)
    daemon.layout.socket.write_text("not a socket")
    assert_untouched(daemon)


def test_folder_in_the_sockets_place(daemon: Sandbox) -> None:
    end_daemon(daemon)
    daemon.layout.socket.mkdir()
    try:
        assert_untouched(daemon)
    finally:
        daemon.layout.socket.rmdir()


def test_daemon_of_another_user_that_does_not_trust_slurmctld(daemon: Sandbox) -> None:
    other = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    if daemon.run(*other, "gpusaged", "--version", check=False).returncode != 0:
        pytest.skip("only root can start a daemon as another user, and only where that user may read this checkout")
    end_daemon(daemon)
    layout = daemon.layout
    settings = layout.etc / "gpusage.toml"
    settings.write_text(re.sub("allowed_users = .*", 'allowed_users = ["nobody"]', settings.read_text()))
    folders = (layout.folder, layout.run, layout.logs, layout.state, layout.jobs, layout.etc)
    for folder in folders:
        folder.chmod(0o755)
        os.chown(folder, 65534, 65534)  # a socket must not lie where anybody may write
    process = subprocess.Popen([*other, "gpusaged"], env=daemon.environment, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: daemon.layout.socket.exists() or process.poll() is not None)
        assert process.poll() is None
        assert_untouched(daemon)
        # On a busy machine some are given up before they are read.
        wait_until(lambda: gpusaged_status(daemon)["lines"]["refused"] >= SUBMISSIONS // 2 or one_more(daemon))
    finally:
        process.terminate()
        process.wait()
        for folder in folders:
            os.chown(folder, os.geteuid(), os.getegid())


@pytest.mark.one_release
def test_disk_full(daemon: Sandbox) -> None:
    end_daemon(daemon)
    for path in daemon.layout.state.glob("decisions.db*"):
        path.unlink()
    start_gpusaged(daemon, "prlimit", "--fsize=0")
    assert_still_rewritten(daemon)


@pytest.mark.one_release
def test_store_corrupt(daemon: Sandbox) -> None:
    end_daemon(daemon)
    (daemon.layout.state / "decisions.db").write_bytes(b"not a database" * 1000)
    start_gpusaged(daemon)
    assert_still_rewritten(daemon)


@pytest.mark.one_release
def test_store_corrupted_while_it_runs(daemon: Sandbox) -> None:
    with (daemon.layout.state / "decisions.db").open("r+b") as file:
        file.write(b"\xff" * 8192)
    assert_still_rewritten(daemon)


@pytest.mark.one_release
def test_configuration_broken_while_it_runs(daemon: Sandbox) -> None:
    configure(daemon, "mode = [broken")
    assert gpusaged_status(daemon)["configuration"]["error"]
    assert_still_rewritten(daemon)


@pytest.mark.one_release
def test_configuration_broken_at_the_start(daemon: Sandbox) -> None:
    end_daemon(daemon)
    (daemon.layout.etc / "gpusage.toml").write_text("mode = [broken")
    assert daemon.run("gpusaged", check=False).returncode == 1
    assert_untouched(daemon)


@pytest.mark.parametrize("shift_s", [-3600, 3600], ids=["back", "forward"])
def test_clock_set(daemon: Sandbox, shift_s: int) -> None:
    """The clock jumps between any two looks at it: the exchange still ends, and nothing is changed wrongly."""
    stop = threading.Event()

    def jump() -> None:
        clock = daemon.layout.etc / "clock"
        total = 0
        while not stop.wait(0.003):
            total += shift_s
            clock.with_suffix(".new").write_text(str(total))
            clock.with_suffix(".new").replace(clock)

    thread = threading.Thread(target=jump)
    thread.start()
    try:
        os.kill(daemon_pid(daemon), signal.SIGSTOP)
        assert_untouched(daemon)
    finally:
        os.kill(daemon_pid(daemon), signal.SIGCONT)
        stop.set()
        thread.join()
    daemon.restart_controller()
    assert_still_rewritten(daemon)


def test_kill_switch(daemon: Sandbox) -> None:
    switch = daemon.layout.etc / "off"
    switch.touch()
    wait_until(lambda: gpusaged_status(daemon)["kill_switch"]["on"])
    try:
        assert_untouched(daemon)
    finally:
        switch.unlink()
