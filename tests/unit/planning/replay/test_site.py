"""Clusters of replays: nodes, GPUs in the simulator's order, and times on the emulated clock."""

from __future__ import annotations

import pytest

from gpusage_planning.replay.site import SLURM, YARN, Site
from gpusage_planning.simulator.waiting import Scheduling


def test_slurm_has_a_node_for_each_generation_and_yarn_several_of_one() -> None:
    assert SLURM.nodes == "1xh100:4,1xrtx_3090:4,1xv100_32gb:4"
    assert YARN.nodes == "3xrtx_3090:2"


@pytest.mark.parametrize("site", [SLURM, YARN])
def test_gpus_are_in_the_order_of_types_then_nodes(site: Site) -> None:
    assert len(site.gpus) == len(set(site.gpus)) == len(site.types) * site.nodes_per_type * site.gpus_per_node
    assert site.gpus[site.gpus_per_node - 1 :][:2] == [
        (f"{site.types[0]}-1", site.gpus_per_node - 1),
        ("rtx_3090-1" if site is SLURM else "rtx_3090-2", 0),
    ]


def test_compressed_time_makes_the_manager_slow() -> None:
    """At 30 times the speed, one second of Slurm's is half a minute."""
    assert SLURM.scheduling(1.2, 30.0) == Scheduling(backfill_s=30.0, start_s=36.0, requeue_s=75.0, gpus_per_node=4)
