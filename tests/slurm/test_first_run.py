"""A job that names no model is observed in its own run, and what was measured decides the next one of its script."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpusage.store.opening import open_store
from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.slurm.creation import install_plugin
from observed_programs import CI as WORST
from observed_programs import PROGRAMS, anonymous, write_program
from records import usage_alone
from slurm_jobs import GENEROUS, show_job, submit_until, wait_for_state
from waiting import wait_until

pytest.importorskip("torch")
pytestmark = [pytest.mark.slurm, pytest.mark.torch, pytest.mark.usefixtures("empty_queue")]

PROGRAM = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(40):
    optimizer.zero_grad()
    model(torch.randn({batch}, 64)).sum().backward()
    optimizer.step()
print(hash(tuple(model[0].bias.tolist())))
"""
SCRIPT = """#!/bin/sh
#SBATCH --gres=gpu:1
{directive}
{python} {program}
"""


@pytest.fixture(scope="module")
def sandbox(slurm_release: str | None) -> Iterator[Sandbox]:
    """Return a cluster with gpusage installed."""
    with start_sandbox(ClusterPlan(nodes=parse_nodes("1xv100:2")), release=slurm_release) as sandbox:
        install_plugin(sandbox, "enforce", f"{GENEROUS}[learning]\nrefresh_s = 1\nleast_sampled_s = 1\n")
        yield sandbox


def write_job(folder: Path, directive: str = "#GPUSAGE learn=on", batch: int = 16) -> Path:
    """Write a program and its job script into *folder*."""
    program = folder / "train.py"
    program.write_text(PROGRAM.format(batch=batch))
    script = folder / "train.sh"
    script.write_text(SCRIPT.format(directive=directive, python=sys.executable, program=program))
    return script


def run_and_learn(sandbox: Sandbox, script: Path, cache: Path) -> str:
    """Run a job of *script*, wait for its record below *cache*, put its usage into the store, and return its number."""
    variables = {"XDG_CACHE_HOME": str(cache)}
    job = sandbox.run("sbatch", "--parsable", str(script), environment=variables).stdout.strip()
    wait_until(lambda: [*cache.glob(f"gpusage/runs/*/{job}.*.json")], lambda: show_job(sandbox, job))
    wait_for_state(sandbox, job, "COMPLETED")
    with closing(open_store(f"sqlite:///{sandbox.layout.state}/decisions.db")) as store:
        store.record_usage([usage_alone(job, manager="slurm", user_id=str(os.getuid()))])
    return job


def test_the_second_job_of_a_script_is_decided_by_what_the_first_one_showed(sandbox: Sandbox, tmp_path: Path) -> None:
    script, cache = write_job(tmp_path), tmp_path / "cache"
    first = run_and_learn(sandbox, script, cache)
    assert "mps" not in show_job(sandbox, first)["TresPerNode"]
    assert "learn=on: this run shows the model" in sandbox.run("gpusage", "decisions", first).stdout
    (record,) = cache.glob("gpusage/runs/*/*.json")
    assert record.stat().st_mode & 0o777 == 0o600
    seen = json.loads(record.read_text())
    assert (seen["job"], seen["calls"][0]["shapes"][0][0]) == (first, [16, 64])
    variables = {"XDG_CACHE_HOME": str(cache)}
    second = submit_until(sandbox, lambda job: "mps" in job.tres, wrap=script, environment=variables)
    reason = f"measured on v100-sxm2-16gb in job {first}'s run: busy 20 % (up to 30 %), 1.9 GiB (up to 2.8 GiB)"
    validated = sandbox.run("gpusage", "validate", "--learned", str(script), environment=variables).stdout
    assert reason in " ".join(validated.split())
    assert reason in " ".join(sandbox.run("gpusage", "decisions", second.job_id).stdout.split())
    assert second.shown.get("Comment", "(null)") == "(null)"  # it is the user's
    sandbox.run("scancel", second.job_id)


@pytest.mark.one_release
def test_a_changed_program_is_not_the_job_that_was_seen(sandbox: Sandbox, tmp_path: Path) -> None:
    script, cache = write_job(tmp_path), tmp_path / "cache"
    run_and_learn(sandbox, script, cache)
    variables = {"XDG_CACHE_HOME": str(cache)}
    unchanged = submit_until(sandbox, lambda job: "mps" in job.tres, wrap=script, environment=variables)
    sandbox.run("scancel", unchanged.job_id)
    write_job(tmp_path, batch=32)
    done = sandbox.run("sbatch", "--parsable", "--hold", str(script), environment=variables)
    assert "mps" not in show_job(sandbox, done.stdout.strip())["TresPerNode"]
    sandbox.run("scancel", done.stdout.strip())


@pytest.mark.one_release
def test_a_job_that_does_not_ask_for_it_is_not_observed(sandbox: Sandbox, tmp_path: Path) -> None:
    script, cache = write_job(tmp_path, directive=""), tmp_path / "cache"
    variables = {"XDG_CACHE_HOME": str(cache)}
    job = sandbox.run("sbatch", "--parsable", str(script), environment=variables).stdout.strip()
    wait_for_state(sandbox, job, "COMPLETED")
    assert not cache.exists()


@pytest.mark.nightly
@pytest.mark.one_release
@pytest.mark.parametrize("name", WORST)
def test_an_odd_program_ends_as_it_does_without_the_observer(sandbox: Sandbox, tmp_path: Path, name: str) -> None:
    program, endings = PROGRAMS[name], []
    for learn in ("off", "on"):
        folder = tmp_path / "job"
        write_program(program, folder)
        script = tmp_path / f"{learn}.sh"
        words = " ".join(shlex.quote(word) for word in (sys.executable, *program.options, *program.arguments))
        script.write_text(f"#!/bin/sh\n#SBATCH --gres=gpu:1\n#GPUSAGE learn={learn}\ncd {folder}\n{words} >out 2>err\n")
        variables = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1", **program.variables}
        job = sandbox.run("sbatch", "--parsable", str(script), environment=variables).stdout.strip()
        status = wait_for_state(sandbox, job, "COMPLETED", "FAILED")["ExitCode"]
        endings.append((status, *(anonymous((folder / each).read_text()) for each in ("out", "err"))))
    assert endings[0] == endings[1]
    assert program.shows is not True or [*tmp_path.glob("cache/gpusage/runs/*/*.json")]
