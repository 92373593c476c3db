"""The daemon's decision engine: it turns a request into a response, by the one way of `gpusage.decisions.advisor`.

Invariants:

1. `DecisionEngine.decide` never raises; whatever goes wrong, the job stays as its user wrote it.
2. In the mode ``observe`` users get no message. Every mode annotates the job.
3. A card is a hint that a user can forge: it decides how much of a GPU the user gets, never whether.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpusage.boundary.printable_text import with_end
from gpusage.decisions.outcome import Outcome
from gpusage.graphs.card.text import decode_document, parse_document
from gpusage.plugins.error_text import describe_error, sentence
from gpusage.service.decisions.budget import SPENT, Budget
from gpusage.service.lru_cache import WeightedLruCache
from gpusage.service.protocol import Response
from gpusage.service.state.decision_cache import AccessRecordingMapping
from gpusage.service.state.reservations import Reservation, reservation_of
from gpusage.service.state.snapshots import Snapshot
from gpusage.store.annotation import annotation_of_decision
from gpusage_hooks.errors import GpuUsageError, PluginError
from gpusage_hooks.types import Cluster, Code, DecisionRequest, Job, ModelGraph

REMEMBERED_BYTES = 3_000_000
"""The limit on all cards, unpacked; what is kept of one, predictions included, takes up to 20 times as much."""
LARGEST_REMEMBERED_BYTES = 64 * 1024
"""The limit on one card, unpacked; DenseNet-121 has 27,000."""

_STAYS = "The request stays as it is."
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedResponse(Response):
    """A response, and the outcome that it reports.

    Attributes:
        outcome: ``None`` where no adapter knows the manager; there is no record then.
        failed: Our own or a plugin's fault led to it, so it must not be cached.
        over_budget: Its user's share of the engine's time was used up; it holds for this moment alone.
        fields_read: Those that the outcome rests on; ``None`` where it holds for this request alone.
        reservation: What it takes of the cluster where it is applied; ``None`` for nothing.
    """

    outcome: Outcome | None = None
    failed: bool = False
    over_budget: bool = False
    fields_read: frozenset[str] | None = None
    reservation: Reservation | None = None

    @property
    def is_lasting(self) -> bool:
        """Return whether it is valid as long as its snapshot; not if it depends on the GPUs that are free now."""
        request = self.outcome.decision.request if self.outcome is not None else None
        is_of_the_moment = request is not None and bool(request.bound_types or request.avoided_nodes)
        return not (self.failed or self.over_budget or is_of_the_moment)


class DecisionEngine:
    """Decides requests, in one thread; remembers graphs by card."""

    def __init__(self) -> None:
        self._graphs: WeightedLruCache[str, ModelGraph] = WeightedLruCache(REMEMBERED_BYTES)
        self._budget = Budget()

    def decide(self, request: DecisionRequest, snapshot: Snapshot, on_parsed: Callable[[Job], None]) -> DecidedResponse:
        """Return the response to *request*; *on_parsed* is called early, with the job in question."""
        fields = AccessRecordingMapping(request.fields)
        recorded = replace(request, fields=fields, origin=describe_origin(request))
        begun_s = time.thread_time()
        response = self._decide_safely(recorded, snapshot, on_parsed)
        self._budget.charge(recorded.origin, time.thread_time() - begun_s, time.monotonic())
        return replace(response, fields_read=fields.fields_read() if response.is_lasting else None)

    def _decide_safely(
        self, request: DecisionRequest, snapshot: Snapshot, on_parsed: Callable[[Job], None]
    ) -> DecidedResponse:
        advisor = snapshot.site_advisor
        if advisor.kill_reason is not None:
            outcome = advisor.keep_unchanged(request, advisor.kill_reason)
            return DecidedResponse(code=Code.KEEP, outcome=outcome)
        job: Job | None = None
        try:
            job = advisor.hooks.parse_submission(request, advisor.context(request.manager))
            if job is None:
                return DecidedResponse(code=Code.DECLINE)
            on_parsed(job)
            return self._decide_job(job, snapshot)
        except PluginError as error:
            _log.warning("%s: kept, because of a plugin: %s", request.origin, sentence(error))
            return replace(keep_silently(advisor.keep_unchanged(request, sentence(error), job)), failed=True)
        except GpuUsageError as error:
            return refuse(advisor.keep_unchanged(request, sentence(error), job))
        except Exception as error:  # nothing may cost a job
            reason = describe_error(error)
            _log.error("%s: kept, because of a fault: %s", request.origin, reason)
            return replace(keep_silently(advisor.keep_unchanged(request, reason, job)), failed=True)

    def _decide_job(self, job: Job, snapshot: Snapshot) -> DecidedResponse:
        request, advisor = job.submission, snapshot.site_advisor
        cluster = snapshot.clusters.get(request.manager)
        if cluster is None and job.model_request is not None:
            reason = snapshot.troubles.get(request.manager, f"gpusaged has not observed {request.manager} yet")
            return keep_silently(advisor.keep_unchanged(request, reason, job))
        if self._budget.is_spent(request.origin, time.monotonic()):
            return replace(refuse(advisor.keep_unchanged(request, SPENT, job)), over_budget=True)
        cluster = cluster or Cluster(manager=request.manager, version="", pools=())
        competing = replace(cluster, recent_jobs=snapshot.recent_jobs.of(cluster.manager))
        cluster = snapshot.reservations.remaining_capacity(competing)
        outcome = advisor.advise(job, cluster, lambda job, _: self._graph(job.card))
        return replace(respond(outcome), reservation=None if job.dry_run else reservation_of(outcome, cluster))

    def _graph(self, card: str | None) -> ModelGraph | None:
        if not card:
            return None
        graph = self._graphs.get(card)
        if graph is None:
            content = decode_document(card)
            graph = parse_document(content)
            if len(content) <= LARGEST_REMEMBERED_BYTES:
                self._graphs.put(card, graph, weight=len(content))
        return graph


def describe_origin(request: DecisionRequest) -> str:
    """Return who submitted, for people."""
    user = request.fields.get("user_id")
    return f"uid {user}" if user else request.fields.get("user", "")


def respond(outcome: Outcome) -> DecidedResponse:
    """Return the response that applies *outcome*, with a message where the site's mode has one.

    A dry run gets the message alone: it is not recorded, and any user may say that a job is one.
    """
    code, is_real = outcome.applied_code, not outcome.is_dry_run
    return DecidedResponse(
        code=code,
        message="" if outcome.mode == "observe" else outcome.line,
        settings=outcome.rendered.fields if code is Code.REWRITE and is_real else {},
        mark=_mark(outcome) if outcome.is_annotated and is_real else "",
        outcome=outcome,
    )


def keep_silently(outcome: Outcome) -> DecidedResponse:
    """Return the response that the job stays as it is, for a reason that its user cannot mend and does not see."""
    mark = _mark(outcome) if outcome.model_request else ""
    return DecidedResponse(code=Code.KEEP, mark=mark, outcome=outcome)


def refuse(outcome: Outcome) -> DecidedResponse:
    """Return the response that the job stays as it is, for a reason that its user sees outside the mode ``observe``.

    The user named a model, though perhaps in a way that cannot be read, so the job is annotated.
    """
    message = "" if outcome.mode == "observe" else f"{with_end(outcome.decision.reasons[0])} {_STAYS}"
    return DecidedResponse(code=Code.KEEP, message=message, mark=_mark(outcome), outcome=outcome)


def _mark(outcome: Outcome) -> str:
    return annotation_of_decision(outcome.decision, outcome.rendered, outcome.mode).rest
