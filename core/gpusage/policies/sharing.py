"""What part of a GPU is enough, by the site's rule; each rule is a module of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from gpusage.policies.deadline import UNKNOWN_LENGTH, latest_step_s
from gpusage.policies.shares import by_activity, by_price, by_utilization
from gpusage.policies.shares.landing import keep_whole_gpu
from gpusage_hooks.types import Decision, PolicyInput, SharingRule

RULES: Mapping[SharingRule, Callable[[PolicyInput, Decision], Decision]] = MappingProxyType(
    {"price": by_price.decide, "utilization": by_utilization.decide, "activity": by_activity.decide}
)


def decide_sharing(case: PolicyInput, draft: Decision) -> Decision | None:
    """Put a part of a GPU in place of the whole one where the site's rule says that it is enough."""
    rules = case.rules.sharing
    if not rules.enabled or draft.request.gpu_count != 1:
        return None
    if case.request.deadline_s is not None and latest_step_s(case) is None:
        return keep_whole_gpu(draft, UNKNOWN_LENGTH, __name__)
    if case.request.deadline_s is not None and rules.rule != "price":
        return keep_whole_gpu(
            draft, f"it has a deadline, and the rule {rules.rule} predicts no share's speed", __name__
        )
    return RULES[rules.rule](case, draft)
