"""Limits on GPUs that do not count shares, and for whom they hold."""

from __future__ import annotations

import getpass
import os

import pytest

from gpusage_hooks.types import GpuPool
from gpusage_slurm.cluster.limits import _UIDS, Books, Limit, limits_hold, unseen_limits

POOL = GpuPool(gpu="v100", site_type="v100", gpu_count=2, free_gpu_count=2, mps_per_gpu=100, partitions=("p",))
SETTINGS = {
    "accountingstoragetype": "accounting_storage/slurmdbd",
    "accountingstorageenforce": "associations,limits",
    "accountingstoragetres": "cpu,gres/gpu,gres/mps",
}
BILLED = {"PartitionName": "p", "TRESBillingWeights": "CPU=0,GRES/gpu=50,GRES/mps=0.5"}
UNBILLED = {"PartitionName": "p"}
ROOT = {"Account": "root", "User": "", "ParentName": ""}
LAB = {"Account": "lab", "User": "", "ParentName": "root"}
GROUP = {"Account": "group", "User": "", "ParentName": "lab"}
MEMBER = {"Account": "group", "User": getpass.getuser(), "ParentName": ""}
BILLS = "TRESBillingWeights=GRES/gpu=100,GRES/mps=1 in partition p"


def limits(
    *associations: dict[str, str], qos: dict[str, str] | None = None, partition: dict[str, str] = BILLED
) -> dict[str, Limit]:
    """Return the limits that do not count shares, by their scopes."""
    books = Books(qos=({"Name": "normal"} | (qos or {}),), associations=(ROOT, *associations))
    return {limit.scope: limit for limit in unseen_limits(books, SETTINGS, (partition,), (POOL,))}


@pytest.mark.parametrize(
    ("setting", "billing"),
    [
        ({"MaxTRESPU": "cpu=9,gres/gpu=2"}, "MaxTRESPU=billing=100"),
        ({"MaxTRESPA": "gres/gpu:v100=4"}, "MaxTRESPA=billing=200"),
        ({"GrpTRES": "gres/gpu=8,gres/mps=100"}, "GrpTRES=billing=400"),  # two limits, which add
        ({"GrpTRESMins": "gres/gpu=60"}, "GrpTRESMins=billing=3000"),
        ({"GrpTRESRunMins": "gres/gpu=60"}, "GrpTRESRunMins=billing=3000"),
        ({"MaxTRESRunMinsPU": "gres/gpu=60"}, "MaxTRESRunMinsPU=billing=3000"),
        ({"MaxTRESMins": "gres/gpu=600"}, "MaxTRESMins=billing=30000"),
        ({"MaxTRESPU": "gres/gpu=2", "GrpTRES": "billing=9"}, "MaxTRESPU=billing=100"),  # another limit than that
        ({"MaxTRESPU": "gres/gpu=2,billing=101"}, "MaxTRESPU=billing=100"),  # more than two GPUs
        ({"GrpTRESMins": "gres/gpu=0"}, ""),  # no GPU at all
        ({"MaxTRES": "gres/gpu=0"}, ""),
    ],
)
def test_a_limit_of_a_qos_does_not_count_shares(setting: dict[str, str], billing: str) -> None:
    (limit,) = limits(qos=setting).values()
    assert limit.scope == "qos=normal"
    assert limit.reason.startswith("quality of service normal has a limit that does not count shares (")
    assert limit.remedies == ((f"sacctmgr modify qos normal set {billing}",) if billing else ())


@pytest.mark.parametrize(
    "setting",
    [
        {"MaxTRESPU": "gres/gpu=2,billing=100"},
        {"MaxTRESPU": "gres/gpu=2,billing=99"},  # less than two GPUs
        {"GrpTRESMins": "billing=100"},
        {"MaxTRES": "gres/gpu=1", "MaxTRESPerNode": "gres/gpu=4"},  # a job with one GPU, or a share, meets them
        {"GrpTRES": "cpu=9,gres/mps=50,gres/gpumem=4,license/x=2", "MaxTRESPU": "gres/gpu=-1"},
        {},
    ],
)
def test_a_limit_on_billing_counts_both(setting: dict[str, str]) -> None:
    assert limits(qos=setting) == {}


def test_a_limit_on_billing_counts_no_share_where_shares_are_not_billed() -> None:
    for both in ({"MaxTRESPU": "gres/gpu=2,billing=100"}, {"MaxTRESPU": "gres/gpu=2"}):
        assert limits(qos=both, partition=UNBILLED)["qos=normal"].remedies == (BILLS,)


@pytest.mark.parametrize(
    ("weights", "flags", "words"),
    [
        ("CPU=1.0,GRES/gpu=50,GRES/mps=0.5", "", "PriorityFlags=MAX_TRES"),
        ("Mem=0.25G,GRES/gpu=50,GRES/mps=0.5", "CALCULATE_RUNNING", "PriorityFlags=MAX_TRES"),
        (
            "CPU=1.0,GRES/gpu=50,GRES/mps=0.5",
            "MAX_TRES,CALCULATE_RUNNING",
            "MaxTRESPU=billing=100 in a QOS for GPUs alone",
        ),
        ("CPU=0,Mem=0.0G,GRES/gpu=50,GRES/mps=0.5", "", "set MaxTRESPU=billing=100"),
        ("GRES/gpu:v100=20,GRES/gpu:h100=80,GRES/mps=0.8", "", "the same weight of a GPU"),
    ],
)
def test_a_number_for_billing_is_told_only_where_it_limits_nothing_else(weights: str, flags: str, words: str) -> None:
    books = Books(qos=({"Name": "normal", "MaxTRESPU": "gres/gpu=2"},))
    partition = {"PartitionName": "p", "TRESBillingWeights": weights}
    (limit,) = unseen_limits(books, SETTINGS | {"priorityflags": flags}, (partition,), (POOL,))
    assert len(limit.remedies) == 1
    assert words in limit.remedies[0]


@pytest.mark.parametrize("weights", ["", "CPU=1.0"])
def test_no_remedy_limits_the_cpus_of_another_partition(weights: str) -> None:
    """Without weights, Slurm bills CPUs."""
    books = Books(qos=({"Name": "normal", "MaxTRESPU": "gres/gpu=2"},))
    other = {"PartitionName": "cpu", "TRESBillingWeights": weights}
    (limit,) = unseen_limits(books, SETTINGS, (BILLED, other), (POOL,))
    assert limit.remedies == ("MaxTRESPU=billing=100 in a QOS for GPUs alone: it also limits CPUs in partition cpu",)


def test_the_limit_of_an_account_holds_for_those_below_and_a_users_for_that_user_alone() -> None:
    limited = {"GrpTRES": "gres/gpu=4"}
    above = limits(LAB | limited, GROUP, MEMBER | limited)
    assert [*above] == ["account=lab", "account=group"]
    reason = "account lab has a limit that does not count shares (GrpTRES=gres/gpu=4)"
    assert [limit.reason for limit in above.values()] == [reason, reason]
    assert [limit.remedies for limit in above.values()] == [
        ("sacctmgr modify account lab set GrpTRES=billing=200",),
        (),
    ]

    (own,) = limits(LAB, GROUP, MEMBER | limited).values()
    assert own.scope == f"account=group user={os.getuid()}"
    whose = f"sacctmgr modify user {getpass.getuser()} where account=group"
    assert own.remedies == (f"{whose} set GrpTRES=billing=200",)
    assert [*limits(LAB | {"ParentName": "group"}, GROUP)] == []  # no line of parents is endless


def test_a_user_who_left_takes_shares_from_nobody_and_one_whom_the_host_learns_late_is_found() -> None:
    """Slurmdbd keeps both; slurmctld would take no job of the first."""
    limited = {"GrpTRES": "gres/gpu=4"}
    assert limits(LAB, GROUP, MEMBER | limited | {"User": "nobody of this host"}) == {}
    _UIDS[getpass.getuser()] = (None, float("-inf"))
    assert [*limits(LAB, GROUP, MEMBER | limited)] == [f"account=group user={os.getuid()}"]


def test_an_association_with_one_qos_alone_gives_it_to_jobs_that_name_none() -> None:
    limited = {"Name": "short", "MaxTRESPU": "gres/gpu=2"}
    assert [*limits(LAB | {"QOS": "short"}, qos=limited)] == ["qos=short", "account=lab"]
    assert [*limits(LAB | {"QOS": "short,normal"}, qos=limited)] == ["qos=short"]
    assert [*limits(LAB | {"QOS": "short", "DefaultQOS": "short"}, qos=limited)] == ["qos=short"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (SETTINGS, True),
        (SETTINGS | {"accountingstorageenforce": "associations,safe,qos"}, True),
        (SETTINGS | {"accountingstorageenforce": "associations,qos"}, False),
        (SETTINGS | {"accountingstoragetype": "accounting_storage/none"}, False),
        ({}, False),
    ],
)
def test_limits_hold_only_where_slurmctld_keeps_them(settings: dict[str, str], *, expected: bool) -> None:
    assert limits_hold(settings) is expected
    books = Books(qos=({"Name": "normal", "GrpTRES": "gres/gpu=1"},))
    assert any(unseen_limits(books, settings, (BILLED,), (POOL,))) is expected
