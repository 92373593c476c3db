"""What `sacct` prints -> every run of a job with a GPU, with its part of a GPU and its decision's number."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Allocation, Cluster, GpuPool, Usage
from gpusage_slurm import scontrol
from gpusage_slurm.usage import accounting

MARK = "site; gpusage 69215f4a0c3e REWRITE gres/gpu:1 -> gres/mps:40, prefer v100 | why"
V100 = GpuPool(gpu="v100-sxm2-16gb", site_type="v100", gpu_count=2, free_gpu_count=2, mps_per_gpu=200, shards_per_gpu=8)
ROW = {
    "JobID": "12_3",
    "User": "ada",
    "UID": "1000",
    "Account": "physics",
    "Partition": "gpu",
    "State": "CANCELLED by 1000",
    "ExitCode": "0:15",
    "Start": "2026-10-01T10:00:00",
    "End": "2026-10-01T12:00:00",
    "JobName": "x|train\t7",
    "AllocTRES": "billing=4,cpu=4,gres/gpu:v100=2,gres/gpu=2,mem=8G,node=1",
    "AdminComment": "",
}
BEGIN_S = time.mktime((2026, 10, 1, 10, 0, 0, 0, 0, -1))
RUN = Usage(
    number="",
    manager="slurm",
    job_id="12_3",
    user="ada",
    user_id="1000",
    account="physics",
    partition="gpu",
    job_name="x|train 7",
    gpu="v100-sxm2-16gb",
    gpu_count=2,
    outcome="cancelled",
    started_at_s=BEGIN_S,
    ended_at_s=BEGIN_S + 7200,
)


@pytest.fixture
def books(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Return the rows that `sacct` prints."""
    rows: list[dict[str, str]] = []

    def run(*words: str, deadline_s: float = 0.0) -> str:
        assert words[0] == "sacct"
        assert deadline_s == accounting.DEADLINE_S
        (between,) = (word.partition("=")[2] for word in words if word.startswith("--delimiter="))
        return "\n".join(between.join(row.values()) for row in rows) + "\n"

    monkeypatch.setattr(scontrol, "run", run)
    monkeypatch.setattr(scontrol, "configuration", lambda: {"accountingstoragetype": "accounting_storage/slurmdbd"})
    monkeypatch.setattr(scontrol, "partitions", lambda: ())
    monkeypatch.setattr(accounting, "read_cluster", lambda *_: Cluster(manager="slurm", version="", pools=(V100,)))
    return rows


def read(rows: list[dict[str, str]], *added: dict[str, str], until_s: float = BEGIN_S + 9e3) -> tuple[Usage, ...]:
    rows += [ROW | each for each in added]
    return accounting.read_accounting(BEGIN_S, until_s, builtin_catalogue())


def test_a_run_has_whose_it_was_and_its_gpus_and_nothing_that_only_a_node_sees(books: list[dict[str, str]]) -> None:
    assert read(books, {}) == (RUN,)
    assert RUN.gpu_utilization is None
    assert RUN.sampled_s == 0.0


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        pytest.param({"AllocTRES": "cpu=4,gres/gpu=4"}, {"gpu": "", "gpu_count": 4}, id="no types in the books"),
        pytest.param({"AllocTRES": "gres/gpu:new=1,gres/gpu=1"}, {"gpu": "new", "gpu_count": 1}, id="a strange type"),
        pytest.param(
            {"AllocTRES": "gres/gpu:v100=1,gres/gpu:t4=3,gres/gpu=4"},
            {"gpu": "", "gpu_count": 4},
            id="nodes of two types",
        ),
        pytest.param(
            {"AllocTRES": "gres/gpu:v100=1,gres/gpu=4"}, {"gpu": "", "gpu_count": 4}, id="a type that is not counted"
        ),
        pytest.param(
            {"AllocTRES": "gres/mps:v100=50,gres/mps=50"},
            {"gpu_count": 1, "granted": Allocation(division="percentage", share_percent=25)},
            id="a share, by the units of its type",
        ),
        pytest.param(
            {"AllocTRES": "cpu=4", "AdminComment": MARK},
            {
                "number": "69215f4a0c3e",
                "gpu": "",
                "gpu_count": 1,
                "granted": Allocation(division="percentage", share_percent=20),
            },
            id="a share that the books do not count, by its mark",
        ),
        pytest.param(
            {"AllocTRES": "gres/shard:v100=2,gres/shard=2"},
            {"gpu_count": 1, "granted": Allocation(share_percent=25)},
            id="shards, by their number, and nothing holds the job to them",
        ),
        pytest.param({"State": "COMPLETED", "ExitCode": "0:0"}, {"outcome": "completed"}, id="completed"),
        pytest.param({"State": "FAILED", "ExitCode": "0:9"}, {"outcome": "interrupted"}, id="killed"),
        pytest.param({"State": "REQUEUED"}, {"outcome": "unknown"}, id="it ran again"),
    ],
)
def test_what_slurmdbd_writes_is_read(
    row: dict[str, str], expected: dict[str, object], books: list[dict[str, str]]
) -> None:
    assert read(books, row) == (replace(RUN, **expected),)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "row",
    [
        pytest.param({"AllocTRES": "billing=4,cpu=4"}, id="no GPU"),
        pytest.param({"Start": "Unknown", "End": "Unknown"}, id="never ran"),
        pytest.param({"End": "Unknown"}, id="runs"),
        pytest.param({"End": "2026-10-01T09:59:59"}, id="ended before"),
        pytest.param({"JobName": "x\n7|7|ada"}, id="a name that passes for no other job"),
    ],
)
def test_what_is_no_run_of_that_time_is_left_out(row: dict[str, str], books: list[dict[str, str]]) -> None:
    assert read(books, row) == ()


def test_a_run_that_ended_after_that_time_is_left_out(books: list[dict[str, str]]) -> None:
    assert read(books, {}, until_s=BEGIN_S + 60) == ()


@pytest.mark.usefixtures("books")
def test_without_slurmdbd_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scontrol, "configuration", lambda: {"accountingstoragetype": "accounting_storage/none"})
    with pytest.raises(RequestError, match="must be accounting_storage/slurmdbd; got 'accounting_storage/none'"):
        accounting.read_accounting(0.0, 1.0, builtin_catalogue())
