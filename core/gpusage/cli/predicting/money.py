"""The site's prices and network: what a run costs, and the cheapest GPU on which it ends in time.

Both stand in gpusage.toml, which takes msgspec to read; a prediction for one host without steps needs neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gpusage.cli import documents, tables
from gpusage.decisions.advisor import advisor
from gpusage.policies.preference import run_of
from gpusage.settings.configuration_file import configuration_path, read_configuration
from gpusage_hooks.errors import DeviceError, RequestError
from gpusage_hooks.types import GpuNeed, Interval, Workload

if TYPE_CHECKING:
    from gpusage.devices.catalogue import Catalogue


class Bill(NamedTuple):
    """The cost of one workload on each GPU.

    Attributes:
        gpus: In the order of the needs.
        costs: As those; ``None`` where the GPU has no price.
        deadline_s: Within which the run should end; ``None`` where that does not matter.
        cheapest: The GPU of least cost, or the slowest where none has a price, on which nearly all runs end in time.
    """

    gpus: tuple[str, ...]
    costs: tuple[Interval | None, ...]
    deadline_s: float | None
    cheapest: str | None

    def add_to(self, prediction: dict[str, Any]) -> dict[str, Any]:
        """Return *prediction* with ``cost`` in each need that has a price, and a note on the deadline."""
        for need, cost in zip(prediction["needs"], self.costs, strict=True):
            if cost is not None:
                need["cost"] = documents.interval(cost)
        if self.deadline_s is not None:
            prediction["deadline"] = {"deadline_s": self.deadline_s, "cheapest": self.cheapest}
        return prediction

    def show(self) -> None:
        """Print what the run costs on each GPU, and where it ends in time."""
        priced = [(gpu, cost) for gpu, cost in zip(self.gpus, self.costs, strict=True) if cost is not None]
        if priced:
            costs = ", ".join(f"{gpu} {tables.interval_text(cost)}" for gpu, cost in priced)
            tables.show(f"The run costs, by its price per hour: {costs}.")
        if self.deadline_s is None:
            return

        within = f"within {tables.seconds_text(self.deadline_s)}"
        if self.cheapest is None:
            tables.show(f"No {'GPU with a price' if priced else 'GPU'} here certainly ends the run {within}.")
        elif priced:
            tables.show(f"The cheapest GPU on which the run ends {within}, by the upper end: {self.cheapest}.")
        else:
            tables.show(
                f"The slowest GPU on which the run ends {within}, by the upper end: {self.cheapest}. No GPU has a "
                f"price: set money.price_per_hour in {configuration_path()}, or in a file that GPUSAGE_CONFIG names."
            )


def bill_of(
    needs: Sequence[GpuNeed], run: Workload, deadline_s: float | None, catalogue: Catalogue, own: str | None
) -> Bill:
    """Return what a *run* costs on all its GPUs, of each type of *needs*, by `prices`.

    Raises:
        RequestError: There is a deadline, and nobody said how many steps there are; or a price is below 0.
    """
    if run.steps is None:
        message = "Option --deadline needs the number of steps; got none. Add --steps."
        raise RequestError(message)
    # A price is of one GPU for an hour.
    prices = {gpu: price * run.gpus for gpu, price in prices_per_hour(catalogue, own).items()}
    runs = [run_of(need, run.steps, prices.get(need.gpu)) for need in needs]

    cheapest = None
    if deadline_s is not None:
        in_time = (run for run in runs if run.ends_within(deadline_s))
        best = min(in_time, key=lambda run: run.cost_order, default=None)
        # A GPU without a price may be the dearest of all: it counts only where none has one.
        if best is not None and (best.cost is not None or not any(run.cost for run in runs)):
            cheapest = best.need.gpu
    return Bill(tuple(need.gpu for need in needs), tuple(run.cost for run in runs), deadline_s, cheapest)


def prices_per_hour(catalogue: Catalogue, own: str | None = None) -> Mapping[str, float]:
    """Return the price of an hour by the catalogue's names: the user's *own* (``2.5``, ``t4=1,v100=2``), or the site's.

    Raises:
        RequestError: A price is no number of at least 0, or not of a GPU.
    """
    configured = read_configuration()[0].money.price_per_hour if own is None else {}
    pairs = [pair.rpartition("=") for pair in own.split(",")] if own is not None else []
    try:
        named = {name.strip(): float(price) for name, _, price in pairs}
    except ValueError:
        named = {}
    if len(named) < len(pairs) or ("" in named and len(named) > 1):
        rule = "Option --price must be one price, or GPU=PRICE joined by commas, each GPU once"
        message = f"{rule}; got {own!r}. Correct it."
        raise RequestError(message)
    if "" in named:
        named = dict.fromkeys((gpu.name for gpu in catalogue), named[""])

    prices: dict[str, float] = {}
    for name, price in (named or configured).items():
        where = "Option --price" if named else f"Key 'money.price_per_hour.{name}'"
        if not 0 <= price < float("inf"):
            message = f"{where} must be a number of at least 0; got {price!r}. Change it."
            raise RequestError(message)
        try:
            prices[catalogue.find(name).name] = price
        except DeviceError as error:
            message = f"{where} must name a GPU of the catalogue. {error}"
            raise RequestError(message) from error

    return prices


def require_network() -> None:
    """Require the rates of the site's network, by which the catalogue joins hosts, to be ones.

    Raises:
        RequestError: A rate of the configuration is not above 0.
        DeviceError: It names a GPU that the catalogue has not.
    """
    for name, rate in read_configuration()[0].network.gbit_per_s.items():
        advisor().catalogue.find(name)
        if not 0 < rate < float("inf"):
            message = f"Key 'network.gbit_per_s.{name}' must be Gb/s above 0; got {rate!r}. Change it."
            raise RequestError(message)
