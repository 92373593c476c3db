"""A job that names no model shows it in its own run, and the next one of its script is decided by that."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.slurm.creation import install_plugin
from slurm_jobs import GENEROUS, show_job, submit_until, wait_for_state
from waiting import wait_until

pytest.importorskip("torch")
pytestmark = [pytest.mark.slurm, pytest.mark.torch]

PROGRAM = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(8):
    optimizer.zero_grad()
    model(torch.randn({batch}, 64)).sum().backward()
    optimizer.step()
print(hash(tuple(model[0].bias.tolist())))
"""
SCRIPT = """#!/bin/sh
#SBATCH --gres=gpu:1
{directive}
{python} {program}
sleep 20
"""


@pytest.fixture(scope="module")
def sandbox(slurm_release: str | None) -> Iterator[Sandbox]:
    """Return a cluster with gpusage installed."""
    with start_sandbox(ClusterPlan(nodes=parse_nodes("1xv100:2")), release=slurm_release) as sandbox:
        install_plugin(sandbox, "enforce", f"{GENEROUS}[learning]\nrefresh_s = 1\n")
        yield sandbox


def write_job(folder: Path, directive: str = "#GPUSAGE learn=on", batch: int = 16) -> Path:
    """Write a program and its job script into *folder*."""
    program = folder / "train.py"
    program.write_text(PROGRAM.format(batch=batch))
    script = folder / "train.sh"
    script.write_text(SCRIPT.format(directive=directive, python=sys.executable, program=program))
    return script


def run_and_learn(sandbox: Sandbox, script: Path, cache: Path) -> str:
    """Run a job of *script*, wait for its record below *cache*, and return its number."""
    variables = {"XDG_CACHE_HOME": str(cache)}
    before = set(cache.glob("gpusage/runs/*.card.json"))
    job = sandbox.run("sbatch", "--parsable", str(script), environment=variables).stdout.strip()
    wait_until(lambda: set(cache.glob("gpusage/runs/*.card.json")) - before, lambda: show_job(sandbox, job))
    wait_until(lambda: [*cache.glob("gpusage/runs/*[0-9].json")])
    return job


def test_the_second_job_of_a_script_is_decided_by_what_the_first_one_showed(sandbox: Sandbox, tmp_path: Path) -> None:
    script, cache = write_job(tmp_path), tmp_path / "cache"
    first = run_and_learn(sandbox, script, cache)
    assert "mps" not in show_job(sandbox, first)["TresPerNode"]
    assert "learn=on: this run shows the model" in sandbox.run("gpusage", "decisions", first).stdout
    (record,) = cache.glob("gpusage/runs/*[0-9].json")
    assert record.stat().st_mode & 0o777 == 0o600
    keys = json.loads(record.read_text())["keys"]
    values = {name: value for name, (value, _) in keys.items()}
    assert values == {"batch": "16", "mode": "train", "precision": "fp32", "optimizer": "adamw"}
    variables = {"XDG_CACHE_HOME": str(cache)}
    second = submit_until(sandbox, lambda job: "mps" in job.tres, wrap=script, environment=variables)
    validated = sandbox.run("gpusage", "validate", str(script), environment=variables).stdout
    assert f"as job {first}'s run showed" in " ".join(validated.split())
    assert f"as job {first}'s run showed" in sandbox.run("gpusage", "decisions", second.job_id).stdout
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
