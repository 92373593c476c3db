"""How many decisions a second gpusaged makes, how long one takes, and how much memory it needs.

A real gpusaged is started in a folder of its own, with every installed plugin and a small one that describes a cluster
of ten GPU types. The questions are what job_submit.lua sends for the example models. In the first kind of run no two
are alike (other users, other job names) and only the cards come again; in the second, the same questions come again.
With ``--waiting 10000`` it sees a Slurm, by stand-ins of its commands, with 1,000 nodes and as many waiting jobs.
"""

from __future__ import annotations

import argparse
import itertools
import os
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

import gpusage
from gpusage.graphs.card.text import encode
from gpusage.service import client
from gpusage.service.protocol import json_line
from gpusage_hooks.errors import RequestError

MODELS = Path(__file__).parent.parent / "examples" / "models"
GOAL_PER_S, GOAL_BYTES = 10_000, 100e6
COMMENTS = ("batch=1,mode=infer", "batch=8,mode=infer,precision=fp16", "batch=64")
MARK = 987654321
CONFIGURATION = """
mode = "enforce"
kill_switch = "{folder}/off"
[daemon]
socket = "{folder}/s.sock"
[store]
url = "sqlite:///{folder}/decisions.db"
[slurm]
limit_ms = 1000
"""
TYPES = ("v100", "t4", "a10", "a30", "a40", "a100", "l4", "l40s", "h100", "h200")
PLUGIN = """
from gpusage_hooks import hookimpl
from gpusage_hooks.types import Cluster, GpuPool

TYPES = {types!r}

@hookimpl
def observe_cluster(manager):
    if manager != "slurm":
        return None
    pools = [GpuPool(gpu=name, site_type=name, gpu_count=8, free_gpu_count=4, mps_per_gpu=100) for name in TYPES]
    return Cluster(manager="slurm", version="24.11.5", pools=tuple(pools))
"""
STAND_IN = """#!{python} -S
import json, os, re, sys

def node(number):
    gres = f"gpu:{{{types!r}[number % 10]}}:8"
    rest = {{f"field{{each}}": {{"set": True, "infinite": False, "number": number}} for each in range(60)}}
    used = {{"gres_used": gres, "alloc_cpus": 64, "alloc_memory": 500000, "state": ["MIXED"], "partitions": ["gpu"]}}
    shared = {{"gres": gres + ",mps:800", "cpus": 128, "real_memory": 1000000}}
    return {{"name": f"node{{number}}", "features": {types!r}[number % 10], **shared, **used, **rest}}

def squeue_line(job, columns):
    mark = f"gpusage {{int(job):012x}} REWRITE gres/gpu:1 -> gres/mps:40 | it uses a third of a GPU, for 12 % more time"
    row = {{"JobArrayID": job, "UserName": f"user{{job}}", "StateCompact": "PD", "Reason": "Priority"}}
    row |= {{"tres-per-node": "gres/mps:40", "tres-alloc": "cpu=4,mem=16G,node=1,gres/mps=40", "admin_comment": mark}}
    return "".join(str(row.get(name, "")).ljust(int(width)) for name, width in columns)

program, text = os.path.basename(sys.argv[0]), " ".join(sys.argv[1:])
form, named = re.search(r"--Format=(\\S+)", text), re.search(r"--jobs=(\\S+)", text)
if form and "PD" in text:
    jobs, columns = named[1].split(",") if named else range(1, {waiting} + 1), form[1].split(",")
    print(*(squeue_line(job, [each.split(":") for each in columns]) for job in jobs), sep="\\n")
answers = {{
    "--version": "slurm 24.11.5",
    "config": "SLURM_VERSION = 24.11.5\\nSlurmUser = root(0)\\nSchedulerParameters = ignore_prefer_validation",
    "partitions": "PartitionName=gpu Default=YES Nodes=node[0-999]",
    "nodes --json": json.dumps({{"nodes": [node(number) for number in range(1000)]}}),
    "nodes --oneliner": "\\n".join(f"NodeName=node{{number}} Comment=" + "x" * 1000 for number in range(1000)),
}}
print(next((answer for words, answer in answers.items() if program == "scontrol" and words in text), ""))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One line of the table."""

    questions: str
    connections: str
    clients: int
    decisions_per_s: float
    p50_us: float
    p99_us: float
    cpu_us: float
    rewritten: float


def main() -> None:
    """Run, and print the table and what the goals are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each run (default 4)")
    parser.add_argument("--waiting", type=int, default=0, help="jobs that wait in a stand-in of Slurm (default: none)")
    options = parser.parse_args()
    cards = [encode(gpusage.read_model(str(path))) for path in sorted(MODELS.glob("*.onnx"))]
    with started(waiting=options.waiting) as (folder, process):
        runs = list(measured(folder, process.pid, cards, options.seconds))
        records = client.status(folder / "s.sock", 5.0)["records"]
        status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    memory_bytes = next(int(text.split()[1]) * 1024 for text in status if text.startswith("VmHWM:"))
    show(runs)
    best_per_s = max(one.decisions_per_s for one in runs if one.questions == "new")
    least_us = min(one.cpu_us for one in runs if one.questions == "new")
    print(f"records: {records}")
    print(
        f"goal {GOAL_PER_S:,} decisions/s with cached cards: {best_per_s:,.0f} here, at a load average of "
        f"{os.getloadavg()[0]:.1f}; {1e6 / least_us:,.0f} for each second of processor time"
    )
    print(f"goal {GOAL_BYTES / 1e6:.0f} MB of memory: {memory_bytes / 1e6:.0f} MB")


def measured(folder: Path, pid: int, cards: Sequence[str], duration_s: float) -> Iterator[Run]:
    """Yield each run."""
    for clients in (1, 10, 50):
        for questions, stream in (("new", new_lines(cards)), ("again", again_lines(cards))):
            for keep in (False, True):
                selector = selectors.DefaultSelector()
                asking = [Client(folder / "s.sock", stream, selector, keep=keep) for _ in range(clients)]
                yield run(asking, selector, pid, questions, duration_s)


def new_lines(cards: Sequence[str]) -> Iterator[bytes]:
    """Yield questions of which no two are alike."""
    halves = [submission_line(card, keys, MARK).split(str(MARK).encode()) for card in cards for keys in COMMENTS]
    for number, parts in enumerate(itertools.cycle(halves)):
        yield str(number).encode().join(parts)


def again_lines(cards: Sequence[str]) -> Iterator[bytes]:
    """Yield the same questions over and over."""
    return itertools.cycle([submission_line(card, keys, 0) for card in cards for keys in COMMENTS])


def submission_line(card: str, keys: str, number: int) -> bytes:
    """Return what job_submit.lua sends for one job."""
    fields = {
        **dict.fromkeys((f"tres_{word}" for word in ("per_job", "per_socket", "per_task", "bind", "freq")), ""),
        **dict.fromkeys(("cpus_per_tres", "mem_per_tres", "features", "prefer", "partition"), ""),
        "comment": f"model=/data/model.onnx,{keys}",
        "tres_per_node": "gres/gpu:1",
        "name": f"train-{number}",
        "min_nodes": "1",
        "num_tasks": "1",
        "user_id": str(number),
        "script": "1",
        "het": "0",
        "card": card,
    }
    return json_line({"v": 1, "manager": "slurm", "fields": fields})


class Client:
    """One connection's end that always has one question out."""

    def __init__(self, path: Path, lines: Iterator[bytes], selector: selectors.BaseSelector, *, keep: bool) -> None:
        self.path = path
        self.lines = lines
        self.selector = selector
        self.keep = keep
        self.connection: socket.socket | None = None

    def ask(self) -> None:
        """Send the next question, over a new connection unless the old one is kept."""
        question = next(self.lines)
        self.sent_s = time.perf_counter()
        if self.connection is None:
            self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.connection.connect(str(self.path))
            self.selector.register(self.connection, selectors.EVENT_READ, self)
        self.connection.sendall(question)

    def receive(self) -> tuple[float, bytes]:
        """Return how long the answer took, and the answer."""
        assert self.connection is not None  # noqa: S101 - `ask` came first
        answer = self.connection.recv(65536)
        while not answer.endswith(b"\n"):
            more = self.connection.recv(65536)
            if not more:
                message = "gpusaged closed the connection"
                raise ConnectionError(message)
            answer += more
        taken_s = time.perf_counter() - self.sent_s
        if not self.keep:
            self.close()
        return taken_s, answer

    def close(self) -> None:
        """Close the connection."""
        if self.connection is not None:
            self.selector.unregister(self.connection)
            self.connection.close()
            self.connection = None


def run(asking: Sequence[Client], selector: selectors.BaseSelector, pid: int, questions: str, duration_s: float) -> Run:
    """Keep a question of each client out for a while, after a second of the same that does not count."""
    for each in asking:
        each.ask()
    exchange(selector, min(1.0, duration_s))
    begun_s, begun_cpu_s = time.perf_counter(), cpu_s(pid)
    taken = exchange(selector, duration_s)
    elapsed_s, used_cpu_s = time.perf_counter() - begun_s, cpu_s(pid) - begun_cpu_s
    for each in asking:
        each.close()
    times_s = [time_s for time_s, _ in taken]
    cuts = statistics.quantiles(times_s, n=100)
    return Run(
        questions=questions,
        connections="kept" if asking[0].keep else "one each",
        clients=len(asking),
        decisions_per_s=len(taken) / elapsed_s,
        p50_us=cuts[49] * 1e6,
        p99_us=cuts[98] * 1e6,
        cpu_us=used_cpu_s / len(taken) * 1e6,
        rewritten=sum(rewritten for _, rewritten in taken) / len(taken),
    )


def exchange(selector: selectors.BaseSelector, duration_s: float) -> list[tuple[float, bool]]:
    """Return for each answer within *duration_s* how long it took, and whether it rewrote the request."""
    taken: list[tuple[float, bool]] = []
    end_s = time.perf_counter() + duration_s
    while time.perf_counter() < end_s:
        for key, _ in selector.select(1.0):
            time_s, answer = key.data.receive()
            taken.append((time_s, b'"code":"REWRITE"' in answer))
            key.data.ask()
    return taken


@contextmanager
def started(runner: Sequence[str] = ("-m",), waiting: int = 0) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """Yield the folder and the process of a gpusaged that has seen its cluster.

    Args:
        runner: What runs its module.
        waiting: Jobs that wait in the stand-in of Slurm; with none, a plugin describes the cluster.
    """
    folder = Path(tempfile.mkdtemp(prefix="gpusaged-"))
    metadata = folder / "plugins" / "bench_plugin-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: bench-plugin\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[gpusage]\nbench = bench_plugin\n")
    (folder / "plugins" / "bench_plugin.py").write_text(PLUGIN.format(types=TYPES))
    (folder / "c.toml").write_text(CONFIGURATION.format(folder=folder))
    path = os.pathsep.join(filter(None, (str(folder / "plugins"), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path}
    if waiting:
        (folder / "bin").mkdir()
        for name in ("scontrol", "squeue", "sinfo", "sacct", "sacctmgr"):
            (folder / "bin" / name).write_text(STAND_IN.format(python=sys.executable, types=TYPES, waiting=waiting))
            (folder / "bin" / name).chmod(0o755)
        environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    command = [sys.executable, *runner, "gpusage.service.daemon", "--config", str(folder / "c.toml")]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stderr=log, env=environment)
    try:
        wait(folder / "s.sock")
        yield folder, process
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(folder)


def wait(path: Path) -> None:
    """Wait until the daemon at *path* knows its cluster."""
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        with suppress(RequestError):
            if client.status(path)["clusters"]:
                return
        time.sleep(0.05)
    message = "gpusaged did not start within 30 s"
    raise TimeoutError(message)


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has used, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def show(runs: Sequence[Run]) -> None:
    """Print the table."""
    table = Table(title="gpusaged: decisions, each recorded in SQLite before its answer leaves")
    for heading in ("questions", "connections", "clients", "decisions/s", "p50 us", "p99 us", "CPU us", "rewritten"):
        table.add_column(heading, justify="left" if heading in ("questions", "connections") else "right")
    for one in runs:
        figures = (one.decisions_per_s, one.p50_us, one.p99_us, one.cpu_us)
        cells = (f"{figure:,.0f}" for figure in figures)
        table.add_row(one.questions, one.connections, str(one.clients), *cells, f"{one.rewritten:.0%}")
    Console().print(table)


if __name__ == "__main__":
    main()
