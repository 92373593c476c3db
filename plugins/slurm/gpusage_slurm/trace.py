"""Output of `sacct` on past jobs -> the jobs that `gpusage simulate` and `gpusage report --from` read.

Assumptions, also in lab/docs/simulator.md: a job stays on the GPU type on which it ran; its time there is its time
alone; a job that had a share asked for one GPU; the site's comment names its model where Slurm keeps comments; a time
limit is what backfill plans by.

Slurm samples GPUs itself where ``AccountingStorageTRES`` has ``gres/gpu`` and gres.conf ``AutoDetect=nvml``. Its steps
then have, in ``TRESUsageInMax``, the most that one of their tasks was seen to take.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path

from gpusage.cli.user_file import require_regular
from gpusage_hooks.comment import is_model_path
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import PastJob
from gpusage_hooks.units import WHOLE_PERCENT
from gpusage_slurm import scontrol
from gpusage_slurm.cluster.hostlist import expand_hostlist
from gpusage_slurm.tres import is_gpu, is_share, parse_tres
from gpusage_slurm.usage.collection import outcome_of

REQUIRED_COLUMNS = ("JobID", "User", "Submit", "ElapsedRaw", "TimelimitRaw", "AllocTRES")
OPTIONAL_COLUMNS = (
    *("Start", "State", "ExitCode", "Partition", "NodeList", "NTasks", "TRESUsageInMax"),
    *("WorkDir", "Comment"),
)
COLUMNS = ",".join((*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS))
OPTIONS = ("--allusers", "--parsable2")
COMMAND = (
    f"SLURM_TIME_FORMAT=%s sacct {' '.join(OPTIONS)} --duplicates --noconvert"
    f" --delimiter=$(cat /proc/sys/kernel/random/uuid) --format={COLUMNS}"
)
"""What stands between the cells is a word that no user could know, so no comment passes for a job. Seconds since 1970
are in no time zone, and no hour of them comes twice."""
BAR = "|"
SECONDS = 60
MODEL = "model="
# Of a first line: a large file of another kind is not read whole.
LONGEST_HEAD = 4096
MOST_COUNTED = 1 << 50
"""Of a resource: Slurm's counter that was never read is near 2 to the 64."""
DEADLINE_S = 600.0
"""A large site's month is some hundred thousand jobs."""
GOES_ON = ("RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STAGE_OUT", "SIGNALING", "STOPPED", "RESIZING")
_USED = re.compile(r"gres/gpu(mem|util)=(\d{1,20}(?:\.\d{1,9})?)([KMGTP]?)")
_SCALES = {unit: 1 << 10 * power for power, unit in enumerate(("", *"KMGTP"))}
Cells = Mapping[str, str]


def read_past_jobs(path: str) -> Sequence[PastJob] | None:
    """Return the jobs of the file at *path*; ``None`` where its first line is not of ``sacct --parsable2``.

    Raises:
        RequestError: As `past_jobs`.
    """
    require_regular(Path(path), "File")
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            head = file.readline(LONGEST_HEAD)
            names = head.rstrip("\n").split(_delimiter_of(head))
            text = head + file.read() if REQUIRED_COLUMNS[0] in names else None
    except OSError:
        return None  # whoever reads it next says so

    return None if text is None else [*past_jobs(text, path)]


def collect_past_jobs(since_s: float) -> tuple[PastJob, ...]:
    """Return the jobs since *since_s*, in seconds since 1970, that this user may see.

    Raises:
        RequestError: Slurm keeps no accounting, or does not answer.
    """
    scontrol.require_slurmdbd()
    options = (f"--delimiter={uuid.uuid4()}", f"--starttime={scontrol.local_time(since_s)}", f"--format={COLUMNS}")
    return tuple(past_jobs(scontrol.run("sacct", *OPTIONS, *options, deadline_s=DEADLINE_S), "sacct"))


def past_jobs(text: str, origin: str) -> Iterator[PastJob]:
    """Yield the jobs of *text*, output of ``sacct --parsable2``, and for each other row why it is left out.

    A comment, the last column, may have bars and line breaks of its own. Between bars, such a line may pass for a job.

    Raises:
        RequestError: A column is missing.
    """
    lines = text.rstrip("\n").split("\n")
    between = _delimiter_of(lines[0])
    names = lines[0].split(between)
    missing = [name for name in REQUIRED_COLUMNS if name not in names]
    if missing:
        got = repr(lines[0][:80]) if text else "nothing"
        message = f"File {origin!r} must have the column {missing[0]!r}; got {got}. Write it with: {COMMAND}"
        raise RequestError(message)

    # Steps stand below their job: the last row with a job's own id.
    job: Cells | None = None
    steps: list[Cells] = []
    for line in lines[1:]:
        cells = dict(zip(names, line.split(between, len(names) - 1), strict=False))
        if len(cells) < len(names):
            if between == BAR:  # else the rest of a comment
                yield left_out("the row has too few cells")
        elif "." not in cells["JobID"]:
            yield from () if job is None else (_past_job(job, steps),)
            job, steps = cells, []
        elif job is not None and cells["JobID"].partition(".")[0] == job["JobID"]:
            steps.append(cells)
        else:
            yield left_out("a step without its job")
    yield from () if job is None else (_past_job(job, steps),)


@cache
def left_out(why: str) -> PastJob:
    """Return a row that is no job on GPUs, and why; one object for all such rows, of which a site has many."""
    return PastJob(job_id="", user="", submitted_at_s=0.0, duration_s=0.0, gpu_count=0, left_out=why)


def _delimiter_of(head: str) -> str:
    """Return the delimiter of a file whose first line is *head*."""
    match = re.match(f"{REQUIRED_COLUMNS[0]}(.+?){REQUIRED_COLUMNS[1]}", head)
    return match[1] if match and BAR not in head and match[1] != "," else BAR  # cells have commas


def _past_job(cells: Cells, steps: Sequence[Cells]) -> PastJob:
    """Return the job in *cells*, by what its *steps* took; or why it is none that ended on GPUs."""
    elapsed, state = cells["ElapsedRaw"], cells.get("State", "").partition(" ")[0]
    started_at_s, submitted_at_s = scontrol.seconds_of(cells.get("Start", "")), scontrol.seconds_of(cells["Submit"])
    if not _is_count(elapsed):
        return left_out("ElapsedRaw is not whole seconds")
    if state == "PENDING" or state in GOES_ON:
        return left_out("has not started" if state == "PENDING" else "has not ended")

    resources = parse_tres(cells["AllocTRES"])
    gpus = [each for each in resources if is_gpu(each)]
    typed = [each for each in gpus if each.kind is not None]  # of which the untyped count is the sum
    counts = [sum(each.count or 0 for each in some) for some in (typed, [each for each in gpus if each.kind is None])]
    count = max(*counts, int(any(map(is_share, resources))))
    if not count:
        return left_out("had no GPU")
    if int(elapsed) == 0:
        return left_out("ran for less than a second, or never")
    if submitted_at_s is None and started_at_s is None:
        return left_out("Submit and Start are no times")

    # Of several types, or of one that slurmdbd does not count, nobody knows how many there are of each.
    kind = typed[0].kind if len(typed) == 1 and counts[0] == count else None
    memory, utilization = (_peak(steps, name) for name in ("mem", "util"))
    limit = cells["TimelimitRaw"]
    return PastJob(
        job_id=cells["JobID"],
        user=cells["User"],
        submitted_at_s=submitted_at_s if submitted_at_s is not None else started_at_s or 0.0,
        duration_s=float(elapsed),
        gpu_count=count,
        gpu_type=kind,
        model=_model(cells),
        time_limit_s=float(SECONDS * int(limit)) if _is_count(limit) and int(limit) else None,
        started_at_s=started_at_s,
        outcome=outcome_of({"State": state, "exit_code": cells.get("ExitCode", "")}),
        partition=cells.get("Partition", ""),
        node=_first_node(cells.get("NodeList", "")) if kind or not typed else "",
        memory_bytes=None if memory is None else round(memory),
        peak_utilization=None if utilization is None else min(utilization / WHOLE_PERCENT, 1.0),
    )


def _model(cells: Cells) -> str | None:
    """Return the model that a job's comment names; its path begins in the job's folder, where sbatch looked for it."""
    comment = cells.get("Comment", "").strip()
    if not comment.startswith(MODEL):
        return None
    model = comment.removeprefix(MODEL)
    if model.startswith("~") or not is_model_path(model):
        return model
    return os.path.join(cells.get("WorkDir", ""), model)  # noqa: PTH118 - any text


def _peak(steps: Iterable[Cells], name: str) -> float | None:
    """Return the most that *steps* took at a time of a counter; ``None`` where Slurm has none.

    Slurm has the most of one task, so a step takes as much as all of its tasks would; steps may run side by side.
    """
    changes = []
    for step in steps:
        used = next((match for match in _USED.finditer(step.get("TRESUsageInMax", "")) if match[1] == name), None)
        taken = float(used[2]) * _SCALES[used[3]] if used else MOST_COUNTED
        if taken < MOST_COUNTED:
            tasks, elapsed = step.get("NTasks", ""), step["ElapsedRaw"]
            taken *= int(tasks) if _is_count(tasks) and int(tasks) else 1
            start_s = scontrol.seconds_of(step.get("Start", "")) or 0.0
            changes += [(start_s, taken), (start_s + max(float(elapsed) if _is_count(elapsed) else 0.0, 1.0), -taken)]

    # Of one moment the ends come first.
    return max(accumulate(change for _, change in sorted(changes)), default=None)


def _first_node(nodes: str) -> str:
    try:
        return next(iter(expand_hostlist(nodes)), "")
    except RequestError:
        return ""


def _is_count(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) <= scontrol.MOST_DIGITS
