"""The workers of a campaign, kept from one measurement to the next where they fit: starting one takes seconds."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from gpusage_lab.profiling.gauges import Gauges, Readings
from gpusage_lab.profiling.items import Item, ProfiledJob, Side
from gpusage_lab.profiling.mps import Mps, without_mps
from gpusage_lab.profiling.plan import started_as
from gpusage_lab.profiling.processes import Message, WorkerLostError, WorkerProcess

HELLO_S, PREPARE_S, RUN_S = 120.0, 180.0, 60.0
"""How long a worker may take to start, to prepare a job, and to answer after a window."""
LEAD_S = 0.3
"""All workers run before the window begins."""


@dataclass(slots=True, kw_only=True)
class Hand:
    """One worker, and what it is."""

    process: WorkerProcess
    started_as: tuple[object, ...]
    hello: Message
    job: ProfiledJob | None = None
    ready: Message = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What became of an item: one answer per side, and what was read meanwhile."""

    answers: tuple[Message, ...]
    pids: tuple[int, ...] = ()
    readings: Readings = field(default_factory=dict)


class Crew:
    """Runs items on one device."""

    def __init__(self, device: str, gauges: Gauges, folder: Path, *, mps: Mps | None, uuid: str | None) -> None:
        self._device = device
        self._gauges = gauges
        self._folder = folder
        self._mps = mps
        self._uuid = uuid
        self._hands: dict[int, Hand] = {}

    @property
    def hello(self) -> Message:
        """What the workers run with."""
        return next((hand.hello for hand in self._hands.values()), {})

    def measure(self, item: Item) -> Measured:
        """Run all sides of *item* at the same time; a worker that failed is ended."""
        try:
            hands = self._hands_for(item)
            refused = self._prepare(item, hands)
            return refused or self._run(item, hands)
        except WorkerLostError as error:
            self.close()
            lost = {"event": "failed", "status": error.status, "detail": str(error)}
            return Measured(answers=tuple(dict(lost) for _ in item.sides))

    def close(self) -> None:
        """End every worker."""
        for hand in self._hands.values():
            hand.process.close()
        self._hands.clear()

    def _hands_for(self, item: Item) -> list[Hand]:
        """Return one worker per side; what is not needed is ended first: its memory would be counted."""
        for place in list(self._hands):
            is_needed = place < len(item.sides)
            if not is_needed or self._hands[place].started_as != self._started_as(item, item.sides[place]):
                self._hands.pop(place).process.close()
        new = {
            place: self._start(item, side, place) for place, side in enumerate(item.sides) if place not in self._hands
        }
        self._hands |= new  # so that they are ended, whatever happens to one of them
        for hand in new.values():
            hand.hello = hand.process.receive(HELLO_S)
        return [self._hands[place] for place in range(len(item.sides))]

    def _started_as(self, item: Item, side: Side) -> tuple[object, ...]:
        return started_as(item, side, has_environments=self._uuid is not None)

    def _start(self, item: Item, side: Side, place: int) -> Hand:
        variables = environment(side, mps=self._mps if item.kind != "solo" else None)
        if self._uuid is not None:
            variables["CUDA_VISIBLE_DEVICES"] = self._uuid
        log = self._folder / f"worker-{place}.log"
        return Hand(
            process=WorkerProcess(self._device, variables, log), started_as=self._started_as(item, side), hello={}
        )

    def _prepare(self, item: Item, hands: list[Hand]) -> Measured | None:
        """Let each worker build its job; return an outcome where one cannot.

        One after the other where a job's time alone matters to the measurement.
        """
        alone = any(side.job.stall_ratio for side in item.sides)
        new = [(hand, side.job) for hand, side in zip(hands, item.sides, strict=True) if hand.job != side.job]
        if alone:
            new = list(zip(hands, (side.job for side in item.sides), strict=True))
        for hand, job in new:
            hand.job = None
            hand.process.send(_preparation(job))
            if alone:
                hand.ready = hand.process.receive(PREPARE_S)
        for hand, job in new:
            if not alone:
                hand.ready = hand.process.receive(PREPARE_S)
            hand.job = job if hand.ready["event"] == "ready" else None
        if all(hand.job is not None for hand in hands):
            return None
        idle = {"status": "not-run", "detail": "another side failed"}
        return self._failed([hand.ready if hand.job is None else dict(idle) for hand in hands], hands)

    def _run(self, item: Item, hands: list[Hand]) -> Measured:
        pids = tuple(int(hand.hello["pid"]) for hand in hands)
        start = time.monotonic() + LEAD_S
        end = start + item.seconds
        for hand, side in zip(hands, item.sides, strict=True):
            hand.process.send({"op": "run", "start": start, "end": end, "stall_ratio": side.job.stall_ratio})
        self._gauges.watch(start, ())
        readings = self._gauges.watch(end, pids)
        answers = [hand.process.receive(RUN_S + 3 * item.seconds) for hand in hands]
        if any(answer["event"] == "failed" for answer in answers):
            return self._failed(answers, hands)
        reports = tuple({**hand.ready, **answer} for hand, answer in zip(hands, answers, strict=True))
        return Measured(answers=reports, pids=pids, readings=readings)

    def _failed(self, answers: list[Message], hands: list[Hand]) -> Measured:
        """Return the outcome, and end the workers whose CUDA context may be of no use."""
        if any(answer["status"] == "failed" for answer in answers):
            self.close()
        for hand, answer in zip(hands, answers, strict=True):
            if answer["status"] == "oom":
                hand.job = None
        return Measured(answers=tuple(answers))


def environment(side: Side, *, mps: Mps | None) -> dict[str, str]:
    """Return the variables that a worker of *side* starts with."""
    variables: dict[str, str] = dict(without_mps() if mps is None else mps.environment)
    if mps is not None and side.percent is not None:
        variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(side.percent)
    return variables


def _preparation(job: ProfiledJob) -> Message:
    workload = job.workload
    return {
        "op": "prepare",
        "model": job.model,
        "shape": [[name, list(sizes)] for name, sizes in workload.shape],
        "batch_size": workload.batch_size,
        "mode": workload.mode,
        "precision": workload.precision,
        "optimizer": workload.optimizer,
    }
