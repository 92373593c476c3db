"""The policies that gpusage comes with, one for each stage of a decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from gpusage.policies.deadline import decide_deadline
from gpusage.policies.eligibility import decide_eligibility
from gpusage.policies.fit import decide_fit
from gpusage.policies.generation import decide_generation
from gpusage.policies.sharing import decide_sharing
from gpusage.policies.slo import decide_slo
from gpusage.policies.veto import decide_veto
from gpusage_hooks import hookimpl
from gpusage_hooks.types import Decision, PolicyInput, Stage

Policy = Callable[[PolicyInput, Decision], Decision | None]
POLICIES: Mapping[Stage, Policy] = MappingProxyType(
    {
        "eligibility": decide_eligibility,
        "fit": decide_fit,
        "deadline": decide_deadline,
        "generation": decide_generation,
        "sharing": decide_sharing,
        "slo": decide_slo,
        "veto": decide_veto,
    }
)


@hookimpl(trylast=True)
def decide(stage: Stage, case: PolicyInput, draft: Decision) -> Decision | None:
    """Decide one thing about a job, as the policy of *stage* does."""
    return POLICIES[stage](case, draft)
