"""Clients of YARN that nobody here wrote end as they end without gpusage, in each mode, and where it is dead."""

from __future__ import annotations

from typing import get_args

import pytest

from yarn_clients import CLIENTS, CONSTRAINED, LARGE_CLIENTS, RANKS, SHELL, SLICED, SPARK, Client
from yarn_pairs import Mode, YarnPair

pytestmark = [pytest.mark.yarn, pytest.mark.clients]
MODES: tuple[Mode, ...] = get_args(Mode)
IN_CI = {(RANKS, "enforce"), (SPARK, "enforce"), (SHELL, "observe"), (SHELL, "dead")}
"""Two ranks are the distributed shell's, too, which needs no further cell in mode enforce."""


def matrix(*clients: Client) -> list[object]:
    """Return every client in every mode, one mode after the other; a change of the mode takes seconds."""
    return [
        pytest.param(
            client, mode, id=f"{client.name}-{mode}", marks=() if (client, mode) in IN_CI else pytest.mark.nightly
        )
        for mode in MODES
        for client in clients
    ]


@pytest.mark.parametrize("client", LARGE_CLIENTS, ids=lambda client: client.name)
def test_a_client_that_fits_no_share_keeps_its_gpu(yarn_pair: YarnPair, client: Client) -> None:
    without, ours = yarn_pair.run(client, "enforce")
    assert without.exit_status == 0, without.printed
    assert ours == without, ours.printed
    assert ours.shares == [100]


@pytest.mark.parametrize(("client", "mode"), matrix(RANKS))
def test_two_ranks_of_a_training_never_have_one_gpu(yarn_pair: YarnPair, client: Client, mode: Mode) -> None:
    without, ours = yarn_pair.run(client, mode)
    assert (without.exit_status, without.runs) == (0, 2), without.printed
    assert ours == without, ours.printed
    assert (max(ours.shares) < 100) == (mode == "enforce")
    assert sorted(ours.devices) == ["0", "1"]


@pytest.mark.parametrize(("client", "mode"), matrix(*CLIENTS))
def test_a_client_ends_as_it_does_without_gpusage(yarn_pair: YarnPair, client: Client, mode: Mode) -> None:
    without, ours = yarn_pair.run(client, mode)
    assert (without.exit_status, without.application) == (0, "FINISHED SUCCEEDED"), without.printed
    assert without.output, without.printed
    assert ours == without, ours.printed
    assert set(without.shares) == {100}
    assert (max(ours.shares) < 100) == (mode == "enforce")
    if mode == "enforce":
        assert ours.master_node == "cpu-1", "a master takes no room on a node with GPUs"


@pytest.mark.nightly
@pytest.mark.parametrize("mode", MODES)
def test_constrained_containers_keep_their_gpus(yarn_pair: YarnPair, mode: Mode) -> None:
    without, ours = yarn_pair.run(CONSTRAINED, mode)
    assert (without.exit_status, without.runs) == (0, 2), without.printed
    assert ours == without, ours.printed
    assert (ours.shares, sorted(ours.devices)) == ([100, 100], ["0", "1"])


@pytest.mark.nightly
@pytest.mark.parametrize("mode", MODES)
def test_containers_of_another_plugin_keep_their_devices(yarn_pair: YarnPair, mode: Mode) -> None:
    without, ours = yarn_pair.run(SLICED, mode)
    assert (without.exit_status, without.devices) == (0, ["MIG-1"]), without.printed
    assert ours == without, ours.printed
    assert (ours.shares, ours.devices) == ([100], ["MIG-1"])
