"""Who goes first, in small examples that a reader can follow with a pencil."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from gpusage.cli.cluster_file import example_cluster
from gpusage.decisions.advisor import make_advisor
from gpusage_hooks.types import Cluster
from gpusage_planning import commands
from gpusage_planning.simulator import orders as queue_state
from gpusage_planning.simulator.contract import Colocation, Jobs, Kind, Tenant
from gpusage_planning.simulator.fleet import Fleet, GpuType, fleet_of
from gpusage_planning.simulator.max_min import MaxMin, even_shares
from gpusage_planning.simulator.orders import (
    HALF_LIFE_S,
    LeastAttainedService,
    Multifactor,
    Order,
    Ordering,
    ShortestJob,
    ShortestRemainingTime,
)
from gpusage_planning.simulator.policies import Slots
from gpusage_planning.simulator.predictions import draw_kinds
from gpusage_planning.simulator.result import Result
from gpusage_planning.simulator.rounds import simulate_ordered
from gpusage_planning.simulator.scenario import POLICIES, scenario_of
from gpusage_planning.simulator.source import generated
from gpusage_planning.simulator.sweep import (
    ORDERS,
    PREEMPTIVE,
    OrderSettings,
    order_notes,
    ordering_of,
)
from multifactor import QUEUES, simulated

ADVISOR = make_advisor()
DAY_S = 86400.0
Row = tuple[float, float, int, int]
"""Submission, work, GPUs and user of a job."""


class Truth:
    """Every job runs as long as the trace says, or half as long on the second type if its kind is 1."""

    def speed(self, kind: int, gpu_type: int, /) -> float:
        """Return the speed."""
        return 1.0 + (kind == 1 and gpu_type == 1)

    def memory_bytes(self, _: int, __: int, /) -> float:
        """Return nothing."""
        return 0.0

    def colocation_of(self, tenants: Sequence[Tenant], _: int, /) -> Colocation:
        """Return that nobody is slowed."""
        return Colocation((1.0,) * len(tenants), 1.0)


def outcome(
    rows: Sequence[Row], order: Order, *, gpus: int = 1, preemption_s: float = 0.0, per_node: int | None = None
) -> Result:
    """Return what becomes of the jobs of *rows* on GPUs of one type."""
    submit_s, work_s, counts, users = (np.array(column) for column in zip(*rows, strict=True))
    fleet = Fleet(
        types=(GpuType(name="v100", gpu_count=gpus, gpus_per_node=per_node),),
        cluster=Cluster(manager="none", version="", pools=()),
    )
    jobs = Jobs(
        ids=[str(number) for number in range(len(rows))],
        submit_s=submit_s.astype(float),
        work_s=work_s.astype(float),
        limit_s=work_s.astype(float),
        gpu_count=counts.astype(np.int32),
        kind=np.zeros(len(rows), dtype=np.int32),
        user=users.astype(np.int32),
        kinds=(Kind(name="job"),),
        users=tuple(str(user) for user in range(int(users.max()) + 1)),
    )
    ordering = Ordering(order=order, predicted_s=jobs.work_s, preemption_s=preemption_s)
    return simulate_ordered(jobs, fleet, Slots(fleet=fleet), Truth(), ordering)


def test_the_shortest_job_goes_first_and_is_not_overtaken() -> None:
    """On 2 GPUs, the 2-GPU job of 20 s keeps the longer 1-GPU job from the free GPU."""
    result = outcome([(0, 50, 1, 0), (1, 30, 1, 0), (2, 20, 2, 0)], ShortestJob(), gpus=2)
    assert result.start_s.tolist() == [0, 1, 50]
    result = outcome([(0, 50, 1, 0), (1, 40, 1, 0), (1, 20, 2, 0)], ShortestJob(), gpus=2)
    assert result.start_s.tolist() == [0, 70, 50]


def test_the_least_left_goes_first_and_the_suspended_job_pays_when_it_goes_on() -> None:
    """A runs 20 s, B 10 s, then A takes 5 s to go on and has 80 s left."""
    result = outcome([(0, 100, 1, 0), (20, 10, 1, 0)], ShortestRemainingTime(), preemption_s=5.0)
    assert result.end_s.tolist() == [115, 30]
    assert result.preemptions.tolist() == [1, 0]
    assert result.slowdown.tolist() == [1, 1]
    assert result.figures.preemptions == 1
    assert result.last_start_s.tolist() == [30, 20]


def test_a_job_that_would_end_first_is_not_suspended() -> None:
    result = outcome([(0, 100, 1, 0), (95, 10, 1, 0)], ShortestRemainingTime())
    assert result.end_s.tolist() == [100, 110]


def test_a_job_that_had_much_goes_on_after_all_that_had_little() -> None:
    """A has had 18,000 s at 18,000; the next round after that is at 18,060. B waits until then."""
    result = outcome([(0, 30_000, 1, 0), (100, 400, 1, 0)], LeastAttainedService(), preemption_s=62.0)
    assert result.start_s.tolist() == [0, 18_060]
    # B ends at 18,460; the next round is at 18,480, and A has 30,000 - 18,060 s left.
    assert result.end_s.tolist() == [18_480 + 62 + 11_940, 18_460]


def test_jobs_start_in_rounds_only() -> None:
    assert outcome([(61, 10, 1, 0)], LeastAttainedService()).start_s.tolist() == [120]
    assert outcome([(60, 10, 1, 0)], LeastAttainedService()).start_s.tolist() == [60]


def test_a_large_job_counts_each_of_its_gpus() -> None:
    """On 4 GPUs, service of 18,000 s is reached after 4,500 s."""
    result = outcome([(0, 10_000, 4, 0), (60, 60, 4, 0)], LeastAttainedService(), gpus=4)
    assert result.start_s[1] == 4560


def test_fair_parts_are_those_of_users_and_not_of_jobs() -> None:
    """User 1's one job has a GPU of two all the time; user 0's four jobs share the other one."""
    rows = [(0.0, 3600.0, 1, 0)] * 4 + [(0.0, 3600.0, 1, 1)]
    result = outcome(rows, MaxMin(), gpus=2)
    assert result.end_s[4] == pytest.approx(3600, abs=360)
    assert result.end_s[:4].min() > 2 * 3600
    assert result.end_s.max() == 5 * 3600 / 2


def test_even_shares_fill_users_first() -> None:
    """Of 4 GPUs, user 1 wants one and has it; user 0's jobs have 3: 1 for the small one, 2 of 4 for the large one."""
    assert even_shares(np.array([0, 0, 1]), np.array([1.0, 4.0, 1.0]), 4).tolist() == [1.0, 0.5, 1.0]


def test_a_user_of_little_goes_before_a_user_of_much() -> None:
    """User 0 ran for a day; of the two jobs that wait, the younger one of user 1 starts first."""
    rows = [(0.0, DAY_S, 1, 0), (10.0, 60.0, 1, 0), (20.0, 60.0, 1, 1)]
    result = outcome(rows, Multifactor())
    assert result.start_s.tolist() == [0, DAY_S + 60, DAY_S]


def test_age_outweighs_size_in_the_end() -> None:
    """With the same weight, the larger job goes first at once, and the older one if it is 14 days older."""
    weights = {"fair_share": 0.0, "age": 1000.0, "size": 1000.0}
    rows = [(0.0, 100.0, 2, 0), (1.0, 60.0, 1, 0), (2.0, 60.0, 2, 0)]
    assert outcome(rows, Multifactor(**weights), gpus=2).start_s.tolist() == [0, 160, 100]
    rows = [(0.0, 20 * DAY_S, 2, 0), (1.0, 60.0, 1, 0), (19 * DAY_S, 60.0, 2, 0)]
    assert outcome(rows, Multifactor(**weights), gpus=2).start_s.tolist() == [0, 20 * DAY_S, 20 * DAY_S + 60]


def test_half_of_a_user_s_time_is_forgotten_in_each_half_life() -> None:
    usage = queue_state._Usage()
    usage.change(4.0, 0.0)
    usage.change(-4.0, 100.0)
    assert usage.at(100.0) == pytest.approx(400.0, rel=1e-4)
    assert usage.at(100.0 + HALF_LIFE_S) == pytest.approx(200.0, rel=1e-4)


def test_a_suspended_job_that_finds_no_node_waits_on() -> None:
    """Two jobs of one GPU are on two nodes; the job of two GPUs counts as fitting, and its node is free at 100."""
    rows = [(0.0, 500.0, 2, 0), (0.0, 500.0, 2, 0), (1.0, 100.0, 1, 0), (1.0, 99.0, 1, 0)]
    result = outcome(rows, ShortestRemainingTime(), gpus=4, per_node=2)
    assert not np.isnan(result.end_s).any()
    assert result.figures.shared_time == 0


def run(*words: str) -> dict[str, object]:
    """Return the document of one repetition."""
    result = CliRunner().invoke(commands.simulate, ["--repetitions=1", *words, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_command_offers_every_order_and_says_the_same_twice() -> None:
    assert tuple(ORDERS) == commands.ORDERS
    assert commands.PREEMPTION_S == queue_state.PREEMPTION_S
    words = ("--generate", "150", "--load", "1.5", "--policy", "slots", "--policy", "price")
    words = (*words, *(word for name in ORDERS for word in ("--order", name)))
    first = run(*words)
    assert [one["policy"] for one in first["policies"]] == [f"{p}+{o}" for p in ("slots", "price") for o in ORDERS]
    assert first == run(*words, "--workers", "2")
    suspending = {one["policy"].split("+")[1] for one in first["policies"] if one["preemptions"]}
    assert suspending
    assert suspending <= {*PREEMPTIVE}


def test_a_packing_policy_goes_with_orders_that_suspend_nobody() -> None:
    first = run("--generate", "100", "--policy", "packing", "--order", "sjf")["policies"]
    assert first[0]["policy"] == "packing+sjf"
    words = ["--generate", "100", "--policy", "packing", "--order", "srtf"]
    result = CliRunner().invoke(commands.simulate, words)
    assert result.exit_code == 2
    assert "Order 'srtf' must be with a policy that says how much of a GPU each job takes; got 'packing'" in " ".join(
        result.output.split()
    )
    default = run("--generate", "50", "--order", "las")["policies"]
    assert [one["policy"] for one in default] == ["slots+las", "price-online+las"]


def test_run_times_are_predicted_by_limits_or_with_an_error(tmp_path: Path) -> None:
    fleet = fleet_of(example_cluster("none", ADVISOR.catalogue), ADVISOR.catalogue)
    jobs = generated(200, draw_kinds(), fleet, 0)
    scenario = scenario_of(jobs, fleet, ADVISOR, tmp_path, 0)
    assert ordering_of(OrderSettings(name="sjf"), scenario, 0).predicted_s is jobs.limit_s
    exact = ordering_of(OrderSettings(name="sjf", duration_error=0.0), scenario, 0).predicted_s
    assert np.array_equal(exact, jobs.work_s)
    off = ordering_of(OrderSettings(name="sjf", duration_error=0.7), scenario, 0).predicted_s
    assert np.log(off / jobs.work_s).std() == pytest.approx(0.7, rel=0.1)
    assert not np.array_equal(off, ordering_of(OrderSettings(name="sjf", duration_error=0.7), scenario, 1).predicted_s)
    rounds = ordering_of(OrderSettings(name="las", round_s=10.0), scenario, 0)
    assert rounds.order.period_s == 10.0
    assert POLICIES["slots"](scenario).name == "slots"


def test_notes_say_what_predictions_and_suspensions_are() -> None:
    assert "time limits" in " ".join(order_notes([OrderSettings(name="sjf")]))
    assert "deviation of 0.5" in " ".join(order_notes([OrderSettings(name="srtf", duration_error=0.5)]))
    assert "takes 40 s to go on" in " ".join(order_notes([OrderSettings(name="las", preemption_s=40.0)]))
    assert list(order_notes([OrderSettings(name="fifo")])) == []


@pytest.mark.parametrize("name", QUEUES)
def test_jobs_start_in_the_order_of_slurm_s_priorities(name: str) -> None:
    """tests/slurm/test_multifactor.py has a real Slurm start them in the same order."""
    jobs, order = QUEUES[name]
    starts_s = simulated(jobs).start_s
    assert " ".join(jobs[place].name for place in np.argsort(starts_s, kind="stable")) == order
