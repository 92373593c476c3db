"""Clients of Slurm that nobody here wrote end as they end without gpusage, also where a share's memory is too small."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from slurm_clients import CLIENTS, RETRYING, Client, SlurmPair, run_client

pytestmark = [pytest.mark.slurm, pytest.mark.clients]
IN_CI = ("submitit", "snakemake")
PARAMETERS = [
    pytest.param(client, id=client.name, marks=() if client.name in IN_CI else pytest.mark.nightly)
    for client in CLIENTS
]


@pytest.mark.parametrize("client", PARAMETERS)
def test_a_client_ends_as_it_does_without_gpusage(slurm_pair: SlurmPair, client: Client) -> None:
    client.install()
    with ThreadPoolExecutor() as threads:
        without, enforcing = threads.map(lambda sandbox: run_client(sandbox, client), slurm_pair)
    assert without.exit_status == 0, without.printed
    assert without.shares == {"small": [100], "large": [100]}
    assert enforcing == without, enforcing.printed
    assert min(enforcing.shares["small"]) < 100, "gpusage gave no share"
    *missed, last = enforcing.shares["large"]
    assert last == 100
    assert len(missed) == client.repeats


@pytest.mark.nightly
def test_a_retry_gets_a_whole_gpu(slurm_pair: SlurmPair) -> None:
    RETRYING.install()
    with ThreadPoolExecutor() as threads:
        without, enforcing = threads.map(lambda sandbox: run_client(sandbox, RETRYING), slurm_pair)
    assert without.shares["large"] == [100] * 5, without.printed
    assert (enforcing.exit_status, enforcing.outputs) == (0, without.outputs), enforcing.printed
    assert enforcing.report == without.report
    missed = [percent for percent in enforcing.shares["large"] if percent < 100]
    assert missed, "gpusage gave no share"
    assert enforcing.shares["large"].count(100) == 5
    assert enforcing.jobs["FAILED"] == len(missed)
