"""A slice of a GPU (MIG) in place of the whole one: it is isolated, and has no partners.

Invariants:

1. A slice is taken only where the whole of the job's memory fits, at the pessimistic end, and its price is accepted.
2. A slice confines the job to its type, so what holds of binding (`gpusage.policies.shares.choice`) holds here.
3. A type that the user named is never changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpusage.policies.place import admitted
from gpusage.policies.shares.choice import Reach, could_run_on, is_fast, may_bind
from gpusage.policies.shares.price import Limits, Offer, can_promise
from gpusage_hooks.types import Binding, PolicyInput, Price
from gpusage_hooks.units import WHOLE_PERCENT


def slice_offers(case: PolicyInput) -> Iterator[Offer]:
    """Yield the slices that the job of *case* may use, each whole."""
    for place in admitted(case) if case.request.gpu_type is None else ():
        if place.gpu.parent_gpu is not None:
            price = Price(gpu=place.gpu.name, share_percent=WHOLE_PERCENT, slowdown=place.need.slowdown)
            yield Offer(place=place, request=case.request, price=price)


def choose_slice(offers: Sequence[Offer], reach: Reach, within: Limits, bind: Binding) -> Offer | None:
    """Return the slice with the least SM time for a step of those that may be promised; ``None`` where none may."""
    possible = [
        offer
        for offer in offers
        if can_promise(offer, within)
        and could_run_on(offer.place, reach)
        and is_fast(offer, reach, within)
        and may_bind([offer], reach, bind)
    ]
    return min(possible, key=lambda offer: offer.place.gpu.sm_count * offer.step_time_s.value, default=None)
