"""Jobs that ask for a part of a GPU themselves: they get it under every policy, as gpusage keeps such requests.

The part is booked as a workload manager books it: nothing limits the job's threads or its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from gpusage_hooks.units import WHOLE_PERCENT
from gpusage_planning.simulator.contract import Demand, JobRequest, Online, Policy
from gpusage_planning.simulator.jobs import Kind


def with_requested_shares(policy: Policy, kinds: Sequence[Kind]) -> Policy:
    """Return *policy*, which decides for all jobs of *kinds* but those that ask for a part of a GPU."""
    shares = [kind.share_percent for kind in kinds]
    if min(shares) == WHOLE_PERCENT:
        return policy
    wrapper = _OnlineRequestedShares if isinstance(policy, Online) else _RequestedShares
    return cast("Policy", wrapper(policy, shares))  # the rest of a policy is found by __getattr__


class _RequestedShares:
    """A policy with shares that it does not decide."""

    def __init__(self, policy: Policy, shares: Sequence[int]) -> None:
        self._policy, self._shares = policy, shares
        self.most_per_gpu = max(policy.most_per_gpu, WHOLE_PERCENT // min(shares))

    def __getattr__(self, name: str) -> Any:  # the policy's own
        return getattr(self._policy, name)

    def demand(self, ask: JobRequest) -> Demand:
        """Return the part that the job asks for, on the policy's GPU types; a whole GPU once its memory did not do."""
        decided, percent = self._policy.demand(ask), self._shares[ask.kind]
        if percent == WHOLE_PERCENT or ask.stage == "rescued":
            return decided
        return Demand(types=decided.types, share_percent=percent, alone=False)

    def cost(self, gpu_type: int, tenants: Sequence[JobRequest], newcomer: JobRequest) -> float | None:
        """Return what is left of the GPU where one of the jobs asks for a part: the fullest that has room is taken."""
        together = (*tenants, newcomer)
        if all(self._shares[one.kind] == WHOLE_PERCENT for one in together):
            is_full = len(tenants) >= self._policy.most_per_gpu
            return None if is_full else self._policy.cost(gpu_type, tenants, newcomer)
        booked = sum(self.demand(one).share_percent for one in together)
        return None if booked > WHOLE_PERCENT else float(WHOLE_PERCENT - booked)


class _OnlineRequestedShares(_RequestedShares):
    """The same of a policy that looks at the cluster when a job comes."""

    def arriving(self, ask: JobRequest, free_counts: Sequence[int]) -> JobRequest:
        """Return the job as the policy would have it wait."""
        return cast("Online", self._policy).arriving(ask, free_counts)
