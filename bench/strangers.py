"""What a stranger who floods gpusaged costs those who may ask.

A real gpusaged of its own is asked as job_submit.lua asks: one connection a question, no two questions alike, 10 ms for
the whole exchange. Meanwhile another process floods it: with status lines, with empty lines, with connections. As root
the flood is of the user nobody, as on a controller; otherwise it is our own, and spares the socket of those who ask.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

import gpusage
from daemon import MODELS, new_lines, started
from gpusage.graphs.card.text import encode
from gpusage.service.client import status_path

FLOOD = Path(__file__).parent.parent / "tests" / "daemon" / "flood.py"
KINDS = ("status", "newlines", "storm")
NOBODY = "65534"
LIMIT_S, PAUSE_S = 0.010, 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One line of the table."""

    flood: str
    at: str
    question_count: int
    in_time: float
    p50_us: float
    p99_us: float


def main() -> None:
    """Run, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each run (default 5)")
    options = parser.parse_args()
    with started() as (folder, _):
        runs = list(measured(folder, options.seconds))
    print(json.dumps([asdict(each) for each in runs], indent=1)) if options.json else show(runs)


def measured(folder: Path, duration_s: float) -> Iterator[Run]:
    """Yield a run without a flood, then one for each kind and socket."""
    asking = folder / "s.sock"
    folder.chmod(0o755)
    questions = new_lines([encode(gpusage.read_model(str(path))) for path in sorted(MODELS.glob("*.onnx"))])
    victim(asking, questions, 1.0)
    yield run("none", "", victim(asking, questions, duration_s))
    for path in (status_path(asking), *([asking] if os.geteuid() == 0 else [])):
        for kind in KINDS:
            with flooding(path, kind):
                time.sleep(0.5)
                yield run(kind, path.name, victim(asking, questions, duration_s))


def victim(path: Path, questions: Iterator[bytes], duration_s: float) -> list[float]:
    """Return how long each answer took; where it did not come within the limit, infinity."""
    times_s = []
    end_s = time.monotonic() + duration_s
    while time.monotonic() < end_s:
        times_s.append(exchange_s(path, next(questions)))
        time.sleep(PAUSE_S)
    return times_s


def exchange_s(path: Path, question: bytes) -> float:
    """Return the seconds that one exchange takes."""
    begun_s = time.perf_counter()
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(LIMIT_S)
            connection.connect(str(path))
            connection.sendall(question)
            is_complete = connection.recv(65536).endswith(b"\n")
    except OSError:
        is_complete = False
    taken_s = time.perf_counter() - begun_s
    return taken_s if is_complete and taken_s <= LIMIT_S else float("inf")


@contextmanager
def flooding(path: Path, kind: str) -> Iterator[None]:
    """Have a process flood *path*."""
    user = [NOBODY] if os.geteuid() == 0 else []
    process = subprocess.Popen([sys.executable, str(FLOOD), str(path), kind, *user])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def run(flood: str, at: str, times_s: list[float]) -> Run:
    """Return the line of the table for *times_s*."""
    cuts = statistics.quantiles(sorted(times_s), n=100)
    in_time = sum(time_s <= LIMIT_S for time_s in times_s) / len(times_s)
    return Run(
        flood=flood, at=at, question_count=len(times_s), in_time=in_time, p50_us=cuts[49] * 1e6, p99_us=cuts[98] * 1e6
    )


def show(runs: list[Run]) -> None:
    """Print the table."""
    table = Table(title=f"questions of one who may ask, {LIMIT_S * 1e3:g} ms each, load {os.getloadavg()[0]:.1f}")
    for heading in ("flood", "at", "asked", "in time", "p50 us", "p99 us"):
        table.add_column(heading, justify="left" if heading in ("flood", "at") else "right")
    for each in runs:
        latency = (f"{each.p50_us:,.0f}", f"{each.p99_us:,.0f}")
        table.add_row(each.flood, each.at, str(each.question_count), f"{each.in_time:.1%}", *latency)
    Console().print(table)


if __name__ == "__main__":
    main()
