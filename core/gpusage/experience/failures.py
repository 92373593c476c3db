"""Jobs that failed in a share for a reason that nobody knows: the next like them get a whole GPU.

The share may have been the reason, and a client that submits a failed job again soon must not get the same share.

Invariants:

1. A user's failures concern that user's jobs alone.
2. A later run lifts them that completed on a share, or showed how much memory the job takes: from then on that
   decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from gpusage.experience.finished_jobs import SOUND
from gpusage_hooks.types import Code, JobIdentity, Outcome, Submitter
from gpusage_hooks.units import WHOLE_PERCENT

if TYPE_CHECKING:
    from gpusage.store.rows import Observation  # what decides has no store

FAILED: tuple[Outcome, ...] = ("failed", "out_of_memory")
REASON = "the last job like it failed in its share of a GPU, so this one has the whole GPU"

Likeness = tuple[str, ...]
"""What makes two jobs of one model alike: their user, and their name or their script."""
Failures = Mapping[str, frozenset[Likeness]]
"""By the model's fingerprint; ``""`` stands for jobs that name no model."""
NO_FAILURES: Failures = {}


def likenesses(model: str, job: JobIdentity | Submitter) -> frozenset[Likeness]:
    """Return by what another job of *model*, a fingerprint, is like *job*; without one, name and script must agree."""
    user, name, digest = job.user, job.job_name, job.script_digest
    if not model:
        return frozenset({(user, name, digest)} if digest else ())
    return frozenset({(user, "name", name), *([(user, "script", digest)] if digest else [])})


def with_failures(failures: Failures, identities: Iterable[JobIdentity]) -> Failures:
    """Return *failures* and those of jobs of *identities*."""
    more = dict(failures)
    for identity in identities:
        model = identity.fingerprint
        more[model] = more.get(model, frozenset()) | likenesses(model, identity)
    return more


def failures_of(observations: Iterable[Observation], least_sampled_s: float) -> Failures:
    """Return the failures that *observations*, in any order, show, and that no later one lifts.

    Args:
        observations: With their decisions, as far as the store still has these.
        least_sampled_s: A run that was sampled for less does not show its memory.
    """
    failures: Failures = NO_FAILURES
    for each in sorted(observations, key=lambda each: each.usage.ended_at_s):
        usage, identity = each.usage, each.decision.identity if each.decision else None
        if each.decision is None or identity is None or each.decision.mode != "enforce":
            continue
        on_share = each.decision.decision.code is Code.REWRITE and usage.granted.share_percent < WHOLE_PERCENT
        if on_share and usage.outcome in FAILED:
            failures = with_failures(failures, [identity])
        elif usage.outcome in SOUND and identity.fingerprint in failures:
            shows_memory = usage.memory_bytes is not None and usage.sampled_s >= least_sampled_s
            if on_share or shows_memory:
                model = identity.fingerprint
                failures = {**failures, model: failures[model] - likenesses(model, identity)}
    return {model: alike for model, alike in failures.items() if alike}


def why_whole(failures: Failures, model: str, submitter: Submitter) -> str:
    """Return why a job of *submitter* gets no share, one clause; empty where no failure is known.

    The submitter's fields are read only where a job of the *model*, by its fingerprint, has failed.
    """
    alike = failures.get(model)
    if not alike:
        return ""
    return REASON if alike & likenesses(model, submitter) else ""
