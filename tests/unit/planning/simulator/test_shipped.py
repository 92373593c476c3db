"""`price-online` decides as gpusaged does: by the room at a job's arrival, for one user's GPU, and not for ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from gpusage.cli.cluster_file import example_cluster
from gpusage.decisions.advisor import make_advisor
from gpusage_hooks.types import Cluster
from gpusage_planning.simulator.contract import Arrival, Demand, JobRequest, Jobs, Kind, Policy, UnslowedTruth
from gpusage_planning.simulator.engine import STUCK_AFTER_S, simulate
from gpusage_planning.simulator.fleet import Fleet, GpuType, fleet_of
from gpusage_planning.simulator.policies import Shipped
from gpusage_planning.simulator.predictions import draw_kinds
from gpusage_planning.simulator.scenario import POLICIES, scenario_of
from gpusage_planning.simulator.source import generated

ADVISOR = make_advisor()
LIGHT = next(place for place, kind in enumerate(draw_kinds()) if "regnet_y_400mf@224, batch 16" in kind.name)
"""A third of an H100 is enough for it; of older GPUs it needs more, and of a T4 all."""
H100 = 3


@cache
def shipped() -> Shipped:
    """Return the policy on the example cluster."""
    fleet = fleet_of(example_cluster("none", ADVISOR.catalogue), ADVISOR.catalogue)
    jobs = generated(100, draw_kinds(), fleet, 0)
    policy = POLICIES["price-online"](scenario_of(jobs, fleet, ADVISOR, Path(), 0))
    assert isinstance(policy, Shipped)
    return policy


def arrived(free_h100s: int, *on_h100s: Sequence[JobRequest], user: int = 0) -> JobRequest:
    """Return the light job as it waits: T4s are free, H100s or what is on them as said."""
    seen = Arrival(user, (8, 0, 0, free_h100s), lambda place: on_h100s if place == H100 else ())
    return shipped().arriving(JobRequest(LIGHT), seen)


def test_a_share_binds_where_there_is_room_now() -> None:
    share, whole = (shipped().demand(arrived(free)) for free in (1, 0))
    assert (share.types, share.share_percent) == ((H100,), 33)
    assert whole.alone
    assert {*whole.types} == {0, 1, 2, 3}


def test_room_beside_other_jobs_is_for_their_user_alone() -> None:
    first = arrived(1)
    second = arrived(0, [first])
    assert shipped().demand(second).share_percent == 33
    assert shipped().cost(H100, [first], second) == 34.0
    assert shipped().demand(arrived(0, [first], user=1)).alone
    assert shipped().cost(H100, [first], arrived(1, user=1)) is None
    assert shipped().demand(arrived(0, [first] * 3)).alone


@dataclass(frozen=True, kw_only=True)
class Bound(Policy):
    """Jobs of the second kind ask for a part of the first type; once they are released, for a whole GPU of any."""

    name: str = "bound"
    most_per_gpu: int = 2

    def demand(self, ask: JobRequest, /) -> Demand:
        """Return a share, or a whole GPU."""
        is_share = ask.kind == 1 and ask.stage == "first"
        return Demand(types=(0,), alone=False) if is_share else Demand(types=(0, 1))

    def released(self, ask: JobRequest, /) -> JobRequest | None:
        """Return the request of a whole GPU."""
        return ask._replace(stage="released") if ask.kind == 1 and ask.stage == "first" else None


def test_a_share_that_waits_gets_a_whole_gpu_of_another_type_after_a_while() -> None:
    """The first type's GPU is busy for 1000 s, the second's free from 20 s on; a job comes at 100 s and takes it."""
    columns = [(0.0, 1000.0, 0), (0.0, 20.0, 0), (30.0, 10.0, 1), (100.0, 10.0, 0)]
    submit_s, work_s, kind = (np.array(column) for column in zip(*columns, strict=True))
    fleet = Fleet(
        types=(GpuType(name="old", gpu_count=1), GpuType(name="new", gpu_count=1)),
        cluster=Cluster(manager="none", version="", pools=()),
    )
    jobs = Jobs(
        ids=[*"abcd"],
        submit_s=submit_s,
        work_s=work_s,
        limit_s=work_s,
        gpu_count=np.ones(4, dtype=np.int32),
        kind=kind.astype(np.int32),
        user=np.zeros(4, dtype=np.int32),
        kinds=(Kind(name="whole"), Kind(name="share")),
        users=("someone",),
    )
    result = simulate(jobs, fleet, Bound(), UnslowedTruth())
    assert STUCK_AFTER_S == 60.0
    assert result.start_s.tolist() == [0.0, 0.0, 110.0, 100.0]
    assert result.gpu.tolist() == [0, 1, 1, 1]
