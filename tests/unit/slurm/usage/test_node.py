"""The sampler of one job on its node, and its post into the node's comment."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import gpusage_slurm
from gpusage.node.sampler.usage_reports import RETENTION_S, UsageSpool, parse_usage_reports
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Allocation, Usage
from gpusage_slurm import scontrol
from gpusage_slurm.cluster.nodes import parse_node
from gpusage_slurm.usage.node import LIMIT_AGE_S, job_of, post_limit, post_usage, post_with_retries
from mps import control_in, driver_in
from nvml import built_nvml
from records import USAGE
from waiting import LIMIT_S, wait_until

PROLOG = Path(gpusage_slurm.__file__).parent / "node" / "prolog.sh"
PROGRAM = [sys.executable, "-m", "gpusage_slurm.usage.node"]
# The sampler looks at every process of this machine: other tests beside this one have a job 7.
JOB = {"SLURM_JOB_ID": f"9{os.getpid():07}", "SLURM_JOB_UID": str(os.geteuid()), "CUDA_VISIBLE_DEVICES": "0"}
SHARE = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40"}

ENDED = replace(
    USAGE, number="", user="", job_name="", started_at_s=time.time() - 60, ended_at_s=float(int(time.time()))
)
ENVIRONMENT = {
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_UID": "1000",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "SLURM_JOB_CPUS_PER_NODE": "4(x2)",
}


def granted_on_node(folder: Path, share: dict[str, str], *options: str) -> Allocation:
    """Return what the usage of a job with *share* says of it; *options* are those of `driver_in`."""
    (folder / "facts").write_text("utilization 40\n")
    environment = {
        "PATH": os.environ["PATH"],
        "LD_LIBRARY_PATH": str(built_nvml(folder)),
        "NVML_STANDIN": str(folder / "facts"),
        "GPUSAGE_MPS_FOLDER": str(folder / "mps"),
        "GPUSAGE_MPS_CONTROL": str(control_in(folder)),
        "GPUSAGE_CUDA_LIBRARY": str(driver_in(folder, *options)),
        "GPUSAGE_USAGE_FOLDER": str(folder / "usage"),
        **JOB,
        **share,
    }
    subprocess.run(
        [PROLOG], check=True, env=environment, timeout=LIMIT_S
    )  # without a node's name it begins no sampling
    with subprocess.Popen(PROGRAM, env={**environment, "SLURMD_NODENAME": "n1"}) as program:
        try:
            wait_until(lambda: any(folder.glob("usage/*.json")))
        finally:
            program.kill()
    (entry,) = folder.glob("usage/*.json")
    return msgspec.json.decode(entry.read_bytes(), type=Usage).granted


def test_what_a_client_sees_of_a_share_is_in_the_jobs_usage(tmp_path: Path) -> None:
    assert granted_on_node(tmp_path, SHARE) == Allocation(division="percentage", share_percent=40, thread_percent=40)


def test_a_percentage_that_no_daemon_holds_is_found_out(tmp_path: Path) -> None:
    granted = granted_on_node(tmp_path, SHARE, "-DIGNORES_DAEMONS")
    assert granted == Allocation(share_percent=40, trouble="no MPS daemon holds the client: it sees all SMs")


def test_a_job_with_a_gpu_of_its_own_has_all_of_it(tmp_path: Path) -> None:
    assert granted_on_node(tmp_path, {}) == Allocation()


@pytest.fixture
def folder(tmp_path: Path) -> UsageSpool:
    return UsageSpool(tmp_path / "usage", "c.n1.")


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return a node's comment, which `scontrol` reads and writes, unless it says that it is away."""
    node = {"Comment": "rack 7"}

    def run(*words: str) -> str:
        if node.get("away"):
            message = "slurmctld is away"
            raise RequestError(message)
        if words[1] == "update":
            node["Comment"] = words[-1].partition("=")[2]
        return f"NodeName=n1 Arch=x86_64\n   Comment={node['Comment']}\n   Extra=x\n"

    monkeypatch.setattr(scontrol, "run", run)
    return node


def test_what_ended_is_posted_once(folder: UsageSpool, node: dict[str, str]) -> None:
    folder.save(ENDED)
    post_usage(folder, "n1")
    assert node["Comment"].startswith("rack 7 gpusage:")
    assert [usage.job_id for usage in parse_usage_reports(node["Comment"])] == [ENDED.job_id]
    assert list(folder.finished_runs()) == []


def test_a_node_says_once_an_hour_what_limits_memory_there(
    folder: UsageSpool, node: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a control daemon of MPS and no driver; its site's words and its usage stay in front."""
    monkeypatch.setenv("GPUSAGE_MPS_CONTROL", str(control_in(tmp_path)))
    monkeypatch.setenv("GPUSAGE_CGROUP_FOLDER", str(tmp_path))
    folder.save(ENDED)
    post_limit(folder, "n1")
    assert node["Comment"].startswith("rack 7 gpusage:")
    assert node["Comment"].endswith(f" gpusage-limit:cap(cgroup~v2~is~not~at~{tmp_path})")
    seen = parse_node({"name": "n1", "comment": node["Comment"]})
    assert (seen.limited_by, seen.why_no_wall) == ("cap", f"cgroup v2 is not at {tmp_path}")

    node["Comment"] = "of the site's"
    post_limit(folder, "n1")
    assert node["Comment"] == "of the site's"
    an_hour_ago_s = time.time() - LIMIT_AGE_S - 1
    os.utime(folder.path / "c.n1.limit", (an_hour_ago_s, an_hour_ago_s))
    post_limit(folder, "n1")
    assert node["Comment"].startswith("of the site's gpusage-limit:cap(")


def test_a_node_whose_slurmctld_is_away_does_not_ask_for_each_job(folder: UsageSpool, node: dict[str, str]) -> None:
    node["away"] = "yes"
    post_limit(folder, "n1")
    node.pop("away")
    post_limit(folder, "n1")
    assert node["Comment"] == "rack 7"


def test_another_word_takes_the_place_of_the_earlier_one_which_usage_leaves_alone(
    folder: UsageSpool, node: dict[str, str]
) -> None:
    node["Comment"] = "gpusage-limit:cap(no~cgroup~v2) rack 7, gpusage-limits: see wiki"
    for _ in range(2):
        post_usage(folder, "n1", "gpusage-limit:wall")
        assert node["Comment"] == "rack 7, gpusage-limits: see wiki gpusage-limit:wall"
    for _ in range(2):
        folder.save(ENDED)
        post_usage(folder, "n1")
        assert node["Comment"].startswith("rack 7, gpusage-limits: see wiki gpusage:")
        assert node["Comment"].endswith(" gpusage-limit:wall")
        assert node["Comment"].count("  ") == 0
    assert parse_node({"comment": node["Comment"]}).limited_by == "wall"


def test_what_could_not_be_posted_goes_with_the_next(folder: UsageSpool, node: dict[str, str]) -> None:
    node["away"] = "yes"
    folder.save(ENDED)
    assert not post_with_retries(folder, "n1", (0.0, 0.0))
    node.pop("away")
    folder.save(replace(ENDED, job_id="8"))
    assert post_with_retries(folder, "n1", (0.0,))
    assert {usage.job_id for usage in parse_usage_reports(node["Comment"])} == {"7", "8"}


def test_a_job_that_still_runs_stays(folder: UsageSpool, node: dict[str, str]) -> None:
    folder.save(ENDED)
    with folder.sampled(ENDED.job_id, ["0"]):
        post_usage(folder, "n1")
    assert node["Comment"] == "rack 7"
    post_usage(folder, "n1")
    assert node["Comment"] != "rack 7"


def test_a_job_whose_sampler_was_killed_is_posted_and_nobody_s_partner(folder: UsageSpool) -> None:
    """Each killed sampler made a part of every later share count as freed."""
    place = f"UsageSpool(Path({str(folder.path)!r}), {folder.prefix!r})"
    sampled = f"with {place}.sampled('7', ['0']): print('up', flush=True); sys.stdin.read()"
    script = f"import sys; from pathlib import Path; from {UsageSpool.__module__} import UsageSpool\n{sampled}"
    folder.save(ENDED)
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sampler:
        assert sampler.stdout is not None
        assert sampler.stdout.readline() == b"up\n"
        assert (list(folder.finished_runs()), folder.count_partners("8", ["0"])) == ([], 1)
        sampler.kill()
    assert folder.count_partners("8", ["0"]) == 0
    assert [usage.job_id for _, usage in folder.finished_runs()] == [ENDED.job_id]
    assert list(folder.path.glob("*.device")) == []


def test_a_sampler_that_ends_late_leaves_the_file_of_the_requeued_job_s_next(folder: UsageSpool) -> None:
    with ExitStack() as late, folder.sampled("7", ["0"]):
        late.enter_context(folder.sampled("7", ["0"]))
        assert (folder.count_partners("7", ["0"]), folder.count_partners("8", ["0"])) == (0, 1)
        late.close()
        assert (folder.count_partners("7", ["0"]), folder.count_partners("8", ["0"])) == (0, 1)


def test_a_requeued_job_keeps_its_first_run(folder: UsageSpool) -> None:
    folder.save(ENDED)
    folder.save(replace(ENDED, started_at_s=ENDED.started_at_s + 30))
    assert len(list(folder.finished_runs())) == 2


def test_what_is_too_old_or_no_usage_is_removed(folder: UsageSpool) -> None:
    folder.save(replace(ENDED, ended_at_s=time.time() - RETENTION_S - 1))
    (folder.path / "c.n1.9@1.json").write_text("{}")
    assert list(folder.finished_runs()) == []
    assert list(folder.path.glob("*.json")) == []


def test_other_nodes_of_the_machine_are_left_alone(folder: UsageSpool) -> None:
    other = UsageSpool(folder.path, "c.n2.")
    other.save(ENDED)
    assert list(folder.finished_runs()) == []
    with other.sampled("7", ["0"]), other.sampled("9", ["1", "2"]):
        assert folder.count_partners("8", ["0"]) == 0
        assert [other.count_partners("8", devices) for devices in (["0"], ["3", "0"], ["0", "1", "2"])] == [1, 1, 2]
        assert other.count_partners("7", ["0"]) == 0


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """Nobody may have us write where a link of theirs leads."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match=r"own folder|exists"):
        UsageSpool(tmp_path / "link", "")
    if os.geteuid() == 0:
        os.chown(tmp_path / "real", 12345, 12345)
        with pytest.raises(PermissionError):
            UsageSpool(tmp_path / "real", "")


def test_a_job_is_what_the_prolog_says() -> None:
    job = job_of(ENVIRONMENT)
    assert job is not None
    assert (job.job_id, job.devices, job.cpus, job.identity.uid) == ("12", ("0", "1"), 4, 1000)
    assert (job.identity.variable, job.identity.cgroups) == ("SLURM_JOB_ID=12", ("job_12",))
    newer = job_of({**ENVIRONMENT, "SLURM_JOB_SLUID": "sEHDM8KXBQ0B00"})  # of 26.05
    assert newer is not None
    assert newer.identity.cgroups == ("job_12", "sEHDM8KXBQ0B00")


@pytest.mark.parametrize(
    "change",
    [{"CUDA_VISIBLE_DEVICES": ""}, {"SLURM_JOB_ID": "../x"}, {"SLURM_JOB_UID": ""}, {"CUDA_VISIBLE_DEVICES": "0;rm"}],
)
def test_a_job_without_a_gpu_is_not_sampled(change: dict[str, str]) -> None:
    assert job_of(ENVIRONMENT | change) is None


def test_the_number_that_slurm_gives_counts_where_cuda_has_none() -> None:
    job = job_of(ENVIRONMENT | {"CUDA_VISIBLE_DEVICES": "", "SLURM_JOB_GPUS": "3"})
    assert job is not None
    assert job.devices == ("3",)
