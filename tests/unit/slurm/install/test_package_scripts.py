"""What a deb or rpm runs as root."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RELEASE = Path(__file__).parents[4] / "release"


@pytest.mark.parametrize("name", ["postinstall.sh", "preremove.sh", "postremove.sh"])
def test_a_module_in_the_folder_where_root_installs_is_not_run(tmp_path: Path, name: str) -> None:
    """`python -m` looks there first; anyone may write to /tmp."""
    opt, public, bin_ = tmp_path / "opt", tmp_path / "public", tmp_path / "bin"
    for folder in (opt / "bin", opt / "lib", public, bin_):
        folder.mkdir(parents=True)
    (opt / "bin" / "python").symlink_to(sys.executable)
    (opt / "bin" / "gpusage").write_text("#!/bin/sh\n")
    for program in ("gpusage", "systemctl", "scontrol", "pidof"):
        folder = opt / "bin" if program == "gpusage" else bin_
        (folder / program).write_text("#!/bin/sh\nexit 0\n")
        (folder / program).chmod(0o755)
    for module in ("compileall", "pathlib", "concurrent", "struct"):
        (public / f"{module}.py").write_text(f"open({str(tmp_path / 'planted')!r}, 'w')\n")
    text = (RELEASE / name).read_text().replace("/opt/gpusage", str(opt)).replace("/usr/libexec", str(tmp_path / "lib"))
    environment = {"PATH": f"{bin_}:/usr/bin:/bin", "SLURM_CONF": str(tmp_path / "none")}
    done = subprocess.run(
        ["sh", "-c", text, name, "remove"], cwd=public, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "planted").exists()
