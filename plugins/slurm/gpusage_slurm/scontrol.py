"""The answers of Slurm's own commands, as text or JSON; every call has a deadline and an error of one sentence."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from gpusage_hooks.errors import RequestError

# slurmctld may be busy for seconds; its own MessageTimeout is 10 s by default.
DEADLINE_S = 20.0
_MOST_JOBS = 500
"""That one question names: a command line has its limit."""
_CALLER_VARIABLES = ("SQUEUE_", "SINFO_", "SACCT_", "SCONTROL_", "SBATCH_", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")
"""Variables of a login shell by which commands leave jobs out, ask another cluster, write other times, ask for more."""
_OWN_VARIABLES = {
    "SLURM_BITSTR_LEN": "0",  # lists come whole
    # In a federation a site may have them show the jobs and nodes of all clusters (FederationParameters=fed_display).
    **dict.fromkeys(("SQUEUE_LOCAL", "SINFO_LOCAL", "SACCT_LOCAL", "SCONTROL_LOCAL"), "1"),
}
_PROGRAM_FOLDERS = ("/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin")
"""Where sites put a Slurm that they build; a service and a prolog have no PATH of the site's."""
_CONFIGURATIONS = ("/etc/slurm", "/etc/slurm-llnl", "/usr/local/etc", "/opt/slurm/etc", "/usr/local/slurm/etc")
_RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+)")
SANDBOX_RECORD = "installation.json"
"""The file beside the file system of a sandbox's Slurm, by which its programs are known."""

MOST_DIGITS = 11  # of seconds: dates end with the year 9999
UNKNOWN_JOB = "Invalid job id"
"""In Slurm's answer about one job alone that it does not know, or not any more."""

Line = Mapping[str, str]
"""What one line of `scontrol show ... --oneliner` says, by Slurm's own names."""


def run(*arguments: str, deadline_s: float = DEADLINE_S) -> str:
    """Return the standard output of a Slurm command; bytes of a user's that are no text are replaced.

    Raises:
        RequestError: The command is missing, fails, or does not answer in time.
    """
    return run_bytes(*arguments, deadline_s=deadline_s).decode("utf-8", "replace")


def run_bytes(*arguments: str, deadline_s: float = DEADLINE_S) -> bytes:
    """Return the standard output of a Slurm command as it is.

    Raises:
        RequestError: As `run`.
    """
    command = " ".join(arguments)
    # Seconds since 1970, because an hour of local time comes twice in the night in which clocks are set back.
    times = {"SLURM_TIME_FORMAT": "%s"} if arguments[0] == "sacct" else {}
    try:
        done = subprocess.run(arguments, capture_output=True, timeout=deadline_s, check=True, env=environment() | times)
    except OSError as error:  # none, or a folder on the PATH that this user may not look into
        message = (
            f"Command {arguments[0]!r} must be on the PATH; got: {error.strerror}. Install Slurm's client commands."
        )
        raise RequestError(message) from error
    except subprocess.TimeoutExpired as error:
        message = f"Command {command!r} must answer within {deadline_s:g} s; got nothing. Check that slurmctld runs."
        raise RequestError(message) from error
    except subprocess.CalledProcessError as error:
        printed = " ".join((error.stderr or error.stdout).decode("utf-8", "replace").split())
        outcome = printed or f"exit status {error.returncode}"
        message = f"Command {command!r} must succeed; got: {outcome}. Check that slurmctld runs ('scontrol ping')."
        raise RequestError(message) from error
    return done.stdout


def environment() -> dict[str, str]:
    """Return this process's variables, without any that change the answers of Slurm's commands.

    The commands are looked for on the PATH, beside slurm.conf, where sites put their own, and beside Slurm's daemons.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_CALLER_VARIABLES)}

    # A site's own Slurm has etc/slurm.conf and bin side by side.
    conf = inherited.get("SLURM_CONF", "")
    configured_folder = [str(Path(conf).parent.parent / "bin")] if conf.startswith("/") and conf.count("/") > 1 else []
    path = ":".join(
        dict.fromkeys([*inherited.get("PATH", os.defpath).split(":"), *configured_folder, *_PROGRAM_FOLDERS])
    )

    # To look at every process takes some milliseconds, so it comes last.
    if shutil.which("scontrol", path=path) is None:
        path = ":".join(dict.fromkeys([path, *_daemon_folders()]))
    return {**inherited, "PATH": path, **_OWN_VARIABLES}


def _daemon_folders() -> Iterator[str]:
    """Yield where commands lie beside the Slurm daemons of this host; any user may call a program ``slurmd``.

    A sandbox's commands know their cluster only in its own shell, which has them on its PATH.
    """
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if process.stat().st_uid in (0, os.geteuid()) and (process / "comm").read_text().startswith("slurm"):
                program = (process / "exe").readlink()
                if not any((folder / SANDBOX_RECORD).is_file() for folder in program.parents):
                    yield str(program.parent.parent / "bin")


def has_commands() -> bool:
    """Return whether Slurm's commands are on this host."""
    return shutil.which("squeue", path=environment()["PATH"]) is not None


def is_slurm_host() -> bool:
    """Return whether this host is meant to have Slurm: it has its commands, or its configuration."""
    named = os.environ.get("SLURM_CONF")
    return bool(named) or has_commands() or any(Path(folder, "slurm.conf").is_file() for folder in _CONFIGURATIONS)


def configuration() -> Mapping[str, str]:
    """Return slurmctld's settings as it uses them, by their names in lower case."""
    return parse_configuration(run("scontrol", "show", "config"))


def parse_configuration(text: str) -> Mapping[str, str]:
    """Return the settings in the output of `scontrol show config`; `(null)` is an empty text."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip().lower(): "" if value.strip() == "(null)" else value.strip() for key, _, value in pairs}


def release(settings: Mapping[str, str]) -> tuple[int, int, int] | None:
    """Return the whole version of the running slurmctld, ``None`` where its *settings* do not have it."""
    match = _RELEASE.match(settings.get("slurm_version", ""))
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def require_slurmdbd() -> None:
    """Raise unless slurmdbd keeps this cluster's accounting, which `sacct` reads.

    Raises:
        RequestError: There is no slurmdbd, or slurmctld does not answer.
    """
    kind = configuration().get("accountingstoragetype", "")
    if not kind.endswith("slurmdbd"):
        rule = "keep its accounting in slurmdbd: AccountingStorageType must be accounting_storage/slurmdbd"
        message = f"Slurm must {rule}; got {kind!r}. Set up slurmdbd."
        raise RequestError(message)


def version() -> tuple[int, int]:
    """Return major and minor of the installed commands, for example ``(22, 5)``."""
    return parse_version(run("scontrol", "--version"))


def parse_version(text: str) -> tuple[int, int]:
    """Return major and minor of `slurm-wlm 22.05.8` or `slurm 24.11.5`."""
    numbers = text.rsplit(maxsplit=1)[-1].split(".")
    return int(numbers[0]), int(numbers[1])


def partitions() -> tuple[Line, ...]:
    """Return the partitions as slurmctld describes them."""
    return parse_lines(run("scontrol", "show", "partitions", "--oneliner"), "PartitionName")


def reservations() -> tuple[Line, ...]:
    """Return the reservations as slurmctld describes them."""
    return parse_lines(run("scontrol", "show", "reservations", "--oneliner"), "ReservationName")


def parse_lines(text: str, key: str) -> tuple[Line, ...]:
    """Return the fields of each line of `scontrol show ... --oneliner` that has *key*, by Slurm's own names.

    Of a word that stands twice the last one counts; a text with spaces is cut at the first. So this is for what
    administrators write, partitions and reservations, and not for jobs, in whose lines users write.
    """
    parsed = (dict(word.split("=", 1) for word in line.split() if "=" in word) for line in text.splitlines())
    return tuple(line for line in parsed if key in line)


def local_time(time_s: float) -> str:
    """Return seconds since 1970 as `sacct` takes a time, which is this host's."""
    return datetime.fromtimestamp(time_s).astimezone().strftime("%Y-%m-%dT%H:%M:%S")


def seconds_of(text: str) -> float | None:
    """Return seconds since 1970 of a time of this host, or of such seconds; ``None`` for ``Unknown``."""
    if text.isdecimal() and text.isascii() and len(text) <= MOST_DIGITS:
        return float(text)
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError):
        return None


def job_id_options(job_ids: Sequence[str]) -> Iterator[str]:
    """Yield the option by which `squeue` and `sacct` are asked for some hundreds of *job_ids*, till all are named."""
    for begin in range(0, len(job_ids), _MOST_JOBS):
        yield f"--jobs={','.join(job_ids[begin : begin + _MOST_JOBS])}"


def nodes() -> list[Mapping[str, Any]]:
    """Return every node as Slurm's JSON describes it; scontrol learned JSON after 22.05, where sinfo's is the same."""
    try:
        text = run("scontrol", "show", "nodes", "--json")
    except RequestError:
        text = run("sinfo", "--json")

    try:
        records: list[Mapping[str, Any]] = json.loads(text)["nodes"]
    except (ValueError, KeyError) as error:
        message = f"Slurm's nodes must be a JSON document with 'nodes'; got {text[:40]!r}. Check `sinfo --json`."
        raise RequestError(message) from error
    return records
