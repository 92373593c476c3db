"""What `gpusage yarn submit --detach` costs beside a bare REST submission, with the model's card already made.

    .venv/bin/python bench/yarn_submit.py

Bare is what somebody would write who knows what to ask for, with requests, the library that gpusage uses: get an id,
send the application. Ours also asks what the cluster has and which classpath, decides, records the decision, and waits
until the application is in the ResourceManager's store; the model's needs under this workload are remembered from a
submission before. Every run is a process of its own, in turn on one sandbox, whose only node is stopped so that nothing
of what is submitted runs meanwhile. On a busy machine look at the CPU time: it hardly knows of the others, and beside
it only the ResourceManager's few ms are waited for.
"""

from __future__ import annotations

import os
import resource
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from gpusage_sandboxes.yarn import ClusterPlan, Sandbox, parse_nodes, start_sandbox

LIMIT_MS = 150
ROUNDS = 15
MODEL = Path(__file__).resolve().parents[1] / "examples" / "models" / "resnet50.onnx"
BARE = """
import sys, requests
url = sys.argv[1] + "/ws/v1/cluster/apps"
name = requests.post(url + "/new-application?user.name=bench").json()["application-id"]
spec = {"commands": {"command": "true"}}
document = {"application-id": name, "application-name": "bare", "application-type": "YARN",
            "resource": {"memory": 64, "vCores": 1}, "am-container-spec": spec}
assert requests.post(url + "?user.name=bench", json=document).status_code == 202
"""
WORDS = ("yarn", "submit", "--model", str(MODEL), "--batch", "64", "--detach", "--memory-mib", "32", "--", "true")


def took_ms(cluster: Sandbox, command: tuple[str, ...], cache: Path) -> tuple[float, float]:
    """Return how long a command takes that must succeed, and of that on a CPU."""
    # An installed package has its bytecode; a checkout run under PYTHONDONTWRITEBYTECODE gets it in the cache.
    environment = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(cache), "XDG_CACHE_HOME": str(cache)}
    began_s, before_s = time.perf_counter(), _cpu_s()
    cluster.run(*command, environment=environment, check=True)
    return 1000 * (time.perf_counter() - began_s), 1000 * (_cpu_s() - before_s)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(cluster: Sandbox, cache: Path) -> dict[str, list[tuple[float, float]]]:
    """Return the times of each way to submit, in ms, all taken in turn."""
    url, ours = cluster.rm_url, (sys.executable, "-m", "gpusage.cli", *WORDS)
    commands = {"Python and requests": (sys.executable, "-c", BARE, url), "gpusage": ours}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for turn in range(ROUNDS + 2):  # the first two compile, make the card and warm the ResourceManager
        for name, command in commands.items():
            took = took_ms(cluster, command, cache)
            if turn > 1:
                times[name].append(took)
    return times


def main() -> None:
    """Print the medians, and what each takes more than the bare submission of its own turn."""
    with tempfile.TemporaryDirectory() as cache, start_sandbox(ClusterPlan(nodes=parse_nodes("1xv100:2"))) as cluster:
        os.kill(cluster.pid("v100-1") or 0, signal.SIGSTOP)
        times = measure(cluster, Path(cache))
    requests_times = times["Python and requests"]
    print(f"{'':20} {'median':>8} {'best':>8} {'more':>8} {'CPU':>8} {'more':>8}   all in ms")
    for name, column in times.items():
        more, more_cpu = (
            statistics.median(mine[part] - other[part] for mine, other in zip(column, requests_times, strict=True))
            for part in (0, 1)
        )
        walls, cpus = zip(*column, strict=True)
        shown = f"{statistics.median(walls):8.0f} {min(walls):8.0f} {more:+8.0f} {statistics.median(cpus):8.0f}"
        print(f"{name:20} {shown} {more_cpu:+8.0f}")
    print(f"wanted: at most {LIMIT_MS:+d} ms; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
