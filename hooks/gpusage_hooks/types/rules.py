"""The site's settings that policies act on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

SharingRule = Literal["price", "utilization", "activity"]
Cap = Literal["share", "double", "none"]
Binding = Literal["room", "never", "always"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The least and the most of a setting, or of each in a list: ``Annotated[float, Range(low=1, high=9)]``."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingRules:
    """When a whole GPU may become a share.

    Attributes:
        enabled: Whether a whole GPU may become a share at all.
        rule: What decides: the predicted price of a share, the sum of known utilizations, or the predicted SM activity.
        sizes: By price: the percentages that a share may have, each 1 to 99.
        maximum_slowdown: By price: how many times as long a step may take as expected, beside average partners.
        worst_slowdown: By price: the same at the pessimistic end.
        bind: By price: when a share may confine the job to the GPU types on which its price holds: where one of them
            has room now, never, or always.
        cap: By price: what a job may use of the threads: its share, twice that, or all; what is booked is the share.
        maximum_packed: By utilization: how many jobs one GPU may have.
        maximum_percent: The largest share, in percent.
        minimum_percent: The smallest share, in percent.
        step_percent: By activity: what a share's percentage is a multiple of.
        headroom: By activity: what is added to the predicted SM activity, as a share of the GPU.
        maximum_partners: By price and by activity: how many jobs one GPU may have.
        across_users: Whether one MPS daemon serves several users' jobs, which can then end each other by a fatal fault.
        keep_apart: Whether a new share is kept off nodes where it or a job there would become slower than accepted.
        rescue: Whether a job whose share's memory was too small runs again, once, with a whole GPU.
    """

    enabled: bool = True
    rule: SharingRule = "price"
    sizes: Annotated[tuple[int, ...], Range(low=1, high=99)] = (25, 33, 50, 75)
    maximum_slowdown: Annotated[float, Range(low=1, high=100)] = 1.25
    worst_slowdown: Annotated[float, Range(low=1, high=100)] = 1.5
    bind: Binding = "room"
    cap: Cap = "share"
    maximum_packed: Annotated[int, Range(low=1, high=48)] = 3
    maximum_percent: int = 80
    minimum_percent: int = 10
    step_percent: int = 5
    headroom: float = 0.10
    maximum_partners: int = 4
    across_users: bool = False
    keep_apart: bool = True
    rescue: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRules:
    """When a generation is preferred.

    Attributes:
        enabled: Whether a job is made to prefer GPUs of one generation.
        minimum_speedup: From this gain on, a faster GPU is preferred where nothing is known of other jobs.
        by_recent_jobs: Whether a job is compared with those that were decided recently, where some are known.
    """

    enabled: bool = True
    by_recent_jobs: bool = True
    minimum_speedup: float = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class SloRules:
    """How an inference job's latency promise is protected.

    Attributes:
        enabled: Whether a job with a latency limit keeps a whole GPU where partners could break the limit.
        latency_margin: The part of the limit that the job alone may fill; at 0.5 a step may take twice as long.
    """

    enabled: bool = True
    latency_margin: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class MoneyRules:
    """What GPUs cost the site.

    Attributes:
        price_per_hour: Of one GPU, by the catalogue's name or an alias of it: ``{ v100 = 3.06 }``.
    """

    price_per_hour: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRules:
    """What the network between the site's hosts carries.

    Attributes:
        gbit_per_s: Gb/s for each GPU, one way, by the catalogue's name or an alias of it: ``{ a100 = 200 }``; 12.5 is
            one card of 100 Gb/s for 8 GPUs. By default what hosts with such GPUs commonly have.
    """

    gbit_per_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The site's settings that policies act on."""

    sharing: SharingRules = SharingRules()
    generation: GenerationRules = GenerationRules()
    slo: SloRules = SloRules()
    money: MoneyRules = MoneyRules()
    network: NetworkRules = NetworkRules()
