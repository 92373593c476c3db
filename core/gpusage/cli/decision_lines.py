"""One decision as JSON and as lines for people: from the record where there is one, else from the job's mark."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from gpusage.boundary.printable_text import visible
from gpusage.cli import documents
from gpusage.cli.figures import duration, size
from gpusage.decisions.outcome import describe_change, describe_need
from gpusage.experience.finished_jobs import describe_waiting, suggest_next_request
from gpusage.store.annotation import JobAnnotation, parse_annotation
from gpusage_hooks.types import Allocation, AnnotatedJob, DecisionRecord, Usage, Workload
from gpusage_hooks.units import percent

_ENDS = {
    "completed": "completed",
    "failed": "failed",
    "out_of_memory": "ran out of GPU memory",
    "interrupted": "was interrupted (by a signal, its node, the host's memory or a missing command)",
    "cancelled": "was cancelled",
    "timed_out": "reached its time limit",
    "unknown": "ended",
}


def usage_document(usage: Usage, record: DecisionRecord | None) -> dict[str, Any]:
    """Return *usage* as JSON, with what follows from it."""
    fields: dict[str, Any] = msgspec.to_builtins(usage)
    return fields | {
        "waits_for": describe_waiting(usage) or None,
        "ask_next_time": suggest_next_request(usage, record) or None,
    }


def usage_line(usage: Usage, record: DecisionRecord | None, before: str) -> str:
    """Return one run of a job on one line.

    Args:
        usage: Of the run.
        record: What was decided of the job, where that is known.
        before: The request as the user wrote it; empty where that is unknown.
    """
    advice = suggest_next_request(usage, record)
    parts = [
        *([f"asked {before}"] if before else []),
        f"got {_granted(usage.granted)}{f' of one {usage.gpu}' if usage.gpu else ''}",
        f"used {_usage_text(usage)}",
        f"{_ENDS[usage.outcome]} after {duration(usage.ended_at_s - usage.started_at_s)}",
    ]

    verdict = describe_waiting(usage)
    return "; ".join(
        [
            ", ".join(parts),
            *([f"it {verdict}"] if verdict else []),
            *([f"request next time: {advice}"] if advice else []),
        ]
    )


def _granted(granted: Allocation) -> str:
    share = "all" if granted.share_percent == 100 else f"{granted.share_percent} %"  # all of it
    return share + (f" ({granted.trouble})" if granted.trouble else "")


def _usage_text(usage: Usage) -> str:
    figures = [
        *([f"{percent(usage.gpu_utilization)} of its time"] if usage.gpu_utilization is not None else []),
        *([f"{percent(usage.sm_activity)} of its SMs"] if usage.sm_activity is not None else []),
        *([size(usage.memory_bytes)] if usage.memory_bytes is not None else []),
    ]
    return ", ".join(figures) or "an unknown amount"


TITLE_JOBS = 3
_DONE = {
    "REWRITE": "rewritten",
    "KEEP": "kept as requested",
    "DECLINE": "left as it was",
    "STUCK": "rewritten, and cannot start",
    "BACK": "restored",
}


def document(job: AnnotatedJob | None, record: DecisionRecord | None, runs: Sequence[Usage] = ()) -> dict[str, Any]:
    """Return what became of a job, and what its *runs* really did; the code is ``None`` where it carries no mark.

    The mark has the last word on what the job asks for now: a job that was turned back has ``BACK``.
    """
    mark = parse_annotation(job.mark) if job else None
    fields = {**(_of_mark(mark) if mark else _NOTHING), **(_of_record(record) if record else {})}
    if mark is not None and mark.code == "BACK":
        fields |= {"code": mark.code, "before": mark.before, "after": mark.after}
        fields["reasons"] = [mark.reasons, *fields["reasons"]] if record else fields["reasons"]
    usage = [usage_document(run, record) for run in runs]
    return {"job": _of_job(job) if job else None, **fields, "usage": usage}


def lines(
    job: AnnotatedJob | None, record: DecisionRecord | None, runs: Sequence[Usage] = (), job_ids: Sequence[str] = ()
) -> Iterator[str]:
    """Yield what became of a job, and what its *runs* really did, for people.

    Without one *job*, *job_ids* say of which the decision is.
    """
    fields = document(job, record)
    before = record.rendered.before if record else fields["before"] or ""
    for line in (
        _title(job, fields, job_ids),
        *_body(fields, record),
        *(f"  {usage_line(run, record, before)}" for run in runs),
    ):
        yield visible(line)


def _title(job: AnnotatedJob | None, fields: dict[str, Any], job_ids: Sequence[str]) -> str:
    if job is None:
        more = f" and {len(job_ids) - TITLE_JOBS} more" if len(job_ids) > TITLE_JOBS else ""
        title = f"Job {', '.join(job_ids[:TITLE_JOBS])}{more}: " if job_ids else "Job of unknown id: "
        when = _when(fields["decided_at_s"])
        return f"{title}{fields['manager']}, {fields['origin']}, {when}, record {fields['number'] or '-'}"
    waiting = f", waits for {job.waits_for}" if job.waits_for else ""
    return f"Job {job.job_id} of {job.user}: {job.state}{waiting}"


def _body(fields: dict[str, Any], record: DecisionRecord | None) -> Iterator[str]:
    if fields["code"] is None:
        yield (
            "  It carries no mark that this gpusage reads: it named no model or opted out, gpusage was switched off or"
            " silent, or another revision of gpusage decided it."
        )
        return

    change = fields["before"] or "its request"
    if fields["after"] != fields["before"]:
        change = describe_change(change, fields["after"])
    yield f"  {change}: {_outcome_text(fields['code'], fields['mode'])}"
    yield from (f"  - {reason}" for reason in fields["reasons"] if reason)
    if fields["model"]:
        yield f"  model {fields['model']}" + (f", {_run(record.workload)}" if record and record.workload else "")
    if record and record.decision.need:
        yield f"  predicted {describe_need(record.decision.need)}"
    if fields["job"] and fields["number"]:
        yield f"  record {fields['number']}, {_when(fields['decided_at_s'])}"


def _outcome_text(code: str, mode: str) -> str:
    """Return what became of a request; only the mode ``enforce`` rewrites one."""
    if code == "REWRITE" and mode != "enforce":
        return (
            "would have been rewritten (advice only)"
            if mode == "advise"
            else f"would have been rewritten (mode {mode})"
        )
    return _DONE[code]


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _run(run: Workload) -> str:
    words = [f"batch {run.batch_size}", run.mode, run.precision, *([run.optimizer] if run.mode == "train" else [])]
    return ", ".join([*words, *documents.manner_words(run)])


_NOTHING: dict[str, Any] = {
    "source": None,
    "number": None,
    "decided_at_s": None,
    "manager": None,
    "origin": None,
    "mode": None,
    "code": None,
    "before": None,
    "after": None,
    "reasons": [],
    "model": None,
    "workload": None,
    "need": None,
}


def _of_mark(mark: JobAnnotation) -> dict[str, Any]:
    return _NOTHING | {
        "source": "mark",
        "number": mark.number or None,
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
        "decided_at_s": record.decided_at_s,
        "manager": record.manager,
        "origin": record.origin,
        "mode": record.mode,
        "code": record.decision.code.value,
        "before": record.rendered.before,
        "after": record.rendered.after,
        "reasons": list(record.decision.reasons),
        "model": record.model,
        "workload": _of_workload(record.workload) if record.workload else None,
        "need": documents.need(need) if need else None,
    }


def _of_workload(workload: Workload) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(workload)
    return fields


def _of_job(job: AnnotatedJob) -> dict[str, Any]:
    return {"id": job.job_id, "manager": job.manager, "user": job.user, "state": job.state, "waits_for": job.waits_for}
