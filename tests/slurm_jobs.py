"""Jobs on a sandbox's Slurm, for all tests: submitted until gpusaged was in time, and as slurmctld knows them.

A job is held until it is what a test wants, so that no other one ever starts.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpusage.service import client
from gpusage_sandboxes.slurm import Sandbox
from waiting import LIMIT_S, wait_until

GENEROUS = "[slurm]\nlimit_ms = 1000\ncard_limit_s = 20\n"
"""For tests in which speed is not tried: CI's machines are busy."""
PAUSE_S = 0.5
"""Between two submissions: gpusaged looks at the cluster once a second."""
_LATE = re.compile(
    r"no answer within|did not answer in time|did not come to it in time|deciding took longer|describing the model t"
    r"|models of this user took more than"
)


def first_job_number() -> str:
    """Return a line of slurm.conf that lets job numbers begin anywhere.

    A node's programs know a job's processes and cgroups by its number, and other sandboxes may be on the same host.
    """
    return f"FirstJobId={random.randrange(10_000, 50_000_000)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldJob:
    """A job that was submitted and is held.

    Attributes:
        output: The lines that its user saw.
        shown: As `show_job` has it.
    """

    job_id: str
    output: str
    shown: Mapping[str, str]

    @property
    def mark(self) -> str:
        """Return its admin comment, empty where it has none."""
        return self.shown.get("AdminComment", "")

    @property
    def tres(self) -> str:
        """Return what it asks for on each node."""
        return self.shown.get("TresPerNode", "")

    @property
    def was_in_time(self) -> bool:
        """Return whether gpusaged, and the description of the model, came in time."""
        return is_timely(f"{self.output}\n{self.mark}")


def is_timely(text: str) -> bool:
    """Return whether what a user was told, or a mark, does not say that somebody was late."""
    return not _LATE.search(text)


def show_job(sandbox: Sandbox, job: str) -> dict[str, str]:
    """Return what `scontrol show job` says; texts with blanks as a whole."""
    text = sandbox.run("scontrol", "show", "job", job).stdout
    texts = re.findall(r"^ *(AdminComment|Comment)=(.*?) *$", text, re.MULTILINE)
    return dict(re.findall(r"(\w+)=(\S*)", text)) | dict(texts)


def submit_until(
    sandbox: Sandbox,
    wanted: Callable[[HeldJob], object],
    *options: str,
    wrap: str | Path = "true",
    environment: Mapping[str, str] | None = None,
) -> HeldJob:
    """Submit a held job, and cancel it and submit it again until it is as *wanted*.

    gpusaged may be late, or not know yet what a decision rests on.

    Args:
        sandbox: Where.
        wanted: What the test needs of it.
        options: Of `sbatch`.
        wrap: Its script, as a text or a file.
        environment: Of `sbatch`, beside the sandbox's.
    """
    script = str(wrap) if isinstance(wrap, Path) else f"--wrap={wrap}"
    jobs: list[HeldJob] = []

    def is_as_wanted() -> bool:
        for earlier in jobs[-1:]:
            sandbox.run("scancel", earlier.job_id)
            time.sleep(PAUSE_S)
        command = ("sbatch", "--hold", *options, script)  # with --parsable nobody would be told anything
        done = sandbox.run(*command, environment=environment)
        job_id = done.stdout.split()[-1]
        jobs.append(HeldJob(job_id=job_id, output=done.stderr, shown=show_job(sandbox, job_id)))
        return bool(wanted(jobs[-1]))

    wait_until(is_as_wanted, lambda: jobs[-1])
    return jobs[-1]


def fresh_name() -> str:
    """Return a name that no job had: the next of one name or script, whatever its numbers, is whole after a failure."""
    return "".join(chr(ord("a") + int(digit)) for digit in str(time.time_ns()))


def submit_held(
    sandbox: Sandbox, *options: str, wrap: str | Path = "true", environment: Mapping[str, str] | None = None
) -> HeldJob:
    """Submit a held job about which gpusaged was asked, and was in time."""
    return submit_until(sandbox, lambda job: job.was_in_time, *options, wrap=wrap, environment=environment)


def submit_share(sandbox: Sandbox, *options: str, wrap: str = "true") -> str:
    """Submit a held job that asks for one GPU and became a share, and return its number."""
    return submit_until(sandbox, lambda job: "mps" in job.tres, "--gres=gpu:1", *options, wrap=wrap).job_id


def release(sandbox: Sandbox, *jobs: str) -> None:
    """Let held *jobs* start, in this order."""
    for job in jobs:
        sandbox.run("scontrol", "release", job)


def wait_for_state(sandbox: Sandbox, job: str, *states: str, restarts: int | None = None) -> dict[str, str]:
    """Wait until *job* is in one of *states* after so many *restarts*, and return what `show_job` returns."""

    def there() -> dict[str, str] | None:
        seen = show_job(sandbox, job)
        return seen if seen["JobState"] in states and restarts in (None, int(seen["Restarts"])) else None

    return wait_until(there, lambda: show_job(sandbox, job))


def own_output(path: Path) -> str:
    """Return what a job itself wrote to *path*, without the line by which our task prolog tells of its share."""
    return "".join(line for line in path.read_text().splitlines(keepends=True) if not line.startswith("gpusage: "))


def gpusaged_status(sandbox: Sandbox) -> dict[str, Any]:
    """Return how gpusaged fares."""
    return client.status(str(sandbox.layout.socket), LIMIT_S)


def wait_for_records(sandbox: Sandbox) -> None:
    """Wait until every decision is in the store: an answer leaves before its record where the disk is slow."""
    wait_until(lambda: gpusaged_status(sandbox)["records"]["waiting"] == 0)


def write_whole(path: Path, text: str) -> None:
    """Write a file at once: a slurmd that is told to reconfigure reads slurm.conf late, and ends at half of it."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def configure(sandbox: Sandbox, text: str) -> None:
    """Give gpusage the configuration *text*, and wait until gpusaged has read it."""
    log, toml = sandbox.layout.log_file("gpusaged"), sandbox.layout.gpusage_toml

    def read_count() -> int:
        return len(re.findall(r"^configuration (?:read again|unchanged):", log.read_text(), re.MULTILINE))

    before = read_count()
    write_whole(toml, text)  # half a file is a configuration as well
    wait_until(lambda: read_count() > before, log.read_text)
