"""The rule ``price``: the share with the least GPU time whose predicted slowdown stays within what was promised.

A slice (MIG) for which the same holds is taken before any share: it is isolated, and has no partners.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpusage.policies.deadline import latest_step_s
from gpusage.policies.place import admitted_candidates, step_time_s, type_names, unknown_pools
from gpusage.policies.shares import landing
from gpusage.policies.shares.choice import Choice, Reach, can_bind, choose, choose_slice, is_fast, slice_offers
from gpusage.policies.shares.landing import NO_GPU, shared_places, unshared_reason
from gpusage.policies.shares.price import Limits, Offer, can_promise, limits, need_on, offers, sizes, trouble
from gpusage.policies.wording import cost, part_of, percent
from gpusage_hooks.types import Cluster, Decision, GpuRequest, PolicyInput, SharingRules, Workload


def decide(case: PolicyInput, draft: Decision) -> Decision:
    """Put the cheapest share in place of the whole GPU, or say why none can be promised."""
    within, reach = limits_of(case), _reach(case, draft)
    sliced = choose_slice([*slice_offers(case)], reach, within, case.rules.sharing.bind)
    if sliced:
        return _on_slice(draft, sliced, within, case)
    obstacle = _obstacle(case.cluster, case.rules.sharing, within)
    if obstacle:
        return keep_whole_gpu(draft, obstacle)
    offered = offered_shares(case)
    if not offered:
        return keep_whole_gpu(draft, NO_GPU)
    choice = choose(offered, reach, within, case.rules.sharing.bind)
    if choice is None:
        return keep_whole_gpu(draft, _why_not(offered, reach, within, case))
    return _decide_share(draft, choice, within, case)


def may_share(request: GpuRequest, workload: Workload, cluster: Cluster, rules: SharingRules) -> bool:
    """Return whether a share comes into question at all, so that prices are worth predicting."""
    ours = rules.enabled and rules.rule == "price" and request.gpu_count == 1 and not request.obstacles
    return ours and _obstacle(cluster, rules, limits(rules, workload.slowdown)) is None


def offered_shares(case: PolicyInput) -> tuple[Offer, ...]:
    """Return every share of a size of the site's, on each place that can be shared."""
    return tuple(offers(shared_places(case), case.request, case.rules.sharing))


def limits_of(case: PolicyInput) -> Limits:
    """Return how much slower a share may make the job of *case*."""
    serving = case.workload if case.rules.slo.enabled and case.workload.mode == "infer" else None
    within = limits(case.rules.sharing, case.workload.slowdown)
    return replace(within, serving=serving, latest_step_s=latest_step_s(case))


def keep_whole_gpu(draft: Decision, reason: str) -> Decision:
    """Return *draft* with the reason why a whole GPU is kept."""
    return landing.keep_whole_gpu(draft, reason, __name__)


def _obstacle(cluster: Cluster, rules: SharingRules, within: Limits) -> str | None:
    """Return why no share can be asked for, whatever it costs."""
    if cluster.unshared:
        return unshared_reason(cluster)
    if within.expected <= 1:
        return "no slowdown is accepted"
    if not sizes(rules):
        return "the site's rules allow no size of a share"
    if not any(pool.mps_per_gpu for pool in cluster.pools):
        return NO_GPU
    return None


def _reach(case: PolicyInput, draft: Decision) -> Reach:
    """Return where the job may run, and how fast it would run there without a share."""
    where = admitted_candidates(case)
    default = case.cluster.default_partition
    wished = [place for place in where if place.name in draft.request.preferred_gpus]
    fitting = [place for place in where if place.need.fits]
    usual = wished or [place for place in fitting if place.gpu.parent_gpu is None] or fitting or where
    return Reach(
        request=case.request,
        partitions=case.request.partitions or ((default,) if default else ()),
        places=where,
        closed=not any(pool.mps_per_gpu for pool in unknown_pools(case)),
        usual_s=max(map(step_time_s, usual), default=0.0),
        releases=case.cluster.releases,
    )


def _decide_share(draft: Decision, choice: Choice, within: Limits, case: PolicyInput) -> Decision:
    most_expensive, shown = _most_expensive(choice.offers), _displayed_offer(choice, draft)
    where = [offer.place for offer in choice.offers]
    types = tuple(dict.fromkeys(place.name for place in where))
    request = replace(
        draft.request,
        gpu_count=0,
        mps_thread_percent=choice.share_percent,
        thread_cap_percent=choice.thread_cap_percent,
        memory_cap_bytes=choice.cap_bytes,
        preferred_gpus=() if choice.binding else draft.request.preferred_gpus,
        required_gpus=types if choice.binding else draft.request.required_gpus,
    )
    reasons = [] if choice.binding else [*draft.reasons]
    price = cost(most_expensive.slowdown)
    there = "" if price == cost(shown.slowdown) else f" on {most_expensive.place.name}"
    reasons += [f"beside partners {price}{there}, {_accepted_slowdown(within)}"]
    if choice.thread_cap_percent:
        reasons += [f"{choice.thread_cap_percent} % of the threads where partners leave them"]
    reasons += [known] if (known := _describe_solo_run(case)) else []
    reasons += [f"bound to {type_names(where)}, where that holds"] if choice.binding else []
    return replace(draft, request=request, reasons=tuple(reasons), plugin=__name__, need=need_on(shown))


def _displayed_offer(choice: Choice, draft: Decision) -> Offer:
    """Return the offer whose price the user reads first: of the GPU type to try first, else the most expensive."""
    preferred = () if choice.binding else draft.request.preferred_gpus
    named = {offer.place.name: offer for offer in choice.offers}
    return next((named[name] for name in preferred if name in named), _most_expensive(choice.offers))


def _most_expensive(offers: Sequence[Offer]) -> Offer:
    return max(offers, key=lambda offer: offer.slowdown.value)


def _on_slice(draft: Decision, offer: Offer, within: Limits, case: PolicyInput) -> Decision:
    place = offer.place
    request = replace(draft.request, preferred_gpus=(), required_gpus=(), slice_type=place.name)
    reasons = [f"a slice that shares nothing costs {cost(offer.slowdown)}, {_accepted_slowdown(within)}"]
    reasons += [known] if (known := _describe_solo_run(case)) else []
    return replace(draft, request=request, reasons=tuple(reasons), plugin=__name__, need=place.need)


def _accepted_slowdown(within: Limits) -> str:
    return f"at most {percent(within.expected)} is accepted, {percent(within.worst)} at worst"


def _describe_solo_run(case: PolicyInput) -> str:
    """Return what the user stated about a run alone, if that counted."""
    alone = case.workload.alone
    if alone.utilization is not None:
        at = f" at batch {alone.batch_size}" if alone.batch_size else ""
        return f"by the known GPU utilization, {100 * alone.utilization:.0f} %{at}"
    if alone.step_time_s is not None and any(place.known.step_time_s for place in case.places):
        return f"by the known step time, {1000 * alone.step_time_s:.3g} ms on {alone.gpu}"
    return ""


def _why_not(offered: Sequence[Offer], reach: Reach, within: Limits, case: PolicyInput) -> str:
    """Return why none of the shares is taken, by the one that came closest."""
    holding = [offer for offer in offered if can_promise(offer, within)]
    if not holding:
        unpromised = replace(within, serving=None)
        nearest = min(offered, key=lambda offer: _distance(offer, unpromised))
        return f"{_share_name(nearest)} {trouble(nearest, within)}"
    best = min(holding, key=lambda offer: offer.gpu_time)
    return f"{_share_name(best)} would be enough, {_unbound(best, reach, within, case)}"


def _unbound(best: Offer, reach: Reach, within: Limits, case: PolicyInput) -> str:
    """Return what keeps the job from being confined to the place of its best offer, and why it would have to be."""
    others = [place for place in reach.places if place.name != best.place.name]
    why = f"but it does not hold on {type_names(others)}" if others else "but it could land elsewhere"
    if case.rules.sharing.bind == "never":
        return f"{why}, and the site binds no job to a GPU type"
    if not is_fast(best, reach, within):
        return f"{why}, which {'is' if len(others) == 1 else 'are'} faster"
    if not can_bind(best.place, reach):
        return f"{why}, and the job cannot be bound to {best.place.name}"
    if not reach.releases:
        return f"{why}, and a job that is bound to {best.place.name} could not be released when it fills"
    return f"{why}, and {best.place.name} has no room now"


def _share_name(offer: Offer) -> str:
    return part_of(offer.share_percent, offer.place.name)


def _distance(offer: Offer, within: Limits) -> tuple[bool, bool, float]:
    """Order refused shares: first those refused for a promise alone, then those that cost too much, the cheapest first.

    *within* has no promise.
    """
    too_dear = not (offer.slowdown.value <= within.expected and offer.slowdown.high <= within.worst)
    priced = too_dear and offer.has_memory(offer.needed_bytes)
    return not can_promise(offer, within), not priced, offer.slowdown.value
