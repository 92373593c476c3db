from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gpusage.devices.catalogue import Catalogue, builtin_catalogue, describe_gpus
from gpusage_hooks.errors import DeviceError
from gpusage_hooks.types import Gpu

REQUIRED = (
    "k80 p4 p100 gtx-1080-ti titan-xp titan-v titan-rtx t4 rtx-2080-ti v100-sxm2-16gb v100-sxm2-32gb "
    "v100-pcie-16gb v100-pcie-32gb rtx-3090 rtx-4090 rtx-5090 a10 a30 a40 a100-pcie-40gb a100-pcie-80gb "
    "a100-sxm4-40gb a100-sxm4-80gb l4 l40s rtx-6000-ada rtx-pro-6000 h100-pcie h100-sxm5 h100-nvl h200 "
    "gh200 b200 p40 gtx-1080 quadro-p6000 rtx-2070 rtx-2080 quadro-rtx-5000 quadro-rtx-8000 a2 a10g a16 rtx-a4000 "
    "rtx-a5000 rtx-3060 rtx-3070 rtx-3080-ti rtx-4070-ti rtx-4080 rtx-4000-ada rtx-4500-ada rtx-5000-ada rtx-5070-ti "
    "rtx-5080 h200-nvl h20 mi100 mi210 mi250x mi300a mi300x mi325x mi355x"
)

NAMES = {
    "v100": "v100-sxm2-16gb",
    "V100": "v100-sxm2-16gb",
    "a100": "a100-sxm4-40gb",
    "h100": "h100-sxm5-80gb",
    "rtx3090": "rtx-3090",
    "geforce_rtx_2080_ti": "rtx-2080-ti",
    "tesla_t4": "t4",
    "nvidia_a100-sxm4-80gb": "a100-sxm4-80gb",
    "nvidia_h100_80gb_hbm3": "h100-sxm5-80gb",
    "Tesla V100-SXM2-16GB": "v100-sxm2-16gb",
    "Tesla V100-PCIE-32GB": "v100-pcie-32gb",
    "Tesla P100-PCIE-16GB": "p100-pcie-16gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA H100 PCIe": "h100-pcie-80gb",
    "NVIDIA H200": "h200-sxm5-141gb",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA TITAN Xp": "titan-xp",
    "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada",
    "Quadro RTX 6000": "quadro-rtx-6000",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000-server",
    "NVIDIA GH200 480GB": "gh200-96gb",
    "NVIDIA B200": "b200-sxm6-180gb",
    "Tesla P40": "p40",
    "NVIDIA A10G": "a10g",
    "NVIDIA RTX A5000": "rtx-a5000",
    "a4000": "rtx-a4000",
    "NVIDIA GeForce RTX 3080 Ti": "rtx-3080-ti",
    "NVIDIA GeForce RTX 4080": "rtx-4080",
    "nvidia_geforce_rtx_5070_ti": "rtx-5070-ti",
    "NVIDIA RTX 4000 Ada Generation": "rtx-4000-ada",
    "NVIDIA RTX 5000 Ada Generation": "rtx-5000-ada",
    "Quadro RTX 5000": "quadro-rtx-5000",
    "Quadro RTX 8000": "quadro-rtx-8000",
    "NVIDIA H200 NVL": "h200-nvl-141gb",
    "a100:3g.20gb": "a100-sxm4-40gb:3g.20gb",
    "a100_3g.40gb": "a100-sxm4-80gb:3g.40gb",
    "3g.20gb": "a100-sxm4-40gb:3g.20gb",
    "nvidia_a100-sxm4-40gb_1g.5gb": "a100-sxm4-40gb:1g.5gb",
    "NVIDIA A100-SXM4-40GB MIG 3g.20gb": "a100-sxm4-40gb:3g.20gb",
    "NVIDIA A100 80GB PCIe MIG 1g.10gb": "a100-pcie-80gb:1g.10gb",
    "nvidia_h100_80gb_hbm3_1g.10gb": "h100-sxm5-80gb:1g.10gb",
    "a800": "a100-sxm4-80gb",
    "h800": "h100-sxm5-80gb",
    "mi300x": "mi300x-192gb",
    "AMD Instinct MI300X": "mi300x-192gb",
    "nvidia_b200_3g.90gb": "b200-sxm6-180gb:3g.90gb",
}
WITHOUT_TF32 = {"kepler", "pascal", "volta", "turing", "cdna", "cdna2", "cdna4"}
"""Generations whose matrix units, if they have any, multiply no fp32 inputs."""


@pytest.mark.parametrize("name", REQUIRED.split())
def test_the_catalogue_has(name: str) -> None:
    assert builtin_catalogue().find(name).name.startswith(name)


@pytest.mark.parametrize(("name", "expected"), NAMES.items())
def test_names_of_people_slurm_and_nvml_lead_to_the_row(name: str, expected: str) -> None:
    assert builtin_catalogue().find(name).name == expected


def test_no_two_rows_share_a_name_or_an_alias() -> None:
    rows = describe_gpus()
    names = [name for gpu in rows for name in (gpu.name, *gpu.aliases)]
    for gpu in rows:
        for name in (gpu.name, *gpu.aliases):
            assert builtin_catalogue().find(name) is gpu
    assert len(names) == len(set(names))


WHOLE = [gpu for gpu in describe_gpus() if not gpu.parent_gpu]
SLICES = [gpu for gpu in describe_gpus() if gpu.parent_gpu]


@pytest.mark.parametrize("gpu", SLICES, ids=lambda gpu: gpu.name)
def test_a_slice_is_a_part_of_the_gpu_that_it_is_cut_from(gpu: Gpu) -> None:
    """Its share of the memory is close to what its name says, and its rates follow its SMs."""
    board = builtin_catalogue().find(gpu.board)
    compute, memory_gb = map(int, re.findall(r"(\d+)g", gpu.name.partition(":")[2]))
    assert gpu.name == f"{board.name}:{compute}g.{memory_gb}gb"
    assert 0.85 * memory_gb * 2**30 <= gpu.memory_bytes <= min(1.02 * memory_gb * 2**30, board.memory_bytes)
    assert compute / 7 * 0.71 <= gpu.sm_count / board.sm_count <= min(compute / 4, 1.0)  # of an H20's 78, a 1g has 8
    assert gpu.peak_flop_per_s["fp16"] / board.peak_flop_per_s["fp16"] == pytest.approx(gpu.sm_count / board.sm_count)
    assert gpu.bandwidth_bytes_per_s / board.bandwidth_bytes_per_s in {1 / 8, 1 / 4, 1 / 2, 1.0}
    assert gpu.l2_bytes / board.l2_bytes == pytest.approx(gpu.bandwidth_bytes_per_s / board.bandwidth_bytes_per_s)
    assert re.search("Multi-Instance GPU User Guide|mig-parted", gpu.source)


@pytest.mark.parametrize("gpu", WHOLE, ids=lambda gpu: gpu.name)
def test_a_row_is_plausible_and_names_its_source(gpu: Gpu) -> None:
    assert re.search(r"\b20\d\d\b", gpu.source), "the source names the year of its data sheet"
    lanes = gpu.peak_flop_per_s["fp32"] / (2 * gpu.sm_count * gpu.clock_hz)
    assert 64 / 1.02 <= lanes <= 192 * 1.02, "an SM has 64 to 192 lanes of fp32, each with a multiply-add per cycle"
    assert 1e11 < gpu.bandwidth_bytes_per_s < 3e13, "the memory's bandwidth is in bytes per second"
    assert 7e9 < gpu.memory_bytes < 1.1e12, "the memory is in bytes"
    assert set(gpu.peak_flop_per_s) <= {"fp32", "tf32", "fp16", "bf16"}
    assert ("tf32" in gpu.peak_flop_per_s) == (gpu.generation not in WITHOUT_TF32), "tf32, or listed without"


def test_dense_rates_are_meant_not_sparse_ones() -> None:
    assert builtin_catalogue().find("a100").peak_flop_per_s["fp16"] == 312e12
    assert builtin_catalogue().find("h100").peak_flop_per_s["bf16"] == pytest.approx(989.4e12)


def test_a_slice_of_a_gpu_does_not_pass_for_a_gpu() -> None:
    assert builtin_catalogue().find("a100_1g.5gb").parent_gpu == "a100-sxm4-40gb"
    with pytest.raises(DeviceError, match="Did you mean 'a100-sxm4-40gb'"):
        builtin_catalogue().find("a100_5g.30gb")


def test_a_profile_that_several_gpus_have_is_nobody_s() -> None:
    with pytest.raises(DeviceError):
        builtin_catalogue().find("1g.10gb")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a100l", "a100-sxm4-80gb"),
        ("v100l", "v100-sxm2-32gb"),
        ("a100_80g", "a100-sxm4-80gb"),
        ("v100-32g", "v100-sxm2-32gb"),
        ("a100l.2g.20gb", "a100-sxm4-80gb:2g.20gb"),
        ("nvidia_a100-sxm4-80gb_mig_1g.10gb", "a100-sxm4-80gb:1g.10gb"),
        ("nvidia_h100_nvl_1g.12gb", "h100-nvl-94gb:1g.12gb"),
        ("nvidia_gh200_480gb_3g.48gb", "gh200-96gb:3g.48gb"),
        ("nvidia_h20_1g.12gb", "h20-sxm5-96gb:1g.12gb"),
        ("nvidia_b200_1g.23gb", "b200-sxm6-180gb:1g.23gb"),
    ],
)
def test_names_that_sites_write_are_known(name: str, expected: str) -> None:
    assert builtin_catalogue().find(name).name == expected


def test_a_profile_alone_is_refused_with_the_gpus_that_have_it() -> None:
    with pytest.raises(DeviceError, match=r"Put the GPU before the profile: .*a100-sxm4-80gb:1g.10gb, .*h100"):
        builtin_catalogue().find("1g.10gb")


def test_a_site_names_gpus_and_their_slices_and_says_what_an_alias_means() -> None:
    catalogue = builtin_catalogue().with_aliases({"big": "a100-80gb", "a100": "big", "h100": "h100 pcie", "t4": "v100"})
    assert catalogue.find("big:3g.40gb").name == "a100-sxm4-80gb:3g.40gb"
    assert catalogue.find("h100_1g.10gb").name == "h100-pcie-80gb:1g.10gb"
    assert catalogue.find("a100").name == "a100-sxm4-40gb", "what stands for no row is left alone"
    assert catalogue.find("t4").name == "t4", "a row keeps its own name"
    again = builtin_catalogue().with_aliases({"a100": "a100-80gb"})
    assert again.find("a100_1g.10gb").name == "a100-sxm4-80gb:1g.10gb"
    assert again.find("a100_1g.5gb").name == "a100-sxm4-40gb:1g.5gb"
    assert builtin_catalogue().find("a100").name == "a100-sxm4-40gb"


@pytest.mark.parametrize("name", ["rtx5000", "rtx 4000"])
def test_a_name_that_two_generations_bear_is_refused(name: str) -> None:
    """Turing's is called Quadro, Ada's ends in Ada."""
    with pytest.raises(DeviceError):
        builtin_catalogue().find(name)


@pytest.mark.parametrize(("name", "offer"), [("v1000", "v100"), ("rtx-390", "rtx-3090"), ("", "gpusage gpus")])
def test_an_unknown_name_is_refused_with_the_nearest(name: str, offer: str) -> None:
    with pytest.raises(DeviceError, match=re.escape(offer)) as caught:
        builtin_catalogue().find(name)
    assert "\n" not in str(caught.value)


def test_generations_are_one_gpu_each_and_oldest_first() -> None:
    names = [gpu.generation for gpu in builtin_catalogue().generations()]
    assert names[:4] == ["kepler", "pascal", "volta", "turing"]
    assert names.index("volta") < names.index("hopper") < names.index("blackwell")
    assert len(names) == len(set(names))


def test_a_later_row_replaces_an_earlier_one_of_the_same_name() -> None:
    mine = replace(builtin_catalogue().find("v100"), memory_bytes=1)
    catalogue = Catalogue([*describe_gpus(), mine])
    assert catalogue.find("v100") is mine
    assert len(catalogue) == len(describe_gpus())


def test_an_alias_never_hides_a_name() -> None:
    greedy = replace(builtin_catalogue().find("v100"), name="mine", aliases=("t4",))
    assert Catalogue([*describe_gpus(), greedy]).find("t4").name == "t4"


def test_a_sites_network_is_that_of_a_board_and_its_slices() -> None:
    catalogue = builtin_catalogue().with_networks({"a100": 50, "no such": 1, "t4": 0})
    assert catalogue.find("a100").network_bytes_per_s == 50e9 / 8
    assert catalogue.find("a100-sxm4-40gb:3g.20gb").network_bytes_per_s == 50e9 / 8
    assert catalogue.find("h100").network_bytes_per_s is None
    assert catalogue.find("t4").network_bytes_per_s is None
    assert builtin_catalogue().find("a100").network_bytes_per_s is None
