"""A campaign: measures what is left of a suite, appends each result at once, and stops in time."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpusage.experience.profile_rows import COLUMNS
from gpusage_hooks.errors import DeviceError, RequestError
from gpusage_lab.profiling import mps as mps_of
from gpusage_lab.profiling.crew import Crew
from gpusage_lab.profiling.gauges import Gauges, NoGauges, open_gauges
from gpusage_lab.profiling.items import Item, Kind, Sharing
from gpusage_lab.profiling.plan import ON_CPU, Costs, Slots, estimate_s, is_too_large, pending
from gpusage_lab.profiling.table import CsvTable, rows_of

CLOSING_S = 5.0
"""Of a budget, kept for ending workers and MPS."""
KNOWN_COSTS = 5
"""Items after which the estimates are corrected by what the items took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a user asked for.

    Attributes:
        gpu: Index of the GPU, ``None`` for the CPU.
        budget_s: For all of it, from *began* on.
    """

    items: Sequence[Item]
    output: Path
    gpu: int | None
    only: Sequence[Kind] = ()
    retry: bool = False
    budget_s: float | None = None
    began: float = 0.0

    @property
    def table(self) -> CsvTable:
        """Of measurements."""
        return CsvTable(self.output, COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What a campaign reports while it runs.

    Attributes:
        done: Items that were measured, of *total*.
        status: Of the item's sides; empty before it runs.
        left_s: Estimated time that is left.
    """

    item: Item
    status: str
    done: int
    total: int
    left_s: float


def run(order: Order, announce: Callable[[Announcement], None]) -> int:
    """Measure what is left; return how many items were measured.

    Raises:
        DeviceError: The machine has no such GPU, or the table is of another one.
        RequestError: The table has other columns, or nothing can be measured without PyTorch.
    """
    if find_spec("torch") is None:
        rule = "Library torch must be there to measure; got: not installed."
        message = f"{rule} Install gpusage with its extra [profile]."
        raise RequestError(message)
    with ExitStack() as stack:
        gauges, uuid = _gauges(order.gpu)
        order.table.open()
        check_device(order.table.rows(), gauges.facts)
        daemon = stack.enter_context(mps_of.running(uuid)) if uuid is not None else None
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpusage-profile-")))
        device = "cpu" if order.gpu is None else "cuda"
        crew = stack.enter_context(closing(Crew(device, gauges, folder, mps=daemon, uuid=uuid)))
        return _Campaign(order, crew, gauges, daemon).run(announce)


def _gauges(gpu: int | None) -> tuple[Gauges, str | None]:
    if gpu is None:
        return NoGauges(), None
    gauges = open_gauges(gpu)
    if gauges is None:
        message = (
            f"GPU {gpu} must be one that NVML finds on this machine; got none. "
            "Install the driver and nvidia-ml-py, or try the machinery with --device cpu."
        )
        raise DeviceError(message)
    return gauges, gauges.uuid


def check_device(rows: Iterable[dict[str, str]], facts: dict[str, Any]) -> None:
    """Refuse to mix what two GPUs measured in one table.

    Raises:
        DeviceError: The table is of another GPU.
    """
    here = (facts["device"], facts.get("gpu", ""))
    for row in rows:
        there = (row["device"], row["gpu"])
        if there != here:
            message = (
                f"Table must be of this machine's {here[1] or here[0]}; got one of {there[1] or there[0]}. "
                "Name another file with --output."
            )
            raise DeviceError(message)


class _Campaign:
    """What changes while a campaign runs."""

    def __init__(self, order: Order, crew: Crew, gauges: Gauges, daemon: mps_of.Mps | None) -> None:
        self._order = order
        self._crew = crew
        self._gauges = gauges
        self._mps = daemon
        self._costs = ON_CPU if order.gpu is None else Costs()
        self._slots: Slots = ()
        self._rows: list[dict[str, Any]] = list(order.table.rows())
        self._estimated_s = self._taken_s = 0.0
        self._count = 0
        self._mps_is_silent = False

    def run(self, announce: Callable[[Announcement], None]) -> int:
        """Measure item after item."""
        order = self._order
        queue = pending(order.items, self._rows, only=order.only, retry=order.retry)
        if order.gpu is not None and self._mps is None:
            queue = [item for item in queue if not item.needs_mps]
        for place, item in enumerate(queue):
            is_idle = item.needs_mps and self._mps_is_silent
            if is_idle or is_too_large(item, self._rows) or not self._has_time(item):
                continue
            left_s = sum(took for took, _ in self._estimates(queue[place:]))
            announce(Announcement(item=item, status="", done=self._count, total=len(queue), left_s=left_s))
            status = self._measure(item)
            self._count += 1
            announce(Announcement(item=item, status=status, done=self._count, total=len(queue), left_s=left_s))
        return self._count

    def _measure(self, item: Item) -> str:
        began = time.monotonic()
        estimated, self._slots = estimate_s(item, self._slots, self._costs)
        outcome = self._crew.measure(item)
        facts = {**self._gauges.facts, **self._crew.hello}
        rows = rows_of(item, outcome, self._sharing(item), facts)
        self._order.table.append(rows)
        self._rows += [{name: "" if value is None else value for name, value in row.items()} for row in rows]
        if any(row["status"] not in ("ok", "oom") for row in rows):
            self._slots = ()
        self._update_cost(estimated, time.monotonic() - began)
        return "+".join(sorted({str(row["status"]) for row in rows}))

    def _sharing(self, item: Item) -> Sharing:
        if self._order.gpu is None:
            return "cpu"
        if item.kind == "solo":
            return "none"
        self._mps_is_silent = self._mps is None or not self._mps.has_clients
        return "time-slicing" if self._mps_is_silent else "mps"

    def _update_cost(self, estimated_s: float, taken_s: float) -> None:
        self._estimated_s += estimated_s / self._costs.scale
        self._taken_s += taken_s
        if self._count >= KNOWN_COSTS:
            self._costs = replace(self._costs, scale=self._taken_s / self._estimated_s)

    def _has_time(self, item: Item) -> bool:
        if self._order.budget_s is None:
            return True
        needed, _ = estimate_s(item, self._slots, self._costs)
        return time.monotonic() - self._order.began + needed + CLOSING_S <= self._order.budget_s

    def _estimates(self, items: Iterable[Item]) -> Iterable[tuple[float, Slots]]:
        slots = self._slots
        for item in items:
            took, slots = estimate_s(item, slots, self._costs)
            yield took, slots
