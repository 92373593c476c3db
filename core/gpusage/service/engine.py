"""The daemon's decision engine: a thread that turns one request after another into a response.

The one way from a job to its decision is `gpusage.decisions.advisor`.

Invariants:

1. `DecisionEngine.decide` never raises; whatever goes wrong, the job stays as its user wrote it.
2. In the mode ``observe`` users get no message. Every mode annotates the job.
3. A card is a hint that a user can forge: it decides how much of a GPU the user gets, never whether.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from gpusage.boundary.printable_text import with_end
from gpusage.decisions.outcome import Outcome
from gpusage.graphs.card.text import decode_document, parse_document
from gpusage.graphs.reader import read_card
from gpusage.plugins.hooks import describe_error, sentence
from gpusage.service.decision_cache import AccessRecordingMapping, DecisionCache, WeightedLruCache
from gpusage.service.protocol import Response
from gpusage.service.reservations import Reservation, reservation_of
from gpusage.service.snapshots import Snapshot
from gpusage.store.annotation import annotation_of_decision
from gpusage_hooks.errors import GpuUsageError, PluginError
from gpusage_hooks.types import Cluster, Code, DecisionRequest, Job, ModelGraph, ModelRequest

REMEMBERED_BYTES = 3_000_000
"""The limit on all cards, unpacked; a graph with its predictions takes up to 20 times as much."""
LARGEST_REMEMBERED_BYTES = 64 * 1024
"""The limit on one card, unpacked; DenseNet-121 has 27,000."""
LATE_LIMIT = 256
"""Jobs that were answered before the engine came to them, and are still decided, for records and like jobs."""

FREE_S = 0.02
LIMIT_S, WINDOW_S = 0.2, 10.0
"""An honest card takes a few milliseconds, which are free; a card that was forged to be slow uses up its user's
budget, which comes back within the window."""
# More users than submit within a window.
_BUDGET_USERS = 10_000
SPENT = (
    f"models of this user took more than {LIMIT_S:g} s of gpusaged's time, which comes back within {WINDOW_S:g} s; "
    "it considers jobs submitted after that"
)
OVERDUE = "deciding took longer than the limit allows; what was computed is kept, so the next such job takes less time"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedResponse(Response):
    """A response, and the outcome that it reports.

    Attributes:
        outcome: ``None`` where no adapter knows the manager; there is no record then.
        failed: Our own or a plugin's fault led to it, so it must not be cached.
        over_budget: Its user's share of the engine's time was used up; it holds for this moment alone.
        fields_read: Those that the outcome rests on; ``None`` where it holds for this request alone.
        reservation: The part of the cluster that it takes where it is applied; ``None`` for nothing.
    """

    outcome: Outcome | None = None
    failed: bool = False
    over_budget: bool = False
    fields_read: frozenset[str] | None = None
    reservation: Reservation | None = None


@dataclass(slots=True)
class Exchange:
    """A request and the way back to its client.

    Attributes:
        job: The job that the adapter parsed, as soon as it did.
        has_responded: The response has left; the engine may still be at it.
        recorded: So has the record of the answer.
    """

    request: DecisionRequest
    snapshot: Snapshot
    reply: Callable[[bytes], None]
    timer: asyncio.TimerHandle | None = None
    job: Job | None = None
    has_responded: bool = False
    recorded: bool = False


class DecisionWorker:
    """Decides the requests that it receives, in a thread, and last the ones whose clients no longer wait.

    Args:
        loop: Where `submit` is called, and *on_decided* is.
        on_decided: Gets the response to each; ``None`` where too many wait that were answered before.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_decided: Callable[[Exchange, DecidedResponse | None], None]
    ) -> None:
        self._loop = loop
        self._on_decided = on_decided
        self._waiting: queue.SimpleQueue[Exchange | None] = queue.SimpleQueue()

    def start(self) -> None:
        """Begin to decide."""
        threading.Thread(target=self._run, name="engine", daemon=True).start()

    def stop(self) -> None:
        """End after the current exchange."""
        self._waiting.put(None)

    def submit(self, exchange: Exchange) -> None:
        """Queue *exchange* for a decision."""
        self._waiting.put(exchange)

    def _run(self) -> None:
        """Decide until `stop`; a job whose client no longer waits comes when no other does."""
        engine = DecisionEngine()
        late: deque[Exchange] = deque()
        while True:
            # While nobody waits, late jobs are decided; otherwise this waits for the next request.
            exchange: Exchange | None = None
            try:
                exchange = self._waiting.get(block=not late)
                if exchange is None:
                    return
            except queue.Empty:
                exchange = late.popleft()

            response: DecidedResponse | None = None
            if exchange.has_responded and not self._waiting.empty():
                if len(late) < LATE_LIMIT:
                    late.append(exchange)
                    continue
            else:
                response = engine.respond(exchange)

            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._on_decided, exchange, response)


class DecisionEngine:
    """Decides requests, in one thread; remembers graphs by card, and the time that each user's models took."""

    def __init__(self) -> None:
        self._graphs: WeightedLruCache[str, ModelGraph] = WeightedLruCache(REMEMBERED_BYTES)
        self._budget = Budget()

    def respond(self, exchange: Exchange) -> DecidedResponse:
        """Return the response to a request, and reserve its part of the cluster before the next one is decided."""
        request, snapshot = exchange.request, exchange.snapshot

        # A request may have waited behind one like it.
        cache: DecisionCache[DecidedResponse] = snapshot.decision_cache
        response = cache.find(request)
        if response is None:
            response = self.decide(exchange)
            cache.add(request, response.fields_read, response)

        snapshot.reservations.add(response.reservation)
        snapshot.recent_jobs.remember(response.outcome, request.fields)
        return response

    def decide(self, exchange: Exchange) -> DecidedResponse:
        """Return the response to a request; *exchange* has its job early, for an answer without the engine."""
        request, snapshot = exchange.request, exchange.snapshot
        advisor = snapshot.site_advisor
        fields = AccessRecordingMapping(request.fields)
        request = replace(request, fields=fields, origin=describe_origin(request))
        if advisor.kill_reason is not None:
            outcome = advisor.keep_unchanged(request, advisor.kill_reason)
            return DecidedResponse(code=Code.KEEP, outcome=outcome, fields_read=fields.fields_read())

        # Processor time: a user must not pay for the threads of others.
        begun_s = time.thread_time()
        job: Job | None = None
        try:
            job = advisor.hooks.parse_submission(request, advisor.context(request.manager))
            if job is None:
                response = DecidedResponse(code=Code.DECLINE)
            else:
                exchange.job = job
                response = self._decide_job(job, snapshot)
        except PluginError as error:
            _log.warning("%s: kept, because of a plugin: %s", request.origin, sentence(error))
            response = replace(keep_silently(advisor.keep_unchanged(request, sentence(error), job)), failed=True)
        except GpuUsageError as error:
            response = refuse(advisor.keep_unchanged(request, sentence(error), job))
        except Exception as error:  # nothing may cost a job
            reason = describe_error(error)
            _log.error("%s: kept, because of a fault: %s", request.origin, reason)
            response = replace(keep_silently(advisor.keep_unchanged(request, reason, job)), failed=True)
        self._budget.charge(request.origin, time.thread_time() - begun_s, time.monotonic())

        # A response that depends on the GPUs that are free now does not hold as long as its snapshot.
        chosen = response.outcome.decision.request if response.outcome is not None else None
        is_of_the_moment = chosen is not None and bool(chosen.bound_types or chosen.avoided_nodes)
        if response.failed or response.over_budget or is_of_the_moment:
            return response
        return replace(response, fields_read=fields.fields_read())

    def _decide_job(self, job: Job, snapshot: Snapshot) -> DecidedResponse:
        request, advisor = job.submission, snapshot.site_advisor
        cluster = snapshot.clusters.get(request.manager)
        if cluster is None and job.model_request is not None:
            reason = snapshot.troubles.get(request.manager, f"gpusaged has not observed {request.manager} yet")
            return keep_silently(advisor.keep_unchanged(request, reason, job))
        if self._budget.debt_s(request.origin, time.monotonic()) >= LIMIT_S:
            return replace(refuse(advisor.keep_unchanged(request, SPENT, job)), over_budget=True)

        # The last observation does not show the shares of the last seconds.
        cluster = cluster or Cluster(manager=request.manager, version="", pools=())
        competing = replace(cluster, recent_jobs=snapshot.recent_jobs.of(cluster.manager))
        cluster = snapshot.reservations.remaining_capacity(competing)

        outcome = advisor.advise(job, cluster, self._graph)
        return replace(respond(outcome), reservation=None if job.dry_run else reservation_of(outcome, cluster))

    def _graph(self, job: Job, request: ModelRequest) -> ModelGraph | None:
        """Return the graph in *job*'s card, or in our own of a model's name; ``None`` where there is neither."""
        card = job.card
        if not card:
            return read_card(request.model, dict(request.workload.shape))

        graph = self._graphs.get(card)
        if graph is None:
            # A user can forge a card: it is checked whole, and a large one is not kept.
            content = decode_document(card)
            graph = parse_document(content)
            if len(content) <= LARGEST_REMEMBERED_BYTES:
                self._graphs.put(card, graph, weight=len(content))
        return graph


class Budget:
    """Counts the engine's processor seconds by user, for one thread, so that no user's cards keep the others waiting.

    Until a spent budget has come back, its user's new questions get the answer that changes nothing, at once.
    """

    def __init__(self) -> None:
        self._debts: WeightedLruCache[str, tuple[float, float]] = WeightedLruCache(_BUDGET_USERS)

    def debt_s(self, user: str, now_s: float) -> float:
        """Return the spent time that has not come back to *user*; from `LIMIT_S` on, the user has to wait."""
        debt_s, then_s = self._debts.get(user) or (0.0, now_s)
        return max(0.0, debt_s - (now_s - then_s) * LIMIT_S / WINDOW_S)

    def charge(self, user: str, duration_s: float, now_s: float) -> None:
        """Count *duration_s* seconds of the processor that a question of *user* took."""
        if user and duration_s > FREE_S:
            self._debts.put(user, (self.debt_s(user, now_s) + duration_s, now_s))


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
    reason = with_end(outcome.decision.reasons[0])
    message = "" if outcome.mode == "observe" else f"{reason} The request stays as it is."
    return DecidedResponse(code=Code.KEEP, message=message, mark=_mark(outcome), outcome=outcome)


def respond_overdue(exchange: Exchange) -> DecidedResponse:
    """Return the response to a request for which the engine had no time."""
    request = replace(exchange.request, origin=describe_origin(exchange.request))
    outcome = exchange.snapshot.site_advisor.keep_unchanged(request, OVERDUE, exchange.job)
    return replace(refuse(outcome), overdue=True)


def _mark(outcome: Outcome) -> str:
    return annotation_of_decision(outcome.decision, outcome.rendered, outcome.mode).rest
