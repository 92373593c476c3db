"""What `gpusage yarn submit --detach` costs beside a bare REST submission, with the model's card already made.

Both are processes of their own, taken in turn on the same sandbox.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from pathlib import Path

from gpusage_yarn.sandbox import ClusterPlan, Sandbox, parse_nodes, start_sandbox

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


def took_ms(cluster: Sandbox, *command: str) -> float:
    """Return how long a command takes."""
    began_s = time.perf_counter()
    cluster.run(*command, environment={"PYTHONDONTWRITEBYTECODE": ""})  # or every start compiles everything
    return 1000 * (time.perf_counter() - began_s)


def main() -> None:
    """Print the medians."""
    with start_sandbox(ClusterPlan(nodes=parse_nodes("1xv100:2"))) as cluster:
        os.kill(cluster.pid("v100-1") or 0, signal.SIGSTOP)  # so that nothing of what is submitted runs meanwhile
        bare = (sys.executable, "-c", BARE, cluster.rm_url)
        words = ("--model", str(MODEL), "--batch", "64", "--detach", "--memory-mib", "32", "--", "true")
        ours = (sys.executable, "-m", "gpusage.cli", "yarn", "submit", *words)
        took_ms(cluster, *ours), took_ms(cluster, *bare)
        pairs = [(took_ms(cluster, *bare), took_ms(cluster, *ours)) for _ in range(ROUNDS)]
    medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
    more_ms = statistics.median(mine - other for other, mine in pairs)
    print(f"bare REST {medians[0]:.0f} ms, gpusage yarn submit {medians[1]:.0f} ms: {more_ms:+.0f} ms")
    print(f"wanted: at most +{LIMIT_MS} ms; most of it is the start of Python with numpy and every plugin")


if __name__ == "__main__":
    main()
