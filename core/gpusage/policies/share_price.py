"""The price of a share of a GPU for a job, and whether it is low enough to promise.

Invariants (docs/decisions/policies.md):

1. A promise holds beside average partners: if percentages add up to 100, it hardly matters who the partners are.
2. Both ends count: the expected slowdown, and the pessimistic one.
3. A share saves GPU time: its part of the GPU times its slowdown is less than the whole GPU by a fifth at least.
4. A share is promised only where another job may take what it leaves of its GPU: one of its own size, or a smaller one
   that jobs of this site have.
5. A job that may use more threads than its share has them while its partners are idle; beside partners it is promised
   what its share costs, for they may use as many (docs/decisions/policies.md).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from gpusage.devices.shares import memory_cap_bytes
from gpusage.policies.candidates import why_unlimited
from gpusage.policies.latency import latency_s
from gpusage.predictors.intervals import clip_to_one, other_factor, product, ratio, scaled
from gpusage_hooks.types import Candidate, GpuNeed, GpuRequest, Interval, Price, SharingRules, Workload
from gpusage_hooks.units import WHOLE_PERCENT, gib

MOST_GPU_TIME = 0.8
"""The limit on a share's GPU time for a step, as a part of the whole GPU's: above it, a slowdown is not worth it."""
NO_SLOWDOWN = Interval(value=1.0, low=1.0, high=1.0)
_PARTS = {25: "a quarter of", 33: "a third of", 50: "half", 75: "three quarters of"}
_SPOKEN_WITH_A_VOWEL = re.compile(r"[aeio8]|[fhlmnrsx][0-9]|rtx|nv", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many times as long a step may take on a share: as expected, and at the pessimistic end.

    Attributes:
        serving: The workload whose promised latency the share has to keep; ``None`` where none is.
        latest_step_s: How long a step may take at the pessimistic end, by the job's deadline; ``None`` without one.
        only_slices: Whether every GPU that the job may get is a slice (MIG).
        smallest_shares: As in `Cluster`; a share must leave room for one of these. ``None`` where that does not count.
    """

    expected: float
    worst: float
    serving: Workload | None = None
    latest_step_s: float | None = None
    only_slices: bool = False
    smallest_shares: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A share of the GPU of a candidate, or the slice (MIG) that is the candidate.

    Attributes:
        request: Of the job.
        price: What it costs the job alone there, with as many threads as it books.
        threads: The same with as many as it may use, where these are more.
    """

    candidate: Candidate
    request: GpuRequest
    price: Price
    threads: Price | None = None

    @property
    def is_slice(self) -> bool:
        """Return whether it is a whole slice, which has no partners."""
        return self.share_percent == WHOLE_PERCENT

    @property
    def alone(self) -> Interval:
        """Return the step time against that on the whole GPU, while nobody else uses the GPU."""
        return (self.threads or self.price).slowdown

    @property
    def slowdown(self) -> Interval:
        """Return the step time against that on the whole GPU, beside average partners."""
        from gpusage.predictors.sharing.colocation import (
            slowdown_with_partners,  # numpy, for whoever only loads plugins
        )

        if self.is_slice:
            return self.price.slowdown

        # With more threads than its share, a job is faster alone; beside partners it is promised its share's price.
        price, partners = self.price, partners_of(self.share_percent)
        booked = slowdown_with_partners(price.slowdown_under_contention, partners, price.partner_powers)
        return replace(booked, low=self.alone.low) if self.threads else booked

    @property
    def step_time_s(self) -> Interval:
        """Return the seconds of a step, beside average partners; of a slice they are predicted as they are."""
        whole_s = self.candidate.need.step_time_s
        return whole_s if self.is_slice else product(whole_s, self.slowdown)

    @property
    def share_percent(self) -> int:
        """Return the size of the share."""
        return self.price.share_percent

    @property
    def gpu_time(self) -> float:
        """Return the GPU time of a step, alone on the share, against that of the whole GPU."""
        return self.share_percent / 100 * self.price.slowdown.value

    @property
    def needed_bytes(self) -> float:
        """Return the memory that the share or the slice has to have.

        It is what the job needs where a program sees its part as the whole GPU, of which an engine takes its own part,
        and a run that fails for want of memory is repeated unseen. Else it is what the job likely takes of a free GPU.
        A container that may start several processes needs it for each.
        """
        need, is_walled = self.candidate.need, self.is_slice or self.candidate.pool.limited_by == "wall"
        if is_walled and self.request.repeatable:
            return need.share_memory_bytes / (need.memory_share or 1.0) * self.request.process_count
        return need.certain_memory_bytes * self.request.process_count

    @property
    def cap_bytes(self) -> int:
        """Return the memory that the job may use there: the share's part of it, or the whole slice."""
        memory_bytes = self.candidate.gpu.memory_bytes
        return memory_bytes if self.is_slice else memory_cap_bytes(memory_bytes, self.share_percent)

    def has_memory(self, needed_bytes: float) -> bool:
        """Return whether the job may use *needed_bytes* there."""
        return needed_bytes <= self.cap_bytes


def limits(rules: SharingRules, accepted: float | None) -> Limits:
    """Return how much slower a job may become.

    The user's own limit replaces the site's expected limit. The distance of the pessimistic limit from 1 stays the same
    multiple of the expected limit's distance from 1.

    Args:
        rules: The site's.
        accepted: What the user wrote as ``slowdown``, at least 1; ``None`` where nothing.
    """
    if accepted is None:
        return Limits(expected=rules.maximum_slowdown, worst=rules.worst_slowdown)

    # An expected limit alone would promise what half of the jobs do not get.
    expected_excess, worst_excess = rules.maximum_slowdown - 1, rules.worst_slowdown - 1
    times = worst_excess / expected_excess if worst_excess > expected_excess > 0 else 1.0
    return Limits(expected=accepted, worst=1 + (accepted - 1) * times)


def keeps_latency(offer: Offer, serving: Workload | None) -> bool:
    """Return whether the latency that *serving* promises holds on the share, at its pessimistic end."""
    if serving is None or serving.slo is None:
        return True
    return latency_s(offer.step_time_s.high, serving) <= serving.slo.latency_s


def sizes(rules: SharingRules) -> tuple[int, ...]:
    """Return the percentages that a share may have under the site's *rules*, smallest first."""
    return tuple(sorted({size for size in rules.sizes if WHOLE_PERCENT // size <= rules.maximum_partners}))


def offers(candidates: Iterable[Candidate], request: GpuRequest, rules: SharingRules) -> Iterator[Offer]:
    """Yield the shares at each candidate that *request* may be given and that have a size of the site's."""
    for candidate in candidates:
        prices = {price.share_percent: price for price in candidate.shares}
        for size in sizes(rules):
            if size not in prices:
                continue

            # All of the threads cost nothing; a part of them is priced like a share of that size.
            threads, usable = None, thread_percent(size, rules)
            if usable == WHOLE_PERCENT:
                threads = replace(prices[size], share_percent=WHOLE_PERCENT, slowdown=NO_SLOWDOWN)
            elif usable != size:
                threads = prices.get(usable)
            yield Offer(candidate=candidate, request=request, price=prices[size], threads=threads)


def thread_percent(size: int, rules: SharingRules) -> int:
    """Return the percentage of the threads that a job with a share of *size* percent may use."""
    return {"share": size, "double": min(2 * size, WHOLE_PERCENT), "none": WHOLE_PERCENT}[rules.cap]


def priced_percents(rules: SharingRules) -> tuple[int, ...]:
    """Return every part of a GPU whose price counts: the sizes of shares, and the threads that these may use."""
    allowed = sizes(rules)
    threads = {thread_percent(size, rules) for size in allowed} - {WHOLE_PERCENT}
    return tuple(sorted({*allowed} | threads))


def partners_of(share_percent: int) -> int:
    """Return how many others of the same size fit beside a share; a large share has a smaller partner."""
    return max(100 // share_percent - 1, 1)


def need_on(offer: Offer) -> GpuNeed:
    """Return the need of the job on the share of *offer*, alone: the same work, on fewer SMs, for longer."""
    whole, slowdown = offer.candidate.need, offer.alone
    part = (offer.threads or offer.price).share_percent / WHOLE_PERCENT

    # The same work on fewer SMs keeps each of them busier, and the memory bandwidth less busy for longer.
    return replace(
        whole,
        step_time_s=product(whole.step_time_s, slowdown),
        throughput_samples_per_s=ratio(whole.throughput_samples_per_s, slowdown),
        sm_activity=clip_to_one(scaled(whole.sm_activity, 1 / (part * slowdown.value))),
        dram_activity=clip_to_one(scaled(whole.dram_activity, 1 / slowdown.value)),
        fits=offer.has_memory(offer.needed_bytes),
        share_percent=offer.share_percent,
        slowdown=slowdown,
    )


def need_alone(need: GpuNeed) -> GpuNeed:
    """Return the need on the whole GPU of a job with *need* on a share; `need_on` the other way."""
    if need.share_percent == WHOLE_PERCENT:
        return need

    slowdown, part = need.slowdown, need.share_percent / WHOLE_PERCENT
    return replace(
        need,
        step_time_s=other_factor(need.step_time_s, slowdown),
        throughput_samples_per_s=product(need.throughput_samples_per_s, slowdown),
        sm_activity=clip_to_one(scaled(need.sm_activity, part * slowdown.value)),
        dram_activity=clip_to_one(scaled(need.dram_activity, slowdown.value)),
        share_percent=WHOLE_PERCENT,
        slowdown=NO_SLOWDOWN,
    )


def can_promise(offer: Offer, within: Limits) -> bool:
    """Return whether *offer* can be promised *within* the limits; an offer with NaN never can."""
    is_possible = (
        not why_unlimited(offer.candidate.gpu)
        and offer.candidate.need.familiar
        and offer.has_memory(offer.needed_bytes)
        and (offer.is_slice or offer.gpu_time <= MOST_GPU_TIME)  # a slice is there whether it is used or not
    )

    # Beside a share of at most half of a GPU there is room for another like it.
    smallest = within.smallest_shares
    if smallest is not None and not offer.is_slice and 2 * offer.share_percent > WHOLE_PERCENT:
        anywhere = smallest.get("", WHOLE_PERCENT)
        partner = min(anywhere, smallest.get(offer.candidate.name, anywhere))
        is_possible = is_possible and offer.share_percent + partner <= WHOLE_PERCENT

    # Alone first, which is quicker to compute: nothing is faster beside partners.
    if not is_possible or not is_within(offer.price.slowdown, within) or not is_within(offer.slowdown, within):
        return False
    is_in_time = within.latest_step_s is None or offer.step_time_s.high <= within.latest_step_s
    return is_in_time and keeps_latency(offer, within.serving)


def is_within(slowdown: Interval, within: Limits) -> bool:
    """Return whether *slowdown* is accepted, at both of its ends; NaN never is."""
    return slowdown.value <= within.expected and slowdown.high <= within.worst


def trouble(offer: Offer, within: Limits) -> str:
    """Return why *offer* cannot be promised *within* the limits, as a clause; empty where it can."""
    if can_promise(offer, within):
        return ""

    gpu, slowdown, company = offer.candidate.gpu, offer.slowdown, "" if offer.is_slice else " beside partners"
    if why_unlimited(gpu):
        return f"is not offered: MPS cannot hold a job to its share there ({why_unlimited(gpu)})"
    if not offer.candidate.need.familiar:
        return "is not offered: the workload is unlike those that the prediction was fitted on"
    if not offer.has_memory(offer.needed_bytes):
        whose = "its" if offer.is_slice else "its part of the"
        need = offer.candidate.need
        verb, most_bytes = "need", need.share_memory_bytes
        if need.memory_share and offer.needed_bytes == most_bytes / need.memory_share:
            whose = f"{need.memory_share:g} of {whose}"
        elif offer.has_memory(most_bytes):
            verb, most_bytes = "take", offer.needed_bytes
        count = offer.request.process_count
        hint = f", with {count} processes in a container: write processes=1 if it has one" if count > 1 else ""
        return f"may {verb} up to {gib(most_bytes)}, more than {whose} memory{hint}"

    if not slowdown.value <= within.expected:
        return f"would cost {percent(slowdown.value)}{company}, more than {percent(within.expected)}"
    if not slowdown.high <= within.worst:
        return f"may cost up to {percent(slowdown.high)}{company}, more than {percent(within.worst)}"
    if not keeps_latency(offer, within.serving):
        return f"might break the promised latency{company}"
    if within.latest_step_s is not None and offer.step_time_s.high > within.latest_step_s:
        return f"might end after its deadline{company}"
    if offer.is_slice or offer.gpu_time <= MOST_GPU_TIME:
        return (
            f"would stand alone on its GPU: none of the site's jobs shares with {WHOLE_PERCENT - offer.share_percent} %"
        )
    return f"would save too little: {100 * offer.gpu_time:.0f} % of a whole GPU's time per step"


def part_of(share_percent: int, gpu: str) -> str:
    """Return a share in words: ``half a v100``, ``a third of an h100``, ``40 % of a t4``."""
    part = _PARTS.get(share_percent, f"{share_percent} % of")
    return f"{part} {'an' if _SPOKEN_WITH_A_VOWEL.match(gpu) else 'a'} {gpu}"


def cost(slowdown: Interval) -> str:
    """Return a slowdown in percent, with its interval: ``9 % (3-18)``."""
    low, high = (percent(end).removesuffix(" %") for end in (slowdown.low, slowdown.high))
    return f"{percent(slowdown.value)} ({low}-{high})"


def percent(slowdown: float) -> str:
    """Return a slowdown in percent, for people: ``9 %`` for 1.09."""
    return f"{100 * (slowdown - 1):.0f} %" if math.isfinite(slowdown) else "unknown %"
