"""What sampling one job costs its node: processor time per hour, and memory, of the real program.

Run: .venv/bin/python bench/sampler.py [SECONDS]

The device is tests/standins/nvml.c, which answers at once; the driver's own time for a call comes on top where there is
a GPU (run it there with GPUSAGE_REAL_NVML=1). The job has a share, and 16 processes on the GPU with 100 open
files each, as a training job with its loaders has.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
GOAL_SHARE = 0.005
PROCESSES = 16
JOB = "990001"


def main(seconds: float) -> int:
    """Sample a job that sleeps, and print what it cost; exit with 1 where that misses the goal."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = os.environ | {
            "SLURM_JOB_ID": JOB,
            "SLURM_JOB_UID": str(os.geteuid()),
            "CUDA_VISIBLE_DEVICES": "0",
            "SLURMD_NODENAME": "bench",
            "GPUSAGE_USAGE_FOLDER": str(folder / "usage"),
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
            "GPUSAGE_MPS_FOLDER": str(folder),
            "GPUSAGE_DEVICE_FOLDER": str(folder),
        }
        if not os.environ.get("GPUSAGE_REAL_NVML"):
            environment |= _standin(folder)
        (folder / "nvidia0").touch()
        files = f"import time; time.sleep(5); files = [open('{folder}/nvidia0') for _ in range(100)]; time.sleep(9999)"
        job = [subprocess.Popen([sys.executable, "-c", files], env=environment) for _ in range(PROCESSES)]
        sampler = subprocess.Popen([sys.executable, "-s", "-m", "gpusage_slurm.usage.node"], env=environment)
        try:
            return _report(sampler.pid, seconds)
        finally:
            for process in (sampler, *job):
                process.kill()
                process.wait()


def _standin(folder: Path) -> dict[str, str]:
    """Compile the stand-in for the device, and return the environment that has it."""
    (folder / "facts").write_text(
        "energy 5000\nsm 30\ndram 20\nprocess 1 3000000000\n"
        + "".join(f"sample {place * 166_000 + 1} 40\n" for place in range(60))  # as a driver keeps for 10 s
    )
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, TESTS / "standins" / "nvml.c"], check=True)
    return {"LD_LIBRARY_PATH": str(folder), "NVML_STANDIN": str(folder / "facts")}


def _report(pid: int, seconds: float) -> int:
    time.sleep(20)  # it looks seldom from then on
    begun_s, before_s = time.monotonic(), _cpu_s(pid)
    time.sleep(seconds)
    share = (_cpu_s(pid) - before_s) / (time.monotonic() - begun_s)
    print(f"start and first 20 s   {before_s:.2f} s of one processor")
    print(f"from then on           {share:.3%} of one processor (goal: at most {GOAL_SHARE:.1%})")
    print(f"memory                 {_memory_mib(pid):.0f} MiB of its own")
    print(f"a job of an hour       {(before_s + share * 3580) / 3600:.3%} of one processor")
    return 0 if share <= GOAL_SHARE else 1


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _memory_mib(pid: int) -> float:
    """Return what the process has for itself; the interpreter's own pages are shared with others."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private")) / 1024


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 120.0))
