"""The body of an emulated job: says where it is, waits until the coordinator sends how it ended, and ends so.

It runs with the standard library alone, ``python -I -S body.py SOCKET JOB``, so that it starts quickly.
"""

import os
import socket
import sys

MIB = 1024 * 1024


def hello(job: str, environment: "os._Environ[str]") -> str:
    """Return one line: job, node, device, percentage of the threads, and memory cap in bytes, 0 without one."""
    devices = environment.get("GPUSAGE_DEVICE") or environment.get("CUDA_VISIBLE_DEVICES") or "0"
    percent = environment.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") or "100"
    cap = environment.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "").partition("=")[2].rstrip("M")
    node = environment.get("SLURMD_NODENAME") or environment.get("NM_PORT", "")
    return f"{job} {node} {devices.partition(',')[0]} {percent} {int(cap or 0) * MIB}\n"


def main() -> None:
    """Stand for one job."""
    path, job = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(hello(job, os.environ).encode())
        ending = connection.recv(64).decode()
    if ending != "done":
        sys.exit("torch.OutOfMemoryError: CUDA out of memory." if ending else "The coordinator is gone.")


if __name__ == "__main__":
    main()
