"""The stage ``sharing``: the share with the least GPU time whose predicted slowdown stays within the limits.

A slice (MIG) within the same limits is preferred to any share: it is isolated, and has no partners. `price_list` says
for people what each share would cost, and why the job gets another one or none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpusage.policies.candidates import (
    admitted_candidates,
    if_shared,
    partitions_of,
    step_time_s,
    type_names,
    unknown_pools,
    without_whole_gpus,
)
from gpusage.policies.preference import UNKNOWN_LENGTH, latest_step_s
from gpusage.policies.share_choice import (
    Choice,
    Reach,
    can_bind,
    choose,
    choose_slice,
    is_fast,
    larger_types,
    slice_offers,
)
from gpusage.policies.share_price import (
    Limits,
    Offer,
    can_promise,
    cost,
    is_within,
    limits,
    need_on,
    offers,
    part_of,
    percent,
    sizes,
    trouble,
)
from gpusage.store.annotation import EXCLUDES
from gpusage_hooks.types import (
    Binding,
    Cluster,
    Decision,
    GpuRequest,
    Interval,
    PolicyInput,
    SharingRules,
    Workload,
)
from gpusage_hooks.units import WHOLE_PERCENT

NO_GPU = "no GPU that it may use can be shared"


def decide_sharing(policy_input: PolicyInput, draft: Decision) -> Decision | None:
    """Put the cheapest share in place of the whole GPU, or say why none can be promised."""
    request, rules = policy_input.request, policy_input.rules.sharing
    if not rules.enabled or draft.request.gpu_count != 1:
        return None

    within, reach = limits_of(policy_input), _reach(policy_input, draft)
    required = draft.request.required_gpus
    without = "a whole GPU is kept"
    for candidate in admitted_candidates(policy_input):
        if candidate.gpu.parent_gpu is not None and (not required or candidate.name in required):
            without = "no slice is chosen" if within.only_slices else "no share is given"
    # A share makes the job slower. Without the number of steps nobody knows whether it still ends in time.
    if request.deadline_s is not None and latest_step_s(policy_input) is None:
        return _keep(draft, f"{without}: {UNKNOWN_LENGTH}")

    # A slice is isolated and cut already, so it need save no GPU time to be the better choice. Where all are slices of
    # one kind, there is none.
    slices = [*slice_offers(policy_input)]
    has_choice = not within.only_slices or len({offer.candidate.name for offer in slices}) > 1
    chosen_slice = choose_slice(slices, reach, within, rules.bind, smallest=within.only_slices) if has_choice else None
    if chosen_slice:
        candidate = chosen_slice.candidate
        request = replace(
            draft.request,
            preferred_gpus=larger_types(candidate, draft.request.preferred_gpus, policy_input),
            required_gpus=(),
            slice_type=candidate.name,
            memory_cap_bytes=chosen_slice.cap_bytes,
            repeatable=chosen_slice.request.repeatable,
        )
        reasons = _exclusions(draft)
        if within.only_slices:
            reasons += ["the smallest slice with room that holds it, of the slices that it may use"]
        else:
            price = f"costs {cost(chosen_slice.slowdown)}, {_accepted_slowdown(within)}"
            reasons += [f"a slice that shares nothing {price}"]
        reasons += _solo_run_reasons(policy_input)
        return replace(draft, request=request, reasons=tuple(reasons), plugin=__name__, need=candidate.need)

    if within.only_slices:
        return _keep(draft, f"{without}: {_why_no_slice(slices, within, policy_input)}")

    obstacle = _obstacle(policy_input.cluster, rules, within)
    if obstacle:
        return _keep(draft, f"{without}: {obstacle}")

    offered = offered_shares(policy_input)
    if not offered:
        return _keep_unshared(draft, without, policy_input, within)
    choice = choose(offered, reach, within, rules.bind)
    if choice is None:
        return _keep(draft, f"{without}: {_why_not(offered, reach, within, policy_input)}")
    return _on_share(draft, choice, within, policy_input)


def may_share(request: GpuRequest, workload: Workload, cluster: Cluster, rules: SharingRules) -> bool:
    """Return whether a share comes into question at all, so that prices are worth predicting."""
    is_shareable = rules.enabled and request.gpu_count == 1 and not request.obstacles
    return is_shareable and _obstacle(cluster, rules, limits(rules, workload.slowdown)) is None


def offered_shares(policy_input: PolicyInput) -> tuple[Offer, ...]:
    """Return every share of a size of the site's, on each candidate that can be shared; a slice is given whole."""
    shareable = [
        candidate
        for candidate in admitted_candidates(policy_input)
        if candidate.pool.mps_per_gpu and candidate.gpu.parent_gpu is None
    ]
    return tuple(offers(shareable, policy_input.request, policy_input.rules.sharing))


def limits_of(policy_input: PolicyInput) -> Limits:
    """Return how much slower a share may make the job of *policy_input*."""
    workload, rules = policy_input.workload, policy_input.rules
    serving = workload if rules.slo.enabled and workload.mode == "infer" else None
    within, only_slices = limits(rules.sharing, workload.slowdown), without_whole_gpus(policy_input)
    if workload.slowdown is None and only_slices:
        within = Limits(expected=math.inf, worst=math.inf)  # no GPU that it could have is one to compare with
    # A site with no history is judged by what it offers.
    smallest = policy_input.cluster.smallest_shares or {"": min(sizes(rules.sharing), default=WHOLE_PERCENT)}
    within = replace(within, only_slices=only_slices, smallest_shares=smallest)
    return replace(within, serving=serving, latest_step_s=latest_step_s(policy_input))


def _keep(draft: Decision, reason: str) -> Decision:
    return replace(draft, reasons=(*draft.reasons, reason), plugin=__name__)


def _exclusions(draft: Decision) -> list[str]:
    """Return the reason that the job of *draft* is kept off GPU types, if it is."""
    return [reason for reason in draft.reasons if reason.startswith(EXCLUDES)]


def _why_no_slice(slices: Sequence[Offer], within: Limits, policy_input: PolicyInput) -> str:
    """Return why the job gets none of *slices*, where it may use nothing else."""
    names = type_names(admitted_candidates(policy_input))
    if "," not in names:
        return f"every GPU that it may use is of one type, {names}"
    troubles = [trouble(offer, within) for offer in slices]
    if not slices or not all(troubles):
        return "gpusage gives it no slice" if not slices else "no slice that holds it has room now"
    return f"{slices[-1].candidate.name} {troubles[-1]}"


def _keep_unshared(draft: Decision, without: str, policy_input: PolicyInput, within: Limits) -> Decision:
    """Return *draft*, whose GPUs cannot be shared, with the share that would be enough if they could."""
    shared = if_shared(policy_input)
    # Where jobs would go then does not count here, so a share may confine this one to the types that suit it.
    bind: Binding = "never" if policy_input.rules.sharing.bind == "never" else "always"
    offered, reach = offered_shares(shared), _reach(shared, draft)
    choice = choose(offered, reach, within, bind)
    if choice is None:
        why_not = f"; if shared, {_why_not(offered, reach, within, shared)}" if offered else ""
        return _keep(draft, f"{without}: {NO_GPU}{why_not}")

    highest = max(choice.offers, key=lambda offer: offer.slowdown.value)
    part = part_of(choice.share_percent, type_names(offer.candidate for offer in choice.offers).replace(", ", " or "))
    enough = f"if shared, {part} would do, beside partners {cost(highest.slowdown)}"
    # Shards are counted and limit nothing, so no request is rewritten into them.
    if shards := highest.candidate.pool.shards_per_gpu:
        count = -(-choice.share_percent * shards // WHOLE_PERCENT)
        enough += f"; shard:{count} of {shards} would hold it, and nothing limits it"
    prices = tuple(replace(each.price, slowdown=each.slowdown, contended_slowdown=None) for each in choice.offers)
    return replace(_keep(draft, f"{without}: {NO_GPU}; {enough}"), if_shared=prices)


def _obstacle(cluster: Cluster, rules: SharingRules, within: Limits) -> str | None:
    """Return why no share can be requested, whatever it costs; ``None`` where nothing is in the way."""
    if cluster.unshared:  # the site's own reasons; several partitions may have the same one
        return "; ".join(dict.fromkeys(cluster.unshared.values()))

    if within.expected <= 1:
        return "no slowdown is accepted"
    if not sizes(rules):
        return "the site's rules allow no size of a share"
    if not any(pool.gpu for pool in cluster.pools):
        return NO_GPU
    return None


def _reach(policy_input: PolicyInput, draft: Decision) -> Reach:
    """Return the candidates of the job, and how fast it would run there without a share."""
    request, cluster = policy_input.request, policy_input.cluster
    candidates = admitted_candidates(policy_input)

    # Without a share the job would get a GPU that it prefers, else any whole one that it fits on. A slice is the
    # last resort: a manager gives it only to jobs that name it.
    preferred = [candidate for candidate in candidates if candidate.name in draft.request.preferred_gpus]
    fitting = [candidate for candidate in candidates if candidate.need.fits]
    whole = [candidate for candidate in fitting if candidate.gpu.parent_gpu is None]
    usual = preferred or whole or fitting or candidates

    return Reach(
        request=request,
        partitions=partitions_of(policy_input),
        candidates=candidates,
        closed=not any(pool.mps_per_gpu for pool in unknown_pools(policy_input)),
        usual_s=max(map(step_time_s, usual), default=0.0),
        releases=cluster.releases,
    )


def _on_share(draft: Decision, choice: Choice, within: Limits, policy_input: PolicyInput) -> Decision:
    """Return *draft* with the share of *choice* in place of the whole GPU."""
    candidates = [offer.candidate for offer in choice.offers]
    request = replace(
        draft.request,
        gpu_count=0,
        mps_thread_percent=choice.share_percent,
        thread_cap_percent=choice.thread_cap_percent,
        memory_cap_bytes=choice.cap_bytes,
    )
    if choice.binding:
        types = tuple(dict.fromkeys(candidate.name for candidate in candidates))
        request = replace(request, preferred_gpus=(), required_gpus=types)

    # The user reads the price on the GPU type to try first; where the job has no such type, the highest price.
    highest = max(choice.offers, key=lambda offer: offer.slowdown.value)
    by_name = {offer.candidate.name: offer for offer in choice.offers}
    shown = next((by_name[name] for name in request.preferred_gpus if name in by_name), highest)

    price = cost(highest.slowdown)
    there = "" if price == cost(shown.slowdown) else f" on {highest.candidate.name}"
    reasons = _exclusions(draft) if choice.binding else [*draft.reasons]
    reasons += [f"beside partners {price}{there}, {_accepted_slowdown(within)}"]
    if choice.thread_cap_percent:
        reasons += [f"{choice.thread_cap_percent} % of the threads where partners leave them"]
    reasons += _solo_run_reasons(policy_input)
    if choice.binding:
        reasons += [f"bound to {type_names(candidates)}, where that holds"]
    draft = replace(draft, need=need_on(shown), slowdown_with_partners=highest.slowdown)
    return replace(draft, request=request, reasons=tuple(reasons), plugin=__name__)


def _accepted_slowdown(within: Limits) -> str:
    return f"at most {percent(within.expected)} is accepted, {percent(within.worst)} at worst"


def _solo_run_reasons(policy_input: PolicyInput) -> list[str]:
    """Return the user's own figure of a run alone, if that counted."""
    alone = policy_input.workload.alone
    batch_size = alone.step_batch_size if alone.utilization is None else alone.batch_size
    at = f" at batch {batch_size}" if batch_size else ""
    if alone.utilization is not None:
        return [f"by the known GPU utilization, {100 * alone.utilization:.0f} %{at}"]
    if alone.step_time_s is not None and any(candidate.known.step_time_s for candidate in policy_input.candidates):
        return [f"by the known step time, {1000 * alone.step_time_s:.3g} ms on {alone.gpu}{at}"]
    return []


def _why_not(offered: Sequence[Offer], reach: Reach, within: Limits, policy_input: PolicyInput) -> str:
    """Return why none of the shares is taken, by the share that came closest."""
    promised = [offer for offer in offered if can_promise(offer, within)]
    if not promised:
        # Nearest are those refused for a latency or a partner alone, then those that cost too much, the cheapest first.
        unpromised = replace(within, serving=None, smallest_shares=None)
        nearest = min(
            offered,
            key=lambda offer: (
                not can_promise(offer, unpromised),
                is_within(offer.slowdown, within) or not offer.has_memory(offer.needed_bytes),
                offer.slowdown.value,
            ),
        )
        option = _engine_option(offered, reach, within, policy_input)
        return f"{part_of(nearest.share_percent, nearest.candidate.name)} {trouble(nearest, within)}{option}"

    # One share is good enough on its own GPU type, but the job cannot be confined to that type.
    best = min(promised, key=lambda offer: offer.gpu_time)
    name = best.candidate.name
    others = [candidate for candidate in reach.candidates if candidate.name != name]
    why = f"it does not hold on {type_names(others)}" if others else "it could land elsewhere"
    if policy_input.rules.sharing.bind == "never":
        why += ", and the site binds no job to a GPU type"
    elif not is_fast(best, reach, within):
        why += f", which {'is' if len(others) == 1 else 'are'} faster"
    elif not can_bind(best.candidate, reach):
        why += f", and the job cannot be bound to {name}"
    elif not reach.releases:
        why += f", and a job that is bound to {name} could not be released when it fills"
    else:
        why += f", and {name} has no room now"
    return f"{part_of(best.share_percent, name)} would be enough, but {why}"


def _engine_option(offered: Sequence[Offer], reach: Reach, within: Limits, policy_input: PolicyInput) -> str:
    """Return with which option an engine would fit a share without a wall, as a clause; empty where none would."""
    from gpusage.predictors.memory.peak import context_of  # numpy, for whoever only loads plugins
    from gpusage.predictors.times.step_time import ENGINES

    rules = ENGINES.get(policy_input.workload.engine)
    if rules is None or not rules.memory_option:
        return ""

    # Told to take no more than its part, an engine needs what it needs behind a wall, where it sees its part alone.
    walled = [
        replace(
            offer,
            request=replace(offer.request, repeatable=True),
            candidate=replace(
                offer.candidate,
                pool=replace(offer.candidate.pool, limited_by="wall"),
                need=replace(offer.candidate.need, memory_share=None),
            ),
        )
        for offer in offered
    ]
    choice = choose(walled, reach, within, policy_input.rules.sharing.bind)
    if choice is None:
        return ""

    # An engine's option leaves out the CUDA context, which counts in a part.
    gpus = [offer.candidate.gpu for offer in choice.offers]
    percent = min(100 * (choice.cap_bytes - context_of(gpu).high) // gpu.memory_bytes for gpu in gpus)
    where = part_of(choice.share_percent, choice.offers[0].candidate.name)
    return f"; {where} would do with {rules.memory_option} {percent / 100:g} and memory_share={percent / 100:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePrice:
    """The price of a share of a GPU type for a job.

    Attributes:
        gpu: The site's own name of the type.
        share_percent: 100 for a slice (MIG), which is offered whole.
        slowdown: The step time against that on the whole GPU, alone on the share.
        slowdown_with_partners: The same beside average partners, for which limits hold.
        taken: Whether the job gets this share.
        reason: Why it does not; empty where it does.
    """

    gpu: str
    share_percent: int
    slowdown: Interval
    slowdown_with_partners: Interval
    taken: bool
    reason: str


def price_list(policy_input: PolicyInput, decision: Decision) -> tuple[SharePrice, ...]:
    """Return the price of each slice and share that *decision*, made on *policy_input*, had to choose from."""
    request = decision.request
    if policy_input.request.gpu_count > 1:
        return ()
    size = WHOLE_PERCENT if request.slice_type else request.mps_thread_percent
    within = limits_of(policy_input)

    # The reason of each share that could have been promised, and is not the one.
    if within.only_slices:
        not_chosen = "is enough, but a smaller one is, too" if request.slice_type else "is enough"
    elif request.slice_type:
        not_chosen = "is enough, but a slice has no partners, or takes less GPU time"
    elif request.mps_thread_percent is not None:
        not_chosen = "is enough, but another share takes less GPU time"
    elif decision.if_shared:
        not_chosen = "would be enough, if it were shared"
    else:
        not_chosen = "is enough here, but " + (decision.reasons[-1] if decision.reasons else "nothing is changed")

    prices = []
    # Where none can be shared, prices are those that shares would have.
    shares = offered_shares(policy_input) or offered_shares(if_shared(policy_input))
    for offer in (*slice_offers(policy_input), *shares):
        name = offer.candidate.name
        is_taken = size == offer.share_percent and (not request.bound_types or name in request.bound_types)
        prices.append(
            SharePrice(
                gpu=name,
                share_percent=offer.share_percent,
                slowdown=offer.alone,
                slowdown_with_partners=offer.slowdown,
                taken=is_taken,
                reason="" if is_taken else trouble(offer, within) or not_chosen,
            )
        )
    return tuple(prices)
