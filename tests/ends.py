"""Programs of tests that use a GPU as far as a node's sampler can tell, and end in one way or another.

The sampler knows a program on the GPU by its opening of a device file, which is a plain file here. How a program ends
is told by the kernel, to root alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gpusage.node.sampler.kernel_events import ExitWatch
from gpusage_sandboxes.slurm import Sandbox
from gpusage_slurm.install.node_scripts import EPILOG, PROLOG, TASK_EPILOG

TRAINING = f"""#!{sys.executable} -IS
# train CODE: runs CODE as a program on the GPU; `allocate` and `lack` find no memory in a share.
import logging, os, signal, subprocess, sys, time, traceback
class OutOfMemoryError(RuntimeError):
    __module__ = "torch"
share = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100") != "100"
def allocate(text="CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 2.20 GiB"):
    if share:
        raise OutOfMemoryError(text)
def lack(text, status=1):
    if share:
        print(text, file=sys.stderr, flush=True)
        sys.exit(status) if status < 256 else os.kill(os.getpid(), status - 256)
ends = "MPS/ends/" + os.environ["SLURM_JOB_ID"]
while SEEN and share and not os.path.exists(ends):
    time.sleep(0.05)
device = open("DEVICES/nvidia0")
# CUDA takes seconds to start, and longer on a busy machine, as the sampler does.
while SEEN and share and "gpu %d\\n" % os.getpid() not in open(ends).read():
    time.sleep(0.05)
exec(sys.argv[1])
print("trained")
"""


def sees_ends() -> bool:
    """Return whether the kernel tells this user how processes end."""
    try:
        ExitWatch().close()
    except OSError:
        return False
    return True


def write_training(folder: Path, mps: Path) -> Path:
    """Write the program, and the GPU's file into *folder*/devices; return the program. *mps* is the node's folder."""
    devices, program = folder / "devices", folder / "train"
    devices.mkdir()
    (devices / "nvidia0").write_text("")
    text = TRAINING.replace("SEEN", str(sees_ends())).replace("MPS/", f"{mps}/").replace("DEVICES/", f"{devices}/")
    program.write_text(text)
    program.chmod(0o755)
    return program


def give_training(sandbox: Sandbox) -> Path:
    """Return the program for jobs of a sandbox with gpusage installed, whose sampler sees it from now on."""
    state, conf = sandbox.layout.state, sandbox.layout.slurm_conf
    program = write_training(sandbox.layout.jobs, state / "mps")
    path = sandbox.run("sh", "-c", 'dirname "$(command -v scontrol)"').stdout.strip()
    variables = f"GPUSAGE_MPS_FOLDER={state}/mps GPUSAGE_USAGE_FOLDER={state}/usage"
    variables += f" GPUSAGE_DEVICE_FOLDER={program.parent}/devices PATH={path}:$PATH"
    for script in (PROLOG, EPILOG, TASK_EPILOG):
        wrapper, copy = script.copy(sandbox.layout.etc), script.copy(sandbox.layout.libexec)
        wrapper.write_text(f"#!/bin/sh\nexport {variables}\nexec {copy}\n")
        wrapper.chmod(0o755)
        conf.write_text(conf.read_text().replace(f"{script.key}={copy}", f"{script.key}={wrapper}"))
    sandbox.reconfigure()
    return program
