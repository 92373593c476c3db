"""What a run costs by the site's prices, and the cheapest GPU on which it ends in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gpusage.cli import documents, figures, tables
from gpusage.policies.deadline import Run, run_of
from gpusage_hooks.errors import DeviceError, RequestError
from gpusage_hooks.types import GpuNeed, Interval, Workload

if TYPE_CHECKING:
    from gpusage.devices.catalogue import Catalogue


class Bill(NamedTuple):
    """What one workload costs on each GPU.

    Attributes:
        run_times_s: In the order of the needs; none where the number of steps is not known.
        costs: As those; ``None`` where the GPU has no price.
        deadline_s: Within which the run should end; ``None`` where that does not matter.
        cheapest: The GPU of least cost, or the slowest where none has a price, on which nearly all runs end in time.
    """

    gpus: tuple[str, ...]
    run_times_s: tuple[Interval, ...]
    costs: tuple[Interval | None, ...]
    deadline_s: float | None
    cheapest: str | None


def bill_of(needs: Sequence[GpuNeed], run: Workload, deadline_s: float | None, catalogue: Catalogue) -> Bill:
    """Return what a *run* costs on all its GPUs, of each type of *needs*, by the site's configuration.

    Raises:
        RequestError: There is a deadline, and nobody said how many steps there are; or a price is below 0.
    """
    steps = run.steps
    if steps is None:
        if deadline_s is not None:
            message = "Option --deadline needs the number of steps; got none. Add --steps."
            raise RequestError(message)
        return Bill((), (), (), None, None)
    prices = {gpu: price * run.gpus for gpu, price in site_prices(catalogue).items()}
    runs = [run_of(need, steps, prices.get(need.gpu)) for need in needs]
    cheapest = None if deadline_s is None else _cheapest(runs, deadline_s)
    times_s, costs = tuple(run.time_s for run in runs), tuple(run.cost for run in runs)
    return Bill(tuple(need.gpu for need in needs), times_s, costs, deadline_s, cheapest)


def document(prediction: dict[str, Any], bill: Bill) -> dict[str, Any]:
    """Return *prediction* with ``cost`` in each need that has a price, and a note on the deadline."""
    for need, cost in zip(prediction["needs"], bill.costs, strict=False):
        if cost is not None:
            need["cost"] = documents.interval(cost)
    if bill.deadline_s is not None:
        prediction["deadline"] = {"deadline_s": bill.deadline_s, "cheapest": bill.cheapest}
    return prediction


def show(bill: Bill) -> None:
    """Print what the run costs on each GPU, and where it ends in time."""
    priced = [(gpu, cost) for gpu, cost in zip(bill.gpus, bill.costs, strict=True) if cost is not None]
    if priced:
        costs = ", ".join(f"{gpu} {figures.plain(cost)}" for gpu, cost in priced)
        tables.show(f"The run costs, by the site's prices: {costs}.")
    if bill.deadline_s is not None:
        tables.show(_verdict(bill, is_priced=bool(priced)))


def _verdict(bill: Bill, *, is_priced: bool) -> str:
    within = f"within {figures.seconds(bill.deadline_s or 0.0)}"
    if bill.cheapest is None:
        kind = "GPU with a price" if is_priced else "GPU"
        return f"No {kind} here certainly ends the run {within}."
    if is_priced:
        return f"The cheapest GPU on which the run ends {within}, by the upper end: {bill.cheapest}."
    from gpusage.settings.configuration_file import configuration_path  # msgspec; only where there are steps

    return (
        f"The slowest GPU on which the run ends {within}, by the upper end: {bill.cheapest}. No GPU has a price: set "
        f"money.price_per_hour in {configuration_path()}, or in a file that GPUSAGE_CONFIG names."
    )


def _cheapest(runs: Sequence[Run], deadline_s: float) -> str | None:
    """Return the GPU that meets the deadline for least; one without a price counts only where none has a price."""
    in_time = (run for run in runs if run.ends_within(deadline_s))
    first = min(in_time, key=lambda run: run.cost_order, default=None)
    if first is None or (first.cost is None and any(run.cost for run in runs)):
        return None
    return first.need.gpu


def site_prices(catalogue: Catalogue) -> Mapping[str, float]:
    """Return the site's price of an hour, by the catalogue's names."""
    from gpusage.settings.configuration_file import read_configuration  # msgspec; only where there are steps

    configuration, _ = read_configuration()
    prices: dict[str, float] = {}
    for name, price in configuration.money.price_per_hour.items():
        if not 0 <= price < float("inf"):
            message = f"Key 'money.price_per_hour.{name}' must be a number of at least 0; got {price!r}. Change it."
            raise RequestError(message)
        try:
            prices[catalogue.find(name).name] = price
        except DeviceError as error:
            message = f"Key 'money.price_per_hour.{name}' must name a GPU of the catalogue. {error}"
            raise RequestError(message) from error
    return prices
