"""A command without a model is observed in its own run on YARN, and what was measured decides the next one."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import yarn_applications as apps
from gpusage.store.opening import open_store
from gpusage_sandboxes.yarn import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.yarn.settings import SCHEDULER_SETTINGS, SITE_SETTINGS
from observed_programs import PROGRAMS, anonymous, write_program
from records import usage_alone
from waiting import wait_until

pytest.importorskip("torch")
pytestmark = [pytest.mark.yarn, pytest.mark.torch]

PROGRAM = """
import time
import torch
from torch import nn
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(40):
    optimizer.zero_grad()
    model(torch.randn(16, 64)).sum().backward()
    optimizer.step()
time.sleep(20)
"""


@pytest.fixture(scope="module")
def cluster(jar: Path) -> Iterator[Sandbox]:
    """Return a cluster with our classes and one V100."""
    folder = Path(tempfile.mkdtemp(prefix="gpusage-test-"))  # short enough for a socket, unlike pytest's own
    plan = ClusterPlan(
        nodes=parse_nodes("1xv100:1,1xcpu:0"),
        jar=jar,
        site_settings=SITE_SETTINGS,
        scheduler_settings=SCHEDULER_SETTINGS,
    )
    with start_sandbox(plan, folder=folder / "s") as sandbox:
        yield sandbox
    folder.rmdir()


def submit(cluster: Sandbox, cache: Path, *words: str) -> dict[str, object]:
    """Return what ``gpusage yarn submit --json`` says with *words*, its user's cache in *cache*."""
    done = cluster.run(
        *(sys.executable, "-m", "gpusage.cli", "yarn", "submit", "--memory-mib", "2048", "--json", *words),
        environment={"XDG_CACHE_HOME": str(cache)},
        timeout_s=apps.PATIENCE_S,
    )
    document: dict[str, object] = json.loads(done.stdout)
    return document


def test_the_second_run_of_a_command_is_decided_by_what_the_first_one_showed(cluster: Sandbox, tmp_path: Path) -> None:
    program, cache = tmp_path / "train.py", tmp_path / "cache"
    program.write_text(PROGRAM)
    command = ("--learn", "--file", str(program), "--", sys.executable, "train.py")
    first = submit(cluster, cache, *command)
    wait_until(lambda: [*cache.glob("gpusage/runs/*/*.json")])
    assert submit(cluster, cache, "--dry-run", *command)["code"] == "KEEP"  # nothing was measured yet
    question = "from gpusage.settings.configuration_file import load_configuration as load; print(load().store.url)"
    url = cluster.run(sys.executable, "-c", question).stdout.strip()
    with closing(open_store(url)) as store:
        store.record_usage([usage_alone(str(first["application"]), manager="yarn")])
    second = submit(cluster, cache, "--dry-run", *command)
    assert (first["code"], second["code"]) == ("KEEP", "REWRITE"), second["reasons"]
    assert f"in job {first['application']}'s run: busy 20 %" in str(second["reasons"])
    program.write_text(f"{PROGRAM}\n# another program")
    assert submit(cluster, cache, "--dry-run", *command)["code"] == "KEEP"


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", ["a forward with shared state", "a thread that waits for any child", "a timer that raises"]
)
def test_an_odd_program_ends_as_it_does_without_the_observer(cluster: Sandbox, tmp_path: Path, name: str) -> None:
    write_program(PROGRAMS[name], tmp_path)
    endings, cache = [], tmp_path / "cache"
    for learns in ("--no-learn", "--learn"):
        line = f"OMP_NUM_THREADS=1 {sys.executable} main.py >{tmp_path}/out 2>{tmp_path}/err"
        submitted = submit(cluster, cache, learns, "--file", str(tmp_path / "main.py"), "--", "sh", "-c", line)
        ended = apps.wait_for_state(cluster, str(submitted["application"]), "FINISHED", "FAILED")
        endings.append((ended["finalStatus"], *(anonymous((tmp_path / each).read_text()) for each in ("out", "err"))))
    assert endings[0] == endings[1]
    assert endings[0][0] == "SUCCEEDED"
    assert PROGRAMS[name].shows is None or [*cache.glob("gpusage/runs/*/*.json")]
