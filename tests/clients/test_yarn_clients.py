"""Clients of YARN that nobody here wrote end as they end without gpusage, also where a share's memory is too small."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from yarn_clients import Command, YarnPair, distributed_shell, install_spark, run_client, spark

pytestmark = [pytest.mark.yarn, pytest.mark.clients]


@pytest.mark.parametrize("command", [distributed_shell, spark])
@pytest.mark.parametrize("name", ["small", "large"])
def test_a_client_ends_as_it_does_without_gpusage(yarn_pair: YarnPair, command: Command, name: str) -> None:
    if command is spark:
        install_spark()
    with ThreadPoolExecutor() as threads:
        without, enforcing = threads.map(lambda sandbox: run_client(sandbox, command, name), yarn_pair)
    assert (without.exit_status, without.shares) == (0, [100]), without.printed
    assert enforcing == without, enforcing.printed
    assert (min(enforcing.shares) < 100) == (name == "small")
    assert enforcing.master_node == "cpu-1", "a master takes no room on a node with GPUs"
