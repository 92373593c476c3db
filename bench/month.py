"""What a report on a month costs where 500,000 jobs ended in it, and how large their store is.

    .venv/bin/python bench/month.py [--jobs 500000] [--folder FOLDER]

The decisions are a real gpusaged's on the example models, with other users, names and times; two of five jobs name a
model. Then a gpusaged adds up the days, and each command runs once in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import random
import selectors
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import daemon
import gpusage
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.graphs.card.text import encode
from gpusage.reports.reading import Reader, rules_of
from gpusage.settings.configuration import Configuration
from gpusage.store.annotation import UNNAMED
from gpusage.store.opening import open_store
from gpusage_hooks.types import Allocation, Code, DecisionRecord, JobIdentity, Usage
from gpusage_hooks.units import DAY_S

BATCH_JOBS = 2000
USERS, DAYS = 400, 30


def main() -> None:
    """Fill a store, add its days up, and print what each command took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=500_000)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "gpusage-month")
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    path = options.folder / "decisions.db"
    (options.folder / "c.toml").write_text(daemon.CONFIGURATION.format(folder=options.folder))
    if not path.exists():
        fill(f"sqlite:///{path}", options.jobs)
    size_bytes = path.stat().st_size
    print(f"{options.jobs:,} jobs: {size_bytes / 1e6:,.0f} MB, {size_bytes / options.jobs:,.0f} bytes a job")

    daemon_command = [sys.executable, "-m", "gpusage.service.daemon", "--config", str(options.folder / "c.toml")]
    pid = os.posix_spawn(sys.executable, daemon_command, os.environ)
    with closing(open_store(f"sqlite:///{path}")) as store:
        form = Reader(store=store, rules=rules_of(Configuration(), builtin_catalogue())).form
        while store.missing_days(time.time() - DAY_S, form):
            time.sleep(1)
    os.kill(pid, 15)
    show("gpusaged, all days", pid)
    os.environ["GPUSAGE_CONFIG"] = str(options.folder / "c.toml")
    for command in ("report --since 30d", "report --since 30d --json", "report --user user7", "decisions 4711"):
        arguments = [str(Path(sys.executable).with_name("gpusage")), *command.split()]
        out = [(os.POSIX_SPAWN_OPEN, 1, options.folder / "out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)]
        begun_s = time.monotonic()
        show(command, os.posix_spawn(arguments[0], arguments, os.environ, file_actions=out), begun_s)


def show(name: str, pid: int, begun_s: float | None = None) -> None:
    """Wait for a process, and print what it took."""
    _, status, used = os.wait4(pid, 0)
    elapsed = "" if begun_s is None else f"{time.monotonic() - begun_s:6.1f} s, "
    cpu_s = used.ru_utime + used.ru_stime
    print(f"{name:28} {elapsed}{cpu_s:6.1f} s of a processor, {used.ru_maxrss / 1024:6,.0f} MiB, exit {status}")


def decided() -> Sequence[DecisionRecord]:
    """Return what a gpusaged decides of the example models."""
    cards = [encode(gpusage.read_model(str(path))) for path in sorted(daemon.MODELS.glob("*.onnx"))]
    with daemon.started() as (folder, _):
        for line in islice(daemon.new_lines(cards), len(cards) * len(daemon.COMMENTS)):
            client = daemon.Client(folder / "s.sock", iter([line]), selectors.DefaultSelector(), keep=False)
            client.ask()
            client.receive()
        time.sleep(2)
        with closing(open_store(f"sqlite:///{folder}/decisions.db")) as store:
            return store.latest(1000)


def fill(url: str, count: int) -> None:
    """Write *count* jobs of a month that ends now, the same each time but for their times."""
    chance, templates, until_s = random.Random(1), decided(), time.time()
    with closing(open_store(url)) as store:
        for begin in range(0, count, BATCH_JOBS):
            pairs = [
                job(number, until_s - (count - number) * DAYS * DAY_S / count, templates, chance)
                for number in range(begin, min(begin + BATCH_JOBS, count))
            ]
            store.record_all([record for record, _ in pairs])
            store.record_usage([usage for _, usage in pairs])


def job(
    number: int, ended_at_s: float, templates: Sequence[DecisionRecord], chance: random.Random
) -> tuple[DecisionRecord, Usage]:
    """Return the decision and the usage of one job."""
    record, user = templates[number % len(templates)], int(USERS * chance.random() ** 2)
    duration_s = min(chance.lognormvariate(7.0, 1.8), 5 * DAY_S)
    identity = replace(record.identity or JobIdentity(), user=str(user), job_name=f"train{number % 7}")
    is_named = chance.random() < 0.4
    if not is_named:
        unchanged = replace(record.decision, code=Code.KEEP, need=None, reasons=(f"{UNNAMED}: no history yet",))
        record = replace(record, model=None, workload=None, decision=unchanged, mode="observe")
    record = replace(
        record, number=f"{number:012x}", origin=f"uid {user}", identity=identity, decided_at_s=ended_at_s - duration_s
    )
    percent = record.decision.request.mps_thread_percent if is_named else None
    granted = (
        Allocation(division="percentage", share_percent=percent, thread_percent=percent) if percent else Allocation()
    )
    utilization = chance.random() ** 2
    usage = Usage(
        number=record.number,
        manager="slurm",
        job_id=str(number),
        user=f"user{user}",
        user_id=str(user),
        account=f"group{user % 40}",
        partition=("gpu", "long", "test")[number % 3],
        job_name=identity.job_name,
        gpu=("v100-sxm2-16gb", "a100-sxm4-40gb", "h100-sxm-80gb")[number % 3],
        gpu_count=1 if percent or chance.random() < 0.8 else 4,
        granted=granted,
        outcome="completed" if chance.random() < 0.9 else "failed",
        sampled_on=f"node{number % 250}",
        started_at_s=ended_at_s - duration_s,
        ended_at_s=ended_at_s,
        sampled_s=duration_s if chance.random() < 0.9 else 0.0,
        alone_s=duration_s,
        gpu_utilization=utilization,
        peak_utilization=min(1.0, utilization * 1.3),
        sm_activity=utilization / 2,
        dram_activity=utilization / 3,
        memory_bytes=int(2**30 * (1 + 12 * chance.random())),
        energy_j=duration_s * 200,
        cpu_s=duration_s * 2,
        cpus=8,
        read_bytes=int(duration_s * 1e7),
    )
    return record, usage


if __name__ == "__main__":
    main()
