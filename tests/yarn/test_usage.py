"""What a container really did, from its node to the hook that gpusaged asks; NVML's device alone is a stand-in."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

import yarn_applications as apps
import yarn_masters as masters
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.devices.shares import memory_cap_bytes
from gpusage_hooks.managers import Context
from gpusage_hooks.types import Allocation, Usage
from gpusage_sandboxes.yarn import ClusterPlan, parse_nodes, start_sandbox
from gpusage_sandboxes.yarn.settings import SCHEDULER_SETTINGS, SITE_SETTINGS
from gpusage_yarn.observation import collect_usage, read_accounting
from gpusage_yarn.settings import YarnSettings
from mps import driver_in
from nvml import built_nvml

pytestmark = pytest.mark.yarn

FACTS = "utilization 40\nenergy 5000\nsm 30\ndram 20\n"
BUSY = "import time; s = time.process_time()\nwhile time.process_time() < s + 1: pass"


def test_what_a_container_did_on_its_gpu_is_told_with_its_user_and_its_end(jar: Path, tmp_path: Path) -> None:
    facts, command = tmp_path / "facts", tmp_path / "sampler"
    facts.write_text(FACTS)
    command.write_text(
        f"#!/bin/sh\nexport LD_LIBRARY_PATH={built_nvml(tmp_path)} NVML_STANDIN={facts}\n"
        f"export GPUSAGE_CUDA_LIBRARY={driver_in(tmp_path)}\n"
        f'exec {sys.executable} -m gpusage_yarn.usage.node "$@"\n'
    )
    command.chmod(0o755)
    pipe = tmp_path / "mps" / "0" / "pipe"
    pipe.mkdir(parents=True)
    (pipe / "running").write_text("-d\n")  # as the stand-in for the control daemon leaves it
    settings = {
        **SITE_SETTINGS,
        "gpusage.node.usage-command": str(command),
        "gpusage.node.usage-directory": str(tmp_path / "usage"),
        "gpusage.node.mps-directory": str(tmp_path / "mps"),
    }
    plan = ClusterPlan(
        nodes=parse_nodes("1xv100:1,1xcpu:0"), jar=jar, site_settings=settings, scheduler_settings=SCHEDULER_SETTINGS
    )
    with start_sandbox(plan) as sandbox:
        sampled = f"until ls {tmp_path}/usage/*.device; do sleep 0.1; done"
        # The sampler asks NVML for the processes, first how many they are: three times more, once the work is done.
        looked_at = f": >{facts}.looks; until [ $(wc -l <{facts}.looks) -ge 6 ]; do sleep 0.1; done"
        shown = f"printf '{FACTS}' >{facts}; echo process $$ 3000000000 >>{facts}"
        work = f"{shown}; {sampled}; python3 -c '{BUSY}'; {looked_at}"
        app = masters.submit(sandbox, work, plan=masters.plan(share="40", labels="v100"))
        (report,) = masters.wait_for_end(sandbox, app)
        address = f"http://127.0.0.1:{sandbox.record.rm_web_port}"
        context = Context(settings=YarnSettings(), catalogue=builtin_catalogue())
        reported: list[Usage] = []

        def is_reported() -> bool:
            reported[:] = collect_usage((address,), context)
            return bool(reported)

        apps.wait_until(sandbox, is_reported, "usage is told")
        accounted = read_accounting((address,), time.time() - 3600, time.time() + 1, context)
    (usage,) = reported
    (booked,) = accounted
    assert (booked.job_id, booked.user, booked.account) == (app, report["user"], "root.default")
    assert (booked.outcome, booked.sampled_s) == ("completed", 0)
    # Without a plan's tags nobody knows the share; held for a part of the application's time, it is less on the mean.
    assert booked.granted.division == "percentage"
    assert 0 < booked.granted.share_percent <= 40
    assert booked.gpu_count == pytest.approx(1, rel=0.5)
    assert (usage.job_id, usage.user, usage.outcome) == (app, report["user"], "completed")
    assert usage.gpu == "v100-sxm2-16gb"
    v100 = builtin_catalogue().find("v100-sxm2-16gb")
    assert usage.granted == Allocation(
        division="percentage",
        share_percent=40,
        thread_percent=40,
        limited_by="cap",
        memory_limit_bytes=memory_cap_bytes(v100.memory_bytes, 40),
    )  # which a client with the container's variables has seen
    assert (usage.gpu_utilization, usage.sm_activity, usage.dram_activity) == (0.4, 0.3, 0.2)
    assert usage.memory_bytes == 3_000_000_000
    assert usage.cpu_s is not None
    assert usage.cpu_s >= 0.9
    assert 0 <= time.time() - usage.ended_at_s < apps.PATIENCE_S
