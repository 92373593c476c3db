"""Late decisions: the models of jobs that came without a card are read, gpusaged decides, and pending jobs change.

This is a client of gpusaged like job_submit, in a process of its own, so that gpusaged needs neither root's rights nor
SlurmUser's, and the process that has them parses no model.

Invariants:

1. A job is decided once: its mark says so. One that could not be decided is tried again after `RETRY_S`.
2. What its user changes, before or after, stays: the job is read again after its model was read, and changed only if it
   is the same as before.
3. Users take turns, and a pass over all jobs ends in time.
4. `scontrol` cannot set a job's variables. So they stand in the mark, where the job's task prolog reads them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

import click

from gpusage.cli import tables
from gpusage.service import client
from gpusage.settings.configuration_file import load_configuration
from gpusage.store.annotation import parse_annotation, with_annotation
from gpusage_hooks.errors import GpuUsageError, RequestError
from gpusage_slurm import scontrol
from gpusage_slurm.daemon import local_socket_candidates
from gpusage_slurm.jobs.queue import update_job
from gpusage_slurm.jobs.restore import MAXIMUM_BYTES
from gpusage_slurm.late.card_reader import may_read_for, read_card, reading_rights
from gpusage_slurm.late.jobs import LateJob, late_job_ids, names_model, read_late_job
from gpusage_slurm.settings import MANAGER

_SETTINGS = {
    "set.gres": "Gres",
    "set.tres_per_job": "TresPerJob",
    "set.tres_per_socket": "TresPerSocket",
    "set.tres_per_task": "TresPerTask",
    "set.tres_bind": "TresBind",
    "set.features": "Features",
    "set.prefer": "Prefer",
    "set.exc_nodes": "ExcNodeList",
}
_VARIABLE = re.compile(r"env\.[A-Z_]+=[A-Za-z0-9_=:.]+")

RETRY_S = 600.0
PASS_LIMIT_S = 120.0
ANSWER_LIMIT_S = 4.0

CHANGES_PENDING_GRES = (23, 11)
"""From this version on a waiting job's GPU can become a share, and its share a GPU: 22.05 refuses, 24.11 does both."""
_OLD = "Slurm of this version changes no waiting GPU into a share"
Outcome = Literal["decided", "advised", "not ours", "not read", "changed meanwhile", "undecided"]


def job_settings(answer: Mapping[str, str], admin_comment: str) -> tuple[str, ...]:
    """Return the settings of `scontrol update` that carry out *answer*; none where it leaves no mark.

    Args:
        answer: The daemon's, as job_submit gets it.
        admin_comment: The job's; what is not ours stays in it.

    Raises:
        RequestError: The answer names a setting that no waiting job can be given.
    """
    mark = parse_annotation(answer.get("mark", ""))
    if mark is None:
        return ()
    wanted = {name: value for name, value in answer.items() if name.startswith("set.")}
    strange = [name for name in wanted if name not in _SETTINGS]
    if strange:
        message = (
            f"A waiting job must be changed by {', '.join(_SETTINGS)} alone; got {strange[0]!r:.80}. Update gpusage."
        )
        raise RequestError(message)
    variables = [f"{name[4:]}={value}" for name, value in answer.items() if _VARIABLE.fullmatch(f"{name}={value}")]
    if variables:
        mark = replace(mark, reasons=f"set {' '.join(sorted(variables))}; {mark.reasons}")
    settings = tuple(f"{_SETTINGS[name]}={value}" for name, value in wanted.items())
    return (*settings, f"AdminComment={with_annotation(admin_comment, mark, MAXIMUM_BYTES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LateOutcome:
    """The result of one job in a pass.

    Attributes:
        why: More of it for people; may be empty.
    """

    job_id: str
    outcome: Outcome
    why: str = ""


@dataclass(slots=True, kw_only=True)
class LateDecider:
    """Decides late jobs in repeated passes.

    Attributes:
        sockets: Where gpusaged may listen.
    """

    sockets: Sequence[str]
    _again_s: dict[str, float] = field(default_factory=dict)

    def decide_all(self) -> list[LateOutcome]:
        """Decide the jobs that wait, and return the result of each.

        Raises:
            RequestError: slurmctld does not answer.
        """
        begun_s = time.monotonic()
        self._again_s = {job_id: again_s for job_id, again_s in self._again_s.items() if again_s > begun_s}
        seen = []
        for job_id in [job_id for job_id in late_job_ids() if job_id not in self._again_s]:
            if time.monotonic() > begun_s + PASS_LIMIT_S:
                break
            job = _read_or_none(job_id)
            if job is not None:
                seen.append(self._decide_job(job))
            self._again_s[job_id] = time.monotonic() + RETRY_S
        return seen

    def _decide_job(self, job: LateJob) -> LateOutcome:
        try:
            outcome, why = self._try_decide(job)
        except RequestError as error:
            outcome, why = "undecided", str(error)
        return LateOutcome(job_id=job.job_id, outcome=outcome, why=why)

    def _try_decide(self, job: LateJob) -> tuple[Outcome, str]:
        card = ""
        if names_model(job.comment):
            if not may_read_for(job.uid):
                return "not read", f"its user has uid {job.uid}, and only root may read with the rights of others"
            card = read_card(job.comment, job.uid, job.folder)
            if read_late_job(job.job_id) != job:
                return "changed meanwhile", ""
        answer = self._ask_gpusaged(job, card)
        settings = job_settings(answer, job.admin_comment)
        if not settings:
            return ("undecided", "gpusaged was too late") if answer.get("overdue") else ("not ours", "")
        update_job(job.job_id, *settings)
        mark = parse_annotation(answer["mark"])
        return "advised" if mark and mark.mode != "enforce" else "decided", str(mark)

    def _ask_gpusaged(self, job: LateJob, card: str) -> Mapping[str, str]:
        """Return gpusaged's answer about the job with its *card*."""
        advice_only = "" if scontrol.version() >= CHANGES_PENDING_GRES else _OLD
        fields = {**job.fields, "card": card, "advice_only": advice_only}
        question = {"v": 1, "manager": MANAGER, "fields": fields, "until_s": time.time() + ANSWER_LIMIT_S}
        socket = client.find_status(self.sockets)[0]
        answer = client.ask(socket, question, ANSWER_LIMIT_S)
        return {name: value for name, value in answer.items() if isinstance(value, str)}


def _read_or_none(job_id: str) -> LateJob | None:
    try:
        return read_late_job(job_id)
    except RequestError:  # it has ended
        return None


def late(*, once: bool, as_json: bool) -> None:
    """Decide jobs that wait and brought no description of their model."""
    decider = LateDecider(sockets=local_socket_candidates())
    if once:
        _show(decider.decide_all(), as_json=as_json)
        return
    refresh_s = max(1.0, load_configuration().daemon.refresh_s)
    click.echo(f"gpusage slurm late reads models {reading_rights()}, every {refresh_s:g} s; Ctrl-C ends it.", err=True)
    trouble = ""
    while True:
        trouble = _run_pass(decider, trouble, as_json=as_json)
        time.sleep(max(1.0, load_configuration().daemon.refresh_s))


def _run_pass(decider: LateDecider, last_error: str, *, as_json: bool) -> str:
    """Check the queue once; return the error, which is not logged again if it equals *last_error*."""
    try:
        seen = decider.decide_all()
    except GpuUsageError as error:  # slurmctld may be back next time
        if str(error) != last_error:
            click.echo(f"gpusage: {error}", err=True)
        return str(error)
    if seen:
        _show(seen, as_json=as_json)
    return ""


def _show(seen: Sequence[LateOutcome], *, as_json: bool) -> None:
    if as_json:
        tables.print_json({"schema": "gpusage.slurm.late/1", "jobs": [asdict(each) for each in seen]})
        return
    for each in seen:
        click.echo(f"{each.job_id}: {each.outcome}" + (f": {each.why}" if each.why else ""))
    if not seen:
        click.echo("No pending job lacks a description of its model.")
