"""Which MIG layout serves jobs: what a GPU can be cut into, and what the command makes of a trace."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpusage.cli import main
from gpusage.devices.catalogue import builtin_catalogue
from gpusage_hooks.types import Cluster, GpuPool
from gpusage_planning.simulator.fleet import fleet_of
from gpusage_planning.slices.layouts import WHOLE, Board, boards_of

SITE = """
[[pools]]
site_type = "a100"
gpu = "a100-sxm4-80gb"
gpu_count = 2
gpus_per_node = 2
"""
SMALL = f"{Path(__file__).parents[4]}/examples/models/mobilenet_v3_large.onnx"


def board(*pools: tuple[str, int]) -> Board:
    rows = tuple(
        GpuPool(gpu=builtin_catalogue().find(name).name, site_type=name, gpu_count=count, free_gpu_count=0)
        for name, count in pools
    )
    cluster = Cluster(manager="test", version="", pools=rows)
    (one,) = boards_of(fleet_of(cluster, builtin_catalogue()), builtin_catalogue())
    return one


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a30", {("1g.6gb",) * 4, ("2g.12gb", "1g.6gb", "1g.6gb"), ("2g.12gb", "2g.12gb")}),
        ("rtx-pro-6000", {("1g.24gb",) * 4, ("2g.48gb", "1g.24gb", "1g.24gb"), ("2g.48gb", "2g.48gb")}),
        ("t4", set()),
    ],
)
def test_a_gpu_is_cut_until_nothing_more_fits(name: str, expected: set[tuple[str, ...]]) -> None:
    first, *others = board((name, 4)).divisions
    assert first == WHOLE
    assert {*others} == expected


def test_the_placements_are_nvidias() -> None:
    """Of 4g only one starts, at 0; 3g at 0 and 4; 2g at 0, 2 and 4, so that three of them leave room for a 1g."""
    cuts = {*board(("h100", 1)).divisions}
    assert ("4g.40gb", "3g.40gb") in cuts
    assert ("3g.40gb", "3g.40gb") in cuts
    assert ("2g.20gb", "2g.20gb", "2g.20gb", "1g.10gb") in cuts
    assert ("1g.10gb",) * 7 in cuts
    assert ("1g.20gb",) * 4 in cuts
    most = {"1g.10gb": 7, "1g.20gb": 4, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1}
    assert {profile: max(cut.count(profile) for cut in cuts) for profile in most} == most


def test_gpus_that_are_cut_today_are_put_together_again() -> None:
    """Seven 1g are one GPU by its SMs; so are two 3g, by its memory."""
    one = board(("h100", 2), ("h100_1g.10gb", 14), ("h100_3g.40gb", 2))
    assert (one.whole.name, one.whole.gpu_count) == ("h100", 5)
    assert board(("h100_1g.10gb", 14)).whole.name == "h100"
    types = {each.name: each.gpu_count for each in one.types({("h100", WHOLE): 1, ("h100", ("1g.10gb",) * 7): 4})}
    assert Counter(types) == Counter({"h100": 1, "h100_1g.10gb": 28})


@pytest.mark.parametrize(
    ("types", "name"),
    [
        ([("h100", 2)], "2g.20gb"),
        ([("h100_3g.40gb", 2)], "h100_2g.20gb"),
        ([("h100", 2), ("nvidia_h100_80gb_hbm3_3g.40gb", 2)], "nvidia_h100_80gb_hbm3_2g.20gb"),
        ([("nvidia_h100_80gb_hbm3", 2)], "nvidia_h100_80gb_hbm3_2g.20gb"),
    ],
)
def test_a_new_slice_is_called_as_slurm_finds_it(types: list[tuple[str, int]], name: str) -> None:
    """Slurm takes a type only where it is part of NVML's name, ``nvidia_h100_80gb_hbm3_2g.20gb``."""
    assert board(*types).gres_type("2g.20gb") == name


def run_plan(folder: Path, jobs: str, site: str = SITE, *words: str) -> str:
    """Return what `gpusage plan slices` prints of *jobs* on the cluster *site*."""
    (folder / "jobs.csv").write_text(f"job_id,submit_time,duration,gpu_num,gpu_type,model\n{jobs}")
    (folder / "site.toml").write_text(site)
    files = ["--jobs", str(folder / "jobs.csv"), "--cluster", str(folder / "site.toml")]
    result = CliRunner().invoke(main, ["plan", "slices", *files, *words])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_small_jobs_get_slices_and_what_fits_none_a_whole_gpu(tmp_path: Path) -> None:
    """Fifteen small jobs at once on two GPUs: today thirteen wait, of which slices let most begin at once."""
    small = "".join(f'{number},0,3600,1,a100,"{SMALL},batch=1,mode=infer"\n' for number in range(15))
    document = json.loads(run_plan(tmp_path, f"{small}large,0,60,1,a100,\n", SITE, "--json"))
    waits = document["waits"]
    assert waits["today's"] == waits["whole GPUs"]
    assert waits["this layout"]["mean_wait_s"] < 0.5 * waits["whole GPUs"]["mean_wait_s"]
    assert waits["this layout"]["fit_nothing"] == 0
    (node,) = document["nodes"]
    assert [] in node["divisions"], "the job without a model keeps a whole GPU"


def test_the_answer_is_a_configuration_of_mig_parted_and_lines_of_slurm(tmp_path: Path) -> None:
    small = "".join(f'{number},0,3600,1,a100,"{SMALL},batch=1,mode=infer"\n' for number in range(30))
    shown = run_plan(tmp_path, small)
    assert "\nversion: v1\nmig-configs:\n  a100-1:  # 1 node\n    - devices: [0, 1]\n      mig-enabled: true\n" in shown
    assert '      mig-devices:\n        "1g.10gb": ' in shown
    (gres,) = re.findall(r"^# a100-1: Gres=(\S+) Features=a100-sxm4-80gb$", shown, re.MULTILINE)
    assert sum(int(each.rpartition(":")[2]) for each in gres.split(",")) == 14


def test_a_job_that_nothing_fits_waits_a_day(tmp_path: Path) -> None:
    """Two slices of an A100 hold no job that had a whole one, and no job on two GPUs."""
    site = SITE.replace("gpu_count = 2\ngpus_per_node = 2", "gpu_count = 1") + (
        '[[pools]]\nsite_type = "a100_3g.40gb"\ngpu = "a100-sxm4-80gb:3g.40gb"\ngpu_count = 2\n'
    )
    document = json.loads(
        run_plan(tmp_path, "a,0,60,1,a100_3g.40gb,\nb,100,60,1,a100,\n", site, "--json", "--tries", "1")
    )
    assert document["waits"]["today's"] == {"mean_wait_s": 0.0, "fit_nothing": 0}
    site = site.replace("gpu_count = 1", "gpu_count = 3")
    both = json.loads(run_plan(tmp_path, "a,0,60,3,a100,\nb,0,60,1,a100_3g.40gb,\n", site, "--json"))
    assert both["waits"]["today's"]["fit_nothing"] == 0


def test_no_layout_leaves_out_jobs_to_shorten_the_queue(tmp_path: Path) -> None:
    """Thirty jobs of a day each on a whole GPU: cut into slices, none of them would fit, and each wait one day."""
    jobs = "".join(f"{number},0,86400,1,a100,\n" for number in range(30))
    small = "".join(f's{number},0,86400,1,a100,"{SMALL},batch=1,mode=infer"\n' for number in range(10))
    document = json.loads(run_plan(tmp_path, jobs + small, SITE, "--json"))
    assert document["waits"]["this layout"]["fit_nothing"] == 0


def test_both_files_of_a_plan_are_needed() -> None:
    result = CliRunner().invoke(main, ["plan", "--jobs", "x"])
    assert result.exit_code == 2
    assert "Options --jobs and --cluster must be given" in result.output
