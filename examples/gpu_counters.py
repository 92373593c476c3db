"""A site's plugin for the sampler on compute nodes: counters of AMD's GPUs, and of NVIDIA's through DCGM.

Copy what you need into a package with an entry point in the group `gpusage` (docs/plugins.md), and install it on the
compute nodes. Where neither answers, NVML's own counters are read, as without it.

Source:
    AMD: Linux, Documentation/gpu/amdgpu (gpu_busy_percent, hwmon), and the driver amdkfd (/sys/class/kfd/kfd/proc).
    DCGM: dcgm-exporter's page, https://github.com/NVIDIA/dcgm-exporter.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

from gpusage_hooks import hookimpl
from gpusage_hooks.types import GpuReading

SYS = Path(os.environ.get("SITE_SYSFS", "/sys"))
DCGM_URL = os.environ.get("SITE_DCGM_URL", "http://127.0.0.1:9400/metrics")
LIMIT_S = 0.5
"""A job's node must not wait for an exporter; without its answer NVML is read."""
AMD = "0x1002"
_SAMPLE = re.compile(r"^(DCGM_FI_\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@hookimpl
def read_gpu(device: str) -> GpuReading | None:
    """Read AMD's counters where the node has such a GPU, else DCGM's where an exporter runs."""
    return amd_reading(device) or dcgm_reading(device)


def amd_reading(device: str) -> GpuReading | None:
    """Return what the kernel tells of AMD's GPU number *device*; ``None`` where there is none."""
    cards = sorted(SYS.glob("class/drm/card[0-9]*/device/gpu_busy_percent"), key=_card_number)
    folders = [card.parent for card in cards if _text(card.parent / "vendor") == AMD]
    if not device.isdigit() or int(device) >= len(folders):
        return None
    folder = folders[int(device)]
    energy_uj = next((_number(file) for file in folder.glob("hwmon/hwmon*/energy1_input")), None)
    busy_percent = _number(folder / "gpu_busy_percent")
    return GpuReading(
        name=_text(folder / "product_name") or "AMD GPU",
        gpu_utilization=None if busy_percent is None else busy_percent / 100,
        energy_j=None if energy_uj is None else energy_uj / 1e6,
        process_memory_bytes=_amd_processes() if len(folders) == 1 else {},  # they tell of all GPUs together
    )


def dcgm_reading(device: str) -> GpuReading | None:
    """Return what DCGM's exporter tells of the GPU with this number or UUID; it tells of no process."""
    try:
        with urlopen(DCGM_URL, timeout=LIMIT_S) as page:  # noqa: S310 - the site's own address
            text = page.read(4_000_000).decode(errors="replace")
    except OSError:
        return None
    samples: dict[str, float] = {}
    name = ""
    for field, words, value in _SAMPLE.findall(text):
        labels = dict(_LABEL.findall(words))
        if device in (labels.get("gpu"), labels.get("UUID")) and "GPU_I_ID" not in labels:  # that is a slice's
            name = labels.get("modelName", name)
            with suppress(ValueError):
                samples[field] = float(value)
    return _of_dcgm(name, samples) if samples else None


def _of_dcgm(name: str, samples: Mapping[str, float]) -> GpuReading:
    busy_percent, energy_mj = (
        samples.get(f"DCGM_FI_DEV_{field}") for field in ("GPU_UTIL", "TOTAL_ENERGY_CONSUMPTION")
    )
    return GpuReading(
        name=name or "NVIDIA GPU",
        gpu_utilization=None if busy_percent is None else busy_percent / 100,
        sm_activity=samples.get("DCGM_FI_PROF_SM_ACTIVE"),
        dram_activity=samples.get("DCGM_FI_PROF_DRAM_ACTIVE"),
        energy_j=None if energy_mj is None else energy_mj / 1000,
    )


def _amd_processes() -> dict[int, int | None]:
    held: dict[int, int | None] = {}
    for file in SYS.glob("class/kfd/kfd/proc/[0-9]*/vram_*"):
        held[int(file.parent.name)] = (held.get(int(file.parent.name)) or 0) + (_number(file) or 0)
    return held


def _card_number(file: Path) -> int:
    return int(file.parent.parent.name.removeprefix("card"))


def _number(file: Path) -> int | None:
    text = _text(file)
    return int(text) if text.isdigit() else None


def _text(file: Path) -> str:
    with suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace").strip()
    return ""
