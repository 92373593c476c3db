"""Options for shares of a GPU: which, and what the user knows of the job alone on a whole GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from gpusage_hooks.comment import parse_duration_s, parse_utilization
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Alone, Gpu, GpuNeed, ModelGraph, Price, Workload

if TYPE_CHECKING:
    from gpusage.advisor import Advisor
    from gpusage.devices.catalogue import Catalogue

Function = TypeVar("Function", bound=Callable[..., Any])


class StepTime(NamedTuple):
    """A step time that the user measured, alone on the GPU of this name."""

    seconds: float
    gpu: str


class Utilization(NamedTuple):
    """A GPU utilization that nvidia-smi showed, above 0 and at most 1, and the batch size where that was another."""

    share: float
    batch_size: int | None


class Shares(NamedTuple):
    """Which shares are asked for, and what the user knows of the job alone on a whole GPU."""

    percents: tuple[int, ...]
    utilization: Utilization | None
    step_time: StepTime | None

    def needs(self, advisor: Advisor, graph: ModelGraph, run: Workload, gpus: Sequence[Gpu]) -> tuple[GpuNeed, ...]:
        """Return what *run* needs on each share of each of *gpus*, or on the whole ones where no share is asked for."""
        known = self.known(run, advisor.catalogue)
        if not self.percents:
            return advisor.predict(graph, known, gpus)
        return advisor.predict_shares(graph, known, gpus, self.percents)

    def prices(
        self, advisor: Advisor, graph: ModelGraph, run: Workload, gpus: Sequence[Gpu], percents: Sequence[int]
    ) -> tuple[tuple[Price, ...], ...]:
        """Return what *percents* of each of *gpus* cost, in their order."""
        return advisor.price(graph, self.known(run, advisor.catalogue), gpus, percents)

    def check(self, gpus: Sequence[Gpu], catalogue: Catalogue) -> None:
        """See that what is known is of a GPU that is predicted for.

        Raises:
            RequestError: The step time is of another GPU.
            DeviceError: It is of none that *catalogue* has.
        """
        if self.step_time and catalogue.find(self.step_time.gpu) not in gpus:
            message = (
                f"Option --step-time must name a GPU that is predicted for; got {self.step_time.gpu!r}. "
                f"Add --gpu {self.step_time.gpu}."
            )
            raise RequestError(message)

    def known(self, run: Workload, catalogue: Catalogue) -> Workload:
        """Return *run* with what is known of the job."""
        alone = self._alone(catalogue)
        return run if alone == Alone() else replace(run, alone=alone)

    def _alone(self, catalogue: Catalogue) -> Alone:
        """Return what is known of the job; a step time holds on the GPU that it names alone."""
        return Alone(
            utilization=self.utilization.share if self.utilization else None,
            batch_size=self.utilization.batch_size if self.utilization else None,
            step_time_s=self.step_time.seconds if self.step_time else None,
            gpu=catalogue.find(self.step_time.gpu).name if self.step_time else None,
        )


def _step_time(_: click.Context, __: click.Parameter, value: str | None) -> StepTime | None:
    if value is None:
        return None
    duration, separator, gpu = value.partition("@")
    if not separator or not gpu:
        message = f"Option --step-time must name the GPU it was measured on; got {value!r}. Write '30ms@a100'."
        raise click.UsageError(message)
    try:
        return StepTime(parse_duration_s("step_time", duration, "30ms@a100"), gpu)
    except RequestError as error:
        raise click.UsageError(str(error)) from error


def _utilization(_: click.Context, __: click.Parameter, value: str | None) -> Utilization | None:
    try:
        return None if value is None else Utilization(*parse_utilization(value))
    except RequestError as error:
        raise click.UsageError(str(error)) from error


_SHARE_OPTIONS = (
    click.option(
        "--share",
        "shares",
        type=click.IntRange(1, 100),
        metavar="PERCENT",
        multiple=True,
        help="Predict for this MPS share of each GPU, and what the share costs; may be repeated.",
    ),
    click.option(
        "--utilization",
        metavar="PERCENT[@BATCH]",
        callback=_utilization,
        help="GPU utilization that nvidia-smi showed when the job ran alone on the whole GPU; 60@32 is of batch 32.",
    ),
    click.option(
        "--step-time",
        metavar="TIME@GPU",
        callback=_step_time,
        help="Step time when the job ran alone on this whole GPU, such as 30ms@a100.",
    ),
)


def share_options(function: Function) -> Function:
    """Add ``--share``, ``--utilization`` and ``--step-time``; a command hands them on to `read_shares` as a mapping."""
    for option in reversed(_SHARE_OPTIONS):
        function = option(function)
    return function


def read_shares(options: Mapping[str, Any]) -> Shares:
    """Return which shares the command's *options* ask for."""
    return Shares(options["shares"], options["utilization"], options["step_time"])
