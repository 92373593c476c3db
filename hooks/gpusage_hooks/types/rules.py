"""The site's settings that policies act on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

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
        sizes: The percentages that a share may have, each 1 to 99.
        maximum_slowdown: How many times as long a step may take as expected, beside average partners.
        worst_slowdown: The same at the pessimistic end.
        bind: When a share may confine the job to the GPU types on which its price holds: where one of them has room
            now, never, or always.
        cap: What a job may use of the threads: its share, twice that, or all; the share is booked.
        maximum_partners: How many jobs one GPU may have.
        across_users: Whether one MPS daemon serves several users' jobs, which can then end each other by a fatal fault.
        keep_apart: Whether a new share is kept off nodes where it or a job there would become slower than accepted.
        rescue: Whether a job whose share's memory was too small runs again, once, with a whole GPU.
    """

    enabled: bool = True
    sizes: Annotated[tuple[int, ...], Range(low=1, high=99)] = (25, 33, 50, 75)
    maximum_slowdown: Annotated[float, Range(low=1, high=100)] = 1.25
    worst_slowdown: Annotated[float, Range(low=1, high=100)] = 1.5
    bind: Binding = "room"
    cap: Cap = "share"
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
