"""The last month of a real ResourceManager, simulated on its own cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import yarn_applications as apps
from gpusage_planning import commands
from gpusage_sandboxes.yarn import Sandbox
from gpusage_yarn.past_jobs import read_past_jobs

pytestmark = pytest.mark.yarn
SHARE = ("-num_containers", "1", "-container_resources", "memory-mb=64,vcores=1,gpusage.io/share=50")


def test_applications_that_ended_are_simulated_on_the_cluster_as_it_is(cluster: Sandbox, tmp_path: Path) -> None:
    apps.run_distributed_shell(cluster, "sleep 3", *SHARE, "-node_label_expression", "a100")
    words = ["--last-month", "--policy", "slots", "--repetitions", "1", "--json"]
    result = CliRunner().invoke(commands.simulate, words, env=cluster.environment, catch_exceptions=False)
    document = json.loads(result.stdout)
    assert document["notes"][0].startswith("YARN's accounting has ")
    assert document["policies"][0]["gpu_hours"] > 0
    answer = tmp_path / "apps.json"
    answer.write_bytes(apps.raw_document(cluster, "apps"))
    assert {job.gpu_type for job in read_past_jobs(str(answer)) or ()} >= {"a100"}
