"""The program that samples a job on its node, with stand-ins for NVML, the CUDA driver and MPS's control daemon."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

import gpusage_slurm
from gpusage_hooks.types import Granted, Usage
from mps import control_in, driver_in
from nvml import built_nvml
from waiting import LIMIT_S, wait_until

PROLOG = Path(gpusage_slurm.__file__).parent / "node" / "prolog.sh"
PROGRAM = [sys.executable, "-m", "gpusage_slurm.usage.node"]
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": str(os.geteuid()), "CUDA_VISIBLE_DEVICES": "0"}
SHARE = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40"}


def granted_on_node(folder: Path, share: dict[str, str], *options: str) -> Granted:
    """Return what the usage of a job with *share* says of it; *options* are those of `driver_in`."""
    (folder / "facts").write_text("utilization 40\n")
    environment = {
        "PATH": os.environ["PATH"],
        "LD_LIBRARY_PATH": str(built_nvml(folder)),
        "NVML_STANDIN": str(folder / "facts"),
        "GPUSAGE_MPS_FOLDER": str(folder / "mps"),
        "GPUSAGE_MPS_CONTROL": str(control_in(folder)),
        "GPUSAGE_CUDA_LIBRARY": str(driver_in(folder, *options)),
        "GPUSAGE_USAGE_FOLDER": str(folder / "usage"),
        **JOB,
        **share,
    }
    subprocess.run(
        [PROLOG], check=True, env=environment, timeout=LIMIT_S
    )  # without a node's name it begins no sampling
    with subprocess.Popen(PROGRAM, env={**environment, "SLURMD_NODENAME": "n1"}) as program:
        try:
            wait_until(lambda: any(folder.glob("usage/*.json")))
        finally:
            program.kill()
    (kept,) = folder.glob("usage/*.json")
    return msgspec.json.decode(kept.read_bytes(), type=Usage).granted


def test_what_a_client_sees_of_a_share_is_in_the_jobs_usage(tmp_path: Path) -> None:
    assert granted_on_node(tmp_path, SHARE) == Granted(division="percentage", share_percent=40, thread_percent=40)


def test_a_percentage_that_no_daemon_holds_is_found_out(tmp_path: Path) -> None:
    granted = granted_on_node(tmp_path, SHARE, "-DIGNORES_DAEMONS")
    assert granted == Granted(share_percent=40, trouble="no MPS daemon holds the client: it sees all SMs")


def test_a_job_with_a_gpu_of_its_own_has_all_of_it(tmp_path: Path) -> None:
    assert granted_on_node(tmp_path, {}) == Granted()
