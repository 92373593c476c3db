"""A PostgreSQL that is away for a while costs no job and no decision."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from gpusage_sandboxes.gpusaged import start_gpusaged, stop_gpusaged
from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes
from gpusage_sandboxes.slurm.creation import install_plugin
from postgresql import Server
from slurm_jobs import GENEROUS, gpusaged_status, is_timely, show_job, wait_for_records

pytestmark = [pytest.mark.slurm, pytest.mark.one_release]
PLAN = ClusterPlan(nodes=parse_nodes("1xv100:2"))
MODEL = Path(__file__).parents[2] / "examples" / "models" / "dlrm.onnx"
COMMAND = (
    "sbatch",
    "--hold",
    "--gres=gpu:1",
    f"--comment=model={MODEL},batch=8,mode=infer",
    "--wrap=true",
)
CLIENTS = 2
OUTAGE_S = 8.0
BEFORE_AND_AFTER_S = 5.0


@pytest.fixture
def postgresql() -> Iterator[Server]:
    """Return a server in a folder with a short name, as sockets need."""
    folder = Path(tempfile.mkdtemp(prefix="gpusage-pg-"))
    server = Server(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)


def submit_until_stopped(sandbox: Sandbox, stop: Event) -> list[tuple[str, bool]]:
    """Return the jobs that were submitted, one after the other, and whether gpusaged was in time."""
    jobs = []
    while not stop.is_set():
        done = sandbox.run(*COMMAND)
        jobs.append((done.stdout.split()[-1], is_timely(done.stderr)))
    return jobs


def test_an_outage_of_postgresql_under_load_loses_no_job_and_no_decision(
    new_cluster: Callable[..., Sandbox], postgresql: Server
) -> None:
    sandbox = new_cluster(PLAN)
    install_plugin(sandbox, "enforce", GENEROUS)
    stop_gpusaged(sandbox)
    toml = sandbox.layout.gpusage_toml
    toml.write_text(re.sub(r'url = "sqlite:.*"', f'url = "{postgresql.url}"', toml.read_text()))
    start_gpusaged(sandbox)
    stop = Event()
    with ThreadPoolExecutor(CLIENTS) as threads:
        submissions = [threads.submit(submit_until_stopped, sandbox, stop) for _ in range(CLIENTS)]
        time.sleep(BEFORE_AND_AFTER_S)
        postgresql.stop()
        time.sleep(OUTAGE_S)
        postgresql.start()
        time.sleep(BEFORE_AND_AFTER_S)
        stop.set()
    submitted = [each for submission in submissions for each in submission.result()]
    jobs = [job for job, timely in submitted if timely]
    assert len(jobs) > len(submitted) / 2, submitted  # a busy machine delays some, with a store and without
    wait_for_records(sandbox)
    marks = [show_job(sandbox, job).get("AdminComment", "") for job in jobs]
    numbers = {number for mark in marks for number in re.findall(r"gpusage ([0-9a-f]{12}) ", mark)}
    stored = {str(number) for (number,) in postgresql.ask("SELECT number FROM gpusage.decisions")}
    assert len(numbers) == len(jobs) > 0, [mark for mark in marks if "gpusage " not in mark]
    assert numbers <= stored
    assert gpusaged_status(sandbox)["records"]["lost"] == 0
