"""The example plugin for AMD's and DCGM's counters, asked by the sampler's hooks; sysfs and exporter are stand-ins."""

from __future__ import annotations

import http.server
import importlib.util
import threading
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from gpusage.plugins.hooks import Hooks
from gpusage.plugins.loading import ENTRY_POINT_GROUP, make_hooks
from gpusage_hooks.types import GpuReading

EXAMPLE = Path(__file__).parents[3] / "examples" / "gpu_counters.py"
PAGE = """# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="n1"} 40
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-b",device="nvidia1",modelName="NVIDIA H100 80GB HBM3",Hostname="n1"} 99
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100 80GB HBM3"} 5000
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100 80GB HBM3"} 0.3
DCGM_FI_PROF_DRAM_ACTIVE{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100 80GB HBM3"} nonsense
DCGM_FI_PROF_SM_ACTIVE{gpu="1",UUID="GPU-b",GPU_I_ID="3",modelName="NVIDIA H100 80GB HBM3"} 0.9
"""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """Return the plugin on a node without any GPU and exporter."""
    monkeypatch.setenv("SITE_SYSFS", str(tmp_path))
    monkeypatch.setenv("SITE_DCGM_URL", "http://127.0.0.1:1/metrics")
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    spec = importlib.util.spec_from_file_location("gpu_counters", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(__import__("sys").modules, "gpu_counters", module)
    return module


@pytest.fixture
def hooks(module: ModuleType) -> Hooks:  # it is found by its name
    point = EntryPoint(name="counters", value="gpu_counters", group=ENTRY_POINT_GROUP)
    return make_hooks((point,), built_in=("gpusage.node.sampler.nvml",))


@pytest.fixture
def exporter(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(PAGE.encode())

        def log_message(self, *words: object) -> None:
            """Say nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(module, "DCGM_URL", f"http://127.0.0.1:{server.server_port}/metrics")
        yield
        server.shutdown()


@pytest.mark.usefixtures("exporter")
@pytest.mark.parametrize("device", ["0", "GPU-a"])
def test_dcgms_counters_are_read_and_what_it_does_not_tell_is_unknown(hooks: Hooks, device: str) -> None:
    expected = GpuReading(name="NVIDIA H100 80GB HBM3", gpu_utilization=0.4, sm_activity=0.3, energy_j=5.0)
    assert hooks.read_gpu(device) == expected


@pytest.mark.usefixtures("exporter")
def test_a_slices_counters_are_not_its_gpus(hooks: Hooks) -> None:
    assert hooks.read_gpu("1") == GpuReading(name="NVIDIA H100 80GB HBM3", gpu_utilization=0.99)


def test_amds_counters_are_read_and_another_vendors_card_is_none(hooks: Hooks, tmp_path: Path) -> None:
    for number, vendor in ((0, "0x1a03"), (1, "0x1002")):
        folder = tmp_path / f"class/drm/card{number}/device"
        (folder / "hwmon/hwmon3").mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "gpu_busy_percent").write_text("73\n")
        (folder / "hwmon/hwmon3/energy1_input").write_text("2500000\n")
    (tmp_path / "class/kfd/kfd/proc/77").mkdir(parents=True)
    (tmp_path / "class/kfd/kfd/proc/77/vram_5312").write_text("4096\n")
    reading = hooks.read_gpu("0")
    assert reading == GpuReading(name="AMD GPU", gpu_utilization=0.73, energy_j=2.5, process_memory_bytes={77: 4096})
    assert hooks.read_gpu("1") is None


def test_a_node_with_neither_is_left_to_nvml(module: ModuleType) -> None:
    assert module.read_gpu("0") is None
