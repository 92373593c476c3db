"""How the sampling of a job begins on its node."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import gpusage_slurm

SCRIPT = Path(gpusage_slurm.__file__).parent / "node" / "usage.sh"


def test_the_sampler_takes_no_module_of_the_folder_where_the_prolog_runs(tmp_path: Path) -> None:
    """Slurmd's folder may be somebody else's than root's; Python would look for its modules there first."""
    package = tmp_path / "gpusage_slurm" / "usage"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "node.py").write_text(f"open({str(tmp_path / 'planted')!r}, 'w')\n")
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "1000", "CUDA_VISIBLE_DEVICES": "0", "SLURMD_NODENAME": "n1"}
    ours = {"GPUSAGE_USAGE_FOLDER": str(tmp_path / "usage"), "GPUSAGE_PYTHON": sys.executable}
    environment = {"PATH": os.environ["PATH"], **job, **ours}
    subprocess.run([SCRIPT, "begin"], check=True, cwd=tmp_path, env=environment, timeout=20)
    pid_file = tmp_path / "usage" / ".n1.7.pid"
    program = Path("/proc") / pid_file.read_text().strip()
    deadline_s = time.monotonic() + 20
    while not (tmp_path / "usage" / ".n1.7.device").exists() and program.exists() and time.monotonic() < deadline_s:
        time.sleep(0.1)
    subprocess.run([SCRIPT, "end"], check=True, cwd=tmp_path, env=environment, timeout=20)
    assert not (tmp_path / "planted").exists()
