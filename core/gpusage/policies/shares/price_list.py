"""What each share of each GPU type would cost a job, and why it was chosen or not, for people who want to know."""

from __future__ import annotations

from dataclasses import dataclass

from gpusage.policies.shares.by_price import limits_of, offered_shares
from gpusage.policies.shares.choice import slice_offers
from gpusage.policies.shares.price import Offer, trouble
from gpusage_hooks.types import Decision, Interval, PolicyInput
from gpusage_hooks.units import WHOLE_PERCENT


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePrice:
    """What one share of one GPU type would cost a job.

    Attributes:
        gpu: The site's own name of the type.
        share_percent: 100 for a slice (MIG), which is offered whole.
        slowdown: The step time against that on the whole GPU, alone on the share.
        slowdown_with_partners: The same beside average partners, which is what limits hold for.
        taken: Whether the job gets this share.
        reason: Why it does not; empty where it does.
    """

    gpu: str
    share_percent: int
    slowdown: Interval
    slowdown_with_partners: Interval
    taken: bool
    reason: str


def price_list(case: PolicyInput, decision: Decision) -> tuple[SharePrice, ...]:
    """Return the price of each slice and share that *decision*, made on *case*, had to choose from."""
    if case.rules.sharing.rule != "price":
        return ()
    return tuple(_price_of_offer(offer, case, decision) for offer in (*slice_offers(case), *offered_shares(case)))


def _price_of_offer(offer: Offer, case: PolicyInput, decision: Decision) -> SharePrice:
    request, name = decision.request, offer.place.name
    landing = not request.bound_types or name in request.bound_types
    size = WHOLE_PERCENT if request.slice_type else request.mps_thread_percent
    taken = size == offer.share_percent and landing
    return SharePrice(
        gpu=name,
        share_percent=offer.share_percent,
        slowdown=offer.alone,
        slowdown_with_partners=offer.slowdown,
        taken=taken,
        reason="" if taken else trouble(offer, limits_of(case)) or _not_chosen_reason(decision),
    )


def _not_chosen_reason(decision: Decision) -> str:
    """Return why a share was not chosen although it could have been promised."""
    if decision.request.slice_type:
        return "is enough, but a slice has no partners, or takes less GPU time"
    if decision.request.mps_thread_percent is not None:
        return "is enough, but another share takes less GPU time"
    return "is enough here, but " + (decision.reasons[-1] if decision.reasons else "nothing is changed")
