"""NVML's counters through the real pynvml; the device alone is a stand-in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nvml import built_nvml
from waiting import LIMIT_S

CODE = """
import sys
import msgspec
from gpusage.plugins.loading import node_hooks
hooks = node_hooks()
for device in sys.argv[1:]:
    print(msgspec.json.encode(hooks.read_gpu(device)).decode())
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_nvml(tmp_path_factory.mktemp("nvml"))


def readings(library: Path, facts: str, *devices: str) -> list[dict[str, object]]:
    """Return what is read of each of *devices*, one after the other."""
    file = library / "facts"
    file.write_text(facts)
    environment = os.environ | {"LD_LIBRARY_PATH": str(library), "NVML_STANDIN": str(file)}
    command = [sys.executable, "-c", CODE, *devices]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_counter_is_read(library: Path) -> None:
    """Activities are known from the second reading on; a process whose memory the driver does not tell is there."""
    facts = "utilization 40\nenergy 5000\nsm 30\ndram 20\nprocess 12 3000\nprocess 13 0\n"
    first, second = readings(library, facts, "0", "0")
    expected = {
        "name": "Tesla V100-SXM2-16GB",
        "gpu_utilization": 0.4,
        "energy_j": 5.0,
        "process_memory_bytes": {"12": 3000, "13": None},
    }
    assert first == expected | {"sm_activity": None, "dram_activity": None}
    assert second == expected | {"sm_activity": 0.3, "dram_activity": 0.2}


def test_the_drivers_own_samples_are_preferred_and_counted_once(library: Path) -> None:
    """30 and 50 since the first reading are 40; no new one since the second: the latest rate."""
    first, second = readings(library, "utilization 7\nsample 100 30\nsample 200 50\n", "1", "1")
    assert (first["gpu_utilization"], second["gpu_utilization"]) == (0.4, 0.07)


def test_what_a_gpu_does_not_have_is_unknown(library: Path) -> None:
    (bare,) = readings(library, "", "GPU-11111111-2222-3333-4444-555555555555")
    assert bare == {
        "name": "Tesla V100-SXM2-16GB",
        "gpu_utilization": None,
        "sm_activity": None,
        "dram_activity": None,
        "energy_j": None,
        "process_memory_bytes": {},
    }


SLICE = "MIG-11111111-2222-3333-4444-555555555555"
IDLE = {"name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "energy_j": None, "process_memory_bytes": {"12": 3000}}
UNKNOWN = {"gpu_utilization": None, "sm_activity": None, "dram_activity": None}


def test_a_slice_has_the_counters_of_its_instance(library: Path) -> None:
    """The GPU around it is busier; its own counters, which GPM has for each instance, count."""
    facts = "utilization 90\nsm 80\nenergy 5\nslice 7\nslice.busy 60\nslice.sm 50\nslice.dram 20\nprocess 12 3000\n"
    first, second = readings(library, facts, SLICE, SLICE)
    assert first == IDLE | UNKNOWN
    assert second == IDLE | {"gpu_utilization": 0.6, "sm_activity": 0.5, "dram_activity": 0.2}


def test_before_hopper_memory_is_all_that_is_known_of_a_slice(library: Path) -> None:
    assert readings(library, "utilization 90\nslice 7\nprocess 12 3000\n", SLICE, SLICE) == [IDLE | UNKNOWN] * 2


def test_a_gpu_that_is_not_there_is_left_to_others(library: Path) -> None:
    assert readings(library, "", "7", "GPU-x", "MIG-9", "") == [None] * 4
