"""The outcome of a submission: the decision on it, in its manager's words, and the line that its user reads.

Invariants:

1. Only the mode ``enforce`` carries out a rewrite; in the other modes it is held back, and the record says both.
2. Where predictions miss too often for jobs like this one, ``enforce`` is ``advise``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpusage.boundary.printable_text import one_line, shortened
from gpusage.experience.identity import job_identity
from gpusage.policies.share_price import part_of
from gpusage_hooks.types import (
    Code,
    Decision,
    DecisionRecord,
    DecisionRequest,
    GpuNeed,
    Interval,
    Job,
    JobIdentity,
    ModelRequest,
    ObservedFigures,
    RenderedDecision,
)
from gpusage_hooks.units import GIB, WHOLE_PERCENT

if TYPE_CHECKING:
    from gpusage.settings.configuration import SiteMode

MAXIMUM_LENGTH = 500
_MEMORY_AND_FORM = re.compile(r"-(?:sxm|pcie|nvl)[0-9]*(?:-[0-9]+gb)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a submission.

    Attributes:
        job: The submission as its manager's plugin parsed it; ``None`` where nothing was parsed.
        model: The identity of its model; ``None`` where that was not read.
        predicted_utilization: As in `DecisionRecord`.
        decision: As it would be carried out in the mode ``enforce``.
        rendered: The same in the manager's own words.
        mode: The site's, or ``advise`` where its predictions miss too often for this job; ``observe`` where a job names
            no model, and its history has not earned more, or may run where the site does not enforce.
        history_estimates: The estimates by history for such a job, as in `DecisionRecord`; ``None`` for any other.
        is_exception: Whether the site's mode is ``enforce``, and a reason of this job alone makes it ``advise``.
    """

    submission: DecisionRequest
    job: Job | None
    decision: Decision
    rendered: RenderedDecision
    mode: SiteMode
    model: JobIdentity | None = None
    predicted_utilization: float | None = None
    history_estimates: Mapping[str, ObservedFigures] | None = None
    is_exception: bool = False

    @property
    def model_request(self) -> ModelRequest | None:
        """The job's request for its model."""
        return self.job.model_request if self.job else None

    @property
    def is_annotated(self) -> bool:
        """Return whether the job carries an annotation: it says something to us, or its site observes its history."""
        is_ours = self.model_request is not None or self._shows_model or self.history_estimates is not None
        return is_ours and self.applied_code is not Code.DECLINE

    @property
    def _shows_model(self) -> bool:
        return self.job is not None and self.job.shows_model

    @property
    def is_dry_run(self) -> bool:
        """Return whether nothing was submitted."""
        return self.job is not None and self.job.dry_run

    @property
    def held_back_reason(self) -> str:
        """Why the request stays as it is although a rewrite was decided on; ``""`` where that is not so."""
        return hold_reason(self.mode, None) if self.decision.code is Code.REWRITE else ""

    @property
    def applied_code(self) -> Code:
        """The code that is applied to the job."""
        return Code.KEEP if self.held_back_reason else self.decision.code

    @property
    def line(self) -> str:
        """The outcome for its user, on one line; empty where it is not ours, or says nothing and is kept."""
        is_silent = self.history_estimates is not None and not self._shows_model
        if is_silent and self.decision.code is not Code.REWRITE:
            return ""
        line = explain(self.decision, self.rendered, self.model_request.assumed if self.model_request else ())
        if not self.held_back_reason:
            return line
        if self.is_exception:  # whoever reads an arrow in mode enforce takes it for done
            return f"advice only: {line.replace(' -> ', ' kept, not ', 1)}"
        return f"advice only in mode {self.mode}: {line}"

    def as_advice(self, why: str) -> Outcome:
        """Return it as advice only, where it changes the job and there is a reason *why* it must not."""
        if not why or self.decision.code is not Code.REWRITE:
            return self
        decision = replace(self.decision, reasons=(why, *self.decision.reasons))
        if self.mode != "enforce":
            return replace(self, decision=decision)
        return replace(self, decision=decision, mode="advise", is_exception=True)

    def record(
        self, *, origin: str, number: str, decided_at_s: float, fields: Mapping[str, str] | None = None
    ) -> DecisionRecord:
        """Return its record for the store.

        Args:
            origin: Who submitted, for people.
            fields: Those of the submission in question, where the outcome is that of one like it.
            number: As `gpusage.store.annotation` gives them; ``""`` for none.
            decided_at_s: Seconds since 1970.
        """
        return DecisionRecord(
            decided_at_s=decided_at_s,
            manager=self.submission.manager,
            origin=origin,
            mode=self.mode,
            decision=self.decision,
            rendered=self.rendered,
            model=self.model_request.model if self.model_request else None,
            workload=self.model_request.workload if self.model_request else None,
            number=number,
            identity=self.identity(fields),
            predicted_utilization=self.predicted_utilization,
            history_estimates=self.history_estimates or {},
        )

    def identity(self, fields: Mapping[str, str] | None) -> JobIdentity | None:
        """Return the identity of the job; ``None`` where no model was read, and no history is kept.

        Args:
            fields: As in `record`.
        """
        if self.job is None or self.model is None:
            return None
        submitter = self.job.submitter if fields is None else replace(self.job.submitter, fields=fields)
        identity = job_identity(submitter, request=self.job.request)
        return replace(identity, fingerprint=self.model.fingerprint, family=self.model.family)


def hold_reason(mode: SiteMode, kill_reason: str | None) -> str:
    """Return why no rewrite is carried out, one clause; ``""`` where it is.

    Args:
        mode: The site's.
        kill_reason: As in `gpusage.decisions.advisor.Advisor`.
    """
    return kill_reason or ("" if mode == "enforce" else f"nothing is changed in mode {mode}")


def explain(decision: Decision, rendered: RenderedDecision, assumed: Sequence[str] = ()) -> str:
    """Return *decision* as one line of at most 500 characters; empty where the job is not ours.

    Args:
        decision: The decision.
        rendered: The same in the manager's words.
        assumed: What the user left out, for example ``batch=1``; shown where anything was predicted from it.
    """
    if decision.code is Code.DECLINE:
        return ""

    is_rewritten = decision.code is Code.REWRITE
    parts = [describe_change(rendered.before, rendered.after) if is_rewritten else f"{rendered.before} kept"]
    if decision.need and assumed:
        parts.append(f"assumed {', '.join(assumed)}")
    if decision.need:
        parts.append(describe_need(decision.need))
    parts.append("; ".join(decision.reasons))
    return shortened(one_line(" | ".join(parts)), MAXIMUM_LENGTH)


def describe_change(before: str, after: str) -> str:
    """Return how a request is rewritten; one that stays, and gets a preference or a condition, is kept."""
    added = after.removeprefix(f"{before}, ")
    return f"{before} -> {after}" if added == after else f"{before} kept, {added}"


def describe_need(need: GpuNeed) -> str:
    """Return the prediction for one GPU, or for a share of it, each figure with its interval."""
    if need.share_percent < WHOLE_PERCENT:
        # People say "half a v100": neither its form nor its memory.
        part = part_of(need.share_percent, _MEMORY_AND_FORM.sub("", need.gpu))
        booked = replace(need.required_bytes, high=need.share_memory_bytes)
        return f"{part}: {_figure(booked, scale=1 / GIB, digits=1, unit='GiB')}"

    # History knows no SM activity, which only a model shows.
    if need.source == "history":
        busy = _figure(need.gpu_utilization, scale=100, digits=0, unit="%")
        return f"on {need.gpu}: busy {busy}, {_figure(need.memory_bytes, scale=1 / GIB, digits=1, unit='GiB')}"
    activity = _figure(need.sm_activity, scale=100, digits=0, unit="%")
    memory = _figure(need.required_bytes, scale=1 / GIB, digits=1, unit="GiB")
    return f"on {need.gpu}: SM activity {activity}, {memory}"


def _figure(interval: Interval, *, scale: float, digits: int, unit: str) -> str:
    low, high = interval.low * scale, interval.high * scale
    return f"{interval.value * scale:.{digits}f} {unit} ({low:.{digits}f}-{high:.{digits}f})"
