"""One job, sampled from its start to its end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from gpusage.node.sampler.processes import ProcessSelector
from gpusage.node.sampler.sampling import LONGEST_PAUSE_S, SampledJob, Sampling, Surroundings
from gpusage.plugins.hooks import Hooks
from gpusage_hooks.types import Allocation, GpuReading, Usage

JOB = SampledJob(
    manager="slurm",
    job_id="7",
    devices=("0",),
    identity=ProcessSelector(variable="NO_SUCH_JOB=1", cgroups=(), uid=os.geteuid()),
    cpus=4,
)


@dataclass
class Gpus(Hooks):
    """One GPU: what it is asked costs an error, or is the next reading; the last one stays."""

    readings: list[GpuReading | Exception]
    reading_count: int = 0

    def read_gpu(self, device: str) -> GpuReading | None:
        """Return the next reading."""
        assert device == "0"
        reading = self.readings[min(self.reading_count, len(self.readings) - 1)]
        self.reading_count += 1
        if isinstance(reading, Exception):
            raise reading
        return reading


@dataclass
class Clock:
    """Waits in no time, and ends the job after some waits."""

    sample_count: int
    pauses_s: list[float] = field(default_factory=list)

    def wait(self, pause_s: float) -> bool:
        """Remember the pause."""
        self.pauses_s.append(pause_s)
        return len(self.pauses_s) >= self.sample_count


def sampled(readings: Sequence[GpuReading | Exception], *, partners: int = 0, samples: int = 3) -> tuple[Usage, Clock]:
    clock = Clock(samples)
    surroundings = Surroundings(count_partners=lambda: partners, granted=lambda: Allocation(share_percent=40))
    return Sampling(JOB, Gpus(list(readings)), surroundings).run(clock.wait, lambda _: None), clock


def test_the_gpus_of_a_job_on_its_node_are_counted() -> None:
    usage, _ = sampled([GpuReading(name="a")])
    assert usage.gpu_count == 1


def test_a_job_is_seen_often_at_first_and_then_seldom() -> None:
    usage, clock = sampled([GpuReading(name="V100", gpu_utilization=0.4)], samples=20)
    assert clock.pauses_s[0] == 1.0
    assert clock.pauses_s[-1] == LONGEST_PAUSE_S
    assert (usage.gpu, usage.gpu_utilization, usage.granted.share_percent) == ("V100", pytest.approx(0.4), 40)
    assert 0 < usage.alone_s == usage.sampled_s <= usage.ended_at_s - usage.started_at_s + 0.1


def test_whatever_goes_wrong_with_a_look_costs_that_look() -> None:
    usage, _ = sampled([OSError("driver"), GpuReading(name="V100", gpu_utilization=0.4), ValueError("x")])
    assert (usage.gpu, usage.gpu_utilization) == ("V100", pytest.approx(0.4))


def test_without_a_gpu_that_can_be_read_nothing_is_known() -> None:
    usage, _ = sampled([OSError("no driver")])
    assert (usage.gpu, usage.gpu_utilization, usage.memory_bytes, usage.cpu_s) == ("", None, None, None)


def test_a_job_is_not_alone_beside_another_process_or_another_job() -> None:
    reading = GpuReading(name="V100", process_memory_bytes={os.getpid(): 5})
    usage, crowded = sampled([reading])[0], sampled([GpuReading(name="V100")], partners=3)[0]
    assert (usage.alone_s, usage.held_s) == (0, usage.sampled_s / 2)
    assert (crowded.alone_s, crowded.held_s) == (0, pytest.approx(crowded.sampled_s / 4))


def test_what_is_known_so_far_is_kept_at_the_start() -> None:
    stored: list[Usage] = []
    surroundings = Surroundings(count_partners=lambda: 0, granted=lambda: None)
    Sampling(JOB, Gpus([GpuReading(name="V100")]), surroundings).run(lambda _: True, stored.append)
    assert [usage.job_id for usage in stored] == ["7"]
