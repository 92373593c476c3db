"""Power saving in a sandbox: a node that Slurm suspends has no slurmd, and one that it resumes has a new one."""

from __future__ import annotations

import shlex
from pathlib import Path

from gpusage_sandboxes.slurm.cluster import Sandbox

_SETTINGS = """\
SuspendProgram={suspend}
ResumeProgram={resume}
SuspendTime=86400
SuspendTimeout=5
ResumeTimeout=60
"""
"""Slurm itself suspends nothing of a sandbox within a day."""
_SCRIPT = """\
#!/bin/sh
exec </dev/null >>{log} 2>&1 # 22.05 closes them, and a slurmd whose first file is its standard error starts no job
export PATH={path} SLURM_CONF={slurm_conf}
echo "$0 $1"
for node in $(scontrol show hostnames "$1"); do
    {command}
done
"""


def lay_out_power_saving(sandbox: Sandbox) -> str:
    """Write the programs that suspend and resume nodes, and return slurm.conf's lines for them."""
    run, stepd = sandbox.layout.run, sandbox.installation.slurmstepd
    suspend = _write(sandbox, "suspend.sh", f'kill "$(cat {shlex.quote(str(run))}/"$node".pid)"')
    # slurmctld waits for a node that has booted since; -b says so. It kills what the program leaves in its own session.
    resume = _write(sandbox, "resume.sh", f'setsid slurmd -b -N "$node" -d {shlex.quote(str(stepd))}')
    return _SETTINGS.format(suspend=suspend, resume=resume)


def _write(sandbox: Sandbox, name: str, command: str) -> Path:
    path = sandbox.layout.etc / name
    inside = {
        "log": str(sandbox.layout.log_file("power")),
        "path": sandbox.environment["PATH"],
        "slurm_conf": str(sandbox.layout.slurm_conf),
    }
    text = _SCRIPT.format(command=command, **{key: shlex.quote(value) for key, value in inside.items()})
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path
