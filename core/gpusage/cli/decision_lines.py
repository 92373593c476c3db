"""One decision as JSON and as lines for people: from the record where there is one, else from the job's mark."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from gpusage.boundary.printable_text import visible
from gpusage.cli import documents
from gpusage.cli.tables import duration_text, size_text
from gpusage.decisions.outcome import describe_change, describe_need
from gpusage.experience.finished_jobs import describe_excess, describe_waiting, suggest_next_request
from gpusage.store.annotation import JobAnnotation, parse_annotation
from gpusage_hooks.types import AnnotatedJob, DecisionRecord, Usage
from gpusage_hooks.units import WHOLE_PERCENT, percent

_ENDS = {
    "completed": "completed",
    "failed": "failed",
    "out_of_memory": "ran out of GPU memory",
    "interrupted": "was interrupted (by a signal, its node, the host's memory or a missing command)",
    "cancelled": "was cancelled",
    "timed_out": "reached its time limit",
    "unknown": "ended",
}
TITLE_JOBS = 3
_DONE = {
    "REWRITE": "rewritten",
    "KEEP": "kept as requested",
    "DECLINE": "left as it was",
    "STUCK": "rewritten, and cannot start",
    "BACK": "restored",
}
_FIELDS = (
    *("source", "number", "decided_at_s", "manager", "origin", "mode", "code", "before", "after", "reasons"),
    *("model", "workload", "need"),
)
"""Of a document, in their order; a mark alone leaves some of them unknown."""


def usage_document(usage: Usage, record: DecisionRecord | None) -> dict[str, Any]:
    """Return *usage* as JSON, with what follows from it."""
    fields: dict[str, Any] = msgspec.to_builtins(usage)
    return fields | {
        "excess": describe_excess(usage) or None,
        "waits_for": describe_waiting(usage) or None,
        "ask_next_time": suggest_next_request(usage, record) or None,
    }


def usage_line(usage: Usage, record: DecisionRecord | None, before: str) -> str:
    """Return one run of a job on one line.

    Args:
        usage: Of the run.
        record: The decision on the job, where that is known.
        before: The request as the user wrote it; empty where that is unknown.
    """
    granted = "all" if usage.granted.share_percent == WHOLE_PERCENT else f"{usage.granted.share_percent} %"
    if usage.granted.trouble:
        granted = f"{granted} ({usage.granted.trouble})"

    # A figure that nobody observed is left out; it is never 0.
    figures = []
    if usage.gpu_utilization is not None:
        figures.append(f"{percent(usage.gpu_utilization)} of its time")
    elif usage.granted.division == "slice":
        figures.append("an unknown part of its time (no counter on a slice before Hopper)")
    if usage.sm_activity is not None:
        figures.append(f"{percent(usage.sm_activity)} of its SMs")
    if usage.memory_bytes is not None:
        figures.append(size_text(usage.memory_bytes))

    parts = [
        *([f"asked {before}"] if before else []),
        f"got {granted}{f' of one {usage.gpu}' if usage.gpu else ''}",
        f"used {', '.join(figures) or 'an unknown amount'}",
        f"{_ENDS[usage.outcome]} after {duration_text(usage.ended_at_s - usage.started_at_s)}",
    ]
    verdict, advice = describe_waiting(usage), suggest_next_request(usage, record)
    more = [
        describe_excess(usage),
        f"it {verdict}" if verdict else "",
        f"request next time: {advice}" if advice else "",
    ]
    return "; ".join([", ".join(parts), *filter(None, more)])


def document(job: AnnotatedJob | None, record: DecisionRecord | None, runs: Sequence[Usage] = ()) -> dict[str, Any]:
    """Return what became of a job, and what its *runs* really did; the code is ``None`` where it carries no mark.

    The mark has the last word on what the job asks for now: a job that was turned back has ``BACK``.
    """
    mark = parse_annotation(job.mark) if job else None
    fields: dict[str, Any] = {**dict.fromkeys(_FIELDS), "reasons": []}
    if mark:
        fields |= _of_mark(mark)
    if record:
        fields |= _of_record(record)
    # The record is of the decision; that the request was restored later only the mark says.
    if mark is not None and mark.code == "BACK":
        fields |= {"code": mark.code, "before": mark.before, "after": mark.after}
        fields["reasons"] = [mark.reasons, *fields["reasons"]] if record else fields["reasons"]
    usage = [usage_document(run, record) for run in runs]
    names = ("manager", "user", "state", "waits_for")
    of_job = {"id": job.job_id, **{name: getattr(job, name) for name in names}} if job else None
    return {"job": of_job, **fields, "usage": usage}


def lines(
    job: AnnotatedJob | None, record: DecisionRecord | None, runs: Sequence[Usage] = (), job_ids: Sequence[str] = ()
) -> Iterator[str]:
    """Yield what became of a job, and what its *runs* really did, for people.

    Without one *job*, *job_ids* say of which the decision is.
    """
    fields = document(job, record)
    if job is not None:
        waiting = f", waits for {job.waits_for}" if job.waits_for else ""
        yield visible(f"Job {job.job_id} of {job.user}: {job.state}{waiting}")
    else:
        more = f" and {len(job_ids) - TITLE_JOBS} more" if len(job_ids) > TITLE_JOBS else ""
        title = f"Job {', '.join(job_ids[:TITLE_JOBS])}{more}: " if job_ids else "Job of unknown id: "
        when, number = _when(fields["decided_at_s"]), fields["number"] or "-"
        yield visible(f"{title}{fields['manager']}, {fields['origin']}, {when}, record {number}")

    for line in _body(fields, record):
        yield visible(line)
    before = record.rendered.before if record else fields["before"] or ""
    for run in runs:
        yield visible(f"  {usage_line(run, record, before)}")


def _body(fields: dict[str, Any], record: DecisionRecord | None) -> Iterator[str]:
    """Yield the decision, its reasons, the model and the prediction."""
    if fields["code"] is None:
        yield (
            "  It carries no mark that this gpusage reads: it named no model or opted out, gpusage was switched off or"
            " silent, or another revision of gpusage decided it."
        )
        return

    change, mode = fields["before"] or "its request", fields["mode"]
    if fields["after"] != fields["before"]:
        change = describe_change(change, fields["after"])
    outcome = _DONE[fields["code"]]
    if fields["code"] == "REWRITE" and mode != "enforce":  # only that mode rewrites a request
        outcome = f"would have been rewritten ({'advice only' if mode == 'advise' else f'mode {mode}'})"
    yield f"  {change}: {outcome}"
    yield from (f"  - {reason}" for reason in fields["reasons"] if reason)

    if fields["model"]:
        run = record.workload if record else None
        words = []
        if run:
            optimizer = [run.optimizer] if run.mode == "train" else []
            manner = documents.manner_words(run)
            words = [f"batch {run.batch_size}", run.mode, run.precision, *optimizer, *manner]
        yield ", ".join([f"  model {fields['model']}", *words])
    if record and record.decision.need:
        yield f"  predicted {describe_need(record.decision.need)}"
    if fields["job"] and fields["number"]:
        yield f"  record {fields['number']}, {_when(fields['decided_at_s'])}"


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _of_mark(mark: JobAnnotation) -> dict[str, Any]:
    return {
        "source": "mark",
        "number": mark.number or None,
        # A record's number begins with its time, in hexadecimal.
        "decided_at_s": int(mark.number[:8], 16) if mark.number else None,
        "mode": mark.mode,
        "code": mark.code,
        "before": mark.before,
        "after": mark.after,
        "reasons": [mark.reasons] if mark.reasons else [],
    }


def _of_record(record: DecisionRecord) -> dict[str, Any]:
    need = record.decision.need
    return {
        "source": "record",
        "number": record.number or None,
        **{name: getattr(record, name) for name in ("decided_at_s", "manager", "origin", "mode", "model")},
        "code": record.decision.code.value,
        "before": record.rendered.before,
        "after": record.rendered.after,
        "reasons": list(record.decision.reasons),
        "workload": msgspec.to_builtins(record.workload) if record.workload else None,
        "need": documents.need(need) if need else None,
    }
