"""What runs on a compute node for each job: our task prolog, prolog, epilog and task epilog, beside the site's own.

Invariants:

1. A site's own script runs as before, and its exit status is the whole's; ours cannot fail.
2. Where a site has none and no setting has to travel, slurm.conf names our script itself, else a wrapper beside it.
3. A wrapper on a node that lacks gpusage goes on without it.
"""

from __future__ import annotations

import glob
import re
import shlex
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpusage_slurm.scontrol import Line

FOLDER = Path(__file__).parents[1] / "node"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_GLOB = re.compile(r"[*?\[]")
_ENDED = "PrologFlags=RunInJob ends a GPU's MPS daemon with the job that began it, and with it the jobs beside it"
_MISSING = "the nodes do not run gpusage's {}, which hold a job to its share"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeScript:
    """One of the scripts.

    Attributes:
        key: The setting of slurm.conf that names it.
        what: What people call it.
    """

    key: str
    what: str

    @property
    def name(self) -> str:
        """Our file's name."""
        return f"{self.what.replace(' ', '_')}.sh"

    @property
    def path(self) -> Path:
        """Where our own script lies."""
        return FOLDER / self.name

    def wrapper(self, folder: Path) -> Path:
        """Return where a wrapper of it lies when slurm.conf lies in *folder*."""
        return folder / f"gpusage_{self.name}"


TASK_PROLOG = NodeScript(key="TaskProlog", what="task prolog")
PROLOG = NodeScript(key="Prolog", what="prolog")
EPILOG = NodeScript(key="Epilog", what="epilog")
TASK_EPILOG = NodeScript(key="TaskEpilog", what="task epilog")
SAMPLER = "usage.sh"
"""What our prolog and epilog call, where it lies beside them, so that a job's usage is sampled."""
SCRIPTS = (TASK_PROLOG, PROLOG, EPILOG, TASK_EPILOG)
NEEDED = (TASK_PROLOG, PROLOG, EPILOG)
"""Without these no job is held to its share; without the task epilog none is rescued."""


def render_wrapper(script: NodeScript, theirs: str | None, *, across_users: bool) -> str | None:
    """Return the wrapper of *script* where one is needed: the site has *theirs*, or a setting must reach the prolog.

    A prolog of the site's comes first, since ours relies on what it sets up; an epilog of the site's comes last.
    """
    is_multiuser = across_users and script is PROLOG
    if theirs in (None, "", str(script.path)):
        if not is_multiuser:
            return None
        theirs = None
    ours = shlex.quote(str(script.path))
    export = "export GPUSAGE_ACROSS_USERS=yes\n" if is_multiuser else ""
    site = _call(theirs, '"$@" ' if script in (TASK_PROLOG, TASK_EPILOG) else "") if theirs else ""
    if script is EPILOG:
        return f"#!/bin/sh\n# gpusage's epilog, then the site's own.\n[ ! -x {ours} ] || {ours}\n{site}"
    head = f"#!/bin/sh\n# The site's own {script.what}, then gpusage's.\n"
    return f"{head}{site}{export}[ ! -x {ours} ] || exec {ours}\n"


def _call(theirs: str, arguments: str) -> str:
    """Return the lines that run a site's script, or all that a pattern finds, as Slurm does: the last name first."""
    if arguments or not _GLOB.search(theirs):
        return f"{shlex.quote(theirs)} {arguments}|| exit $?\n"
    pattern = re.sub(r"[^\w/.*?\[\]-]", r"\\\g<0>", theirs)
    return f'set --\nfor each in {pattern}; do set -- "$each" "$@"; done\nfor each; do "$each" || exit $?; done\n'


def missing(settings: Mapping[str, str]) -> tuple[NodeScript, ...]:
    """Return the needed scripts of ours that slurmctld's *settings*, by their names in lower case, do not name."""
    return tuple(script for script in NEEDED if named(settings, script) is None)


def named(settings: Mapping[str, str], script: NodeScript) -> str | None:
    """Return the path of *script*, or of its wrapper, that slurmctld's *settings* name; ``None`` where they do not.

    From 24.11 on there may be several prologs, ``prolog[0]`` and so on; a pattern is looked up on this host.
    """
    key = script.key.lower()
    values = [value for name, value in settings.items() if name.partition("[")[0] == key]
    paths = [path for value in values for path in (glob.glob(value) or [value])]  # noqa: PTH207 - of a whole path
    return next((path for path in paths if is_ours(Path(path), script)), None)


def is_ours(path: Path, script: NodeScript) -> bool:
    """Tell whether the file at *path* is *script* or a wrapper of it, by its name."""
    return "gpusage" in path.name or path.parts[-3:] == script.path.parts[-3:]


def unshared(settings: Mapping[str, str], partitions: Iterable[Line]) -> dict[str, str]:
    """Return every partition, with why no GPU is shared there: slurmctld's *settings* let nothing hold jobs apart.

    Args:
        settings: slurmctld's, by their names in lower case.
        partitions: As `scontrol.partitions` returns them.
    """
    lacking = " and ".join(script.what for script in missing(settings))
    why = _MISSING.format(lacking) if lacking else _ENDED if ends_with_job(settings) else ""
    names = [f"partition={each['PartitionName']}" for each in partitions] if why else ()
    return dict.fromkeys(names, why)


def ends_with_job(settings: Mapping[str, str]) -> bool:
    """Tell whether what a prolog starts ends with its job, because by *settings* the prolog runs inside the job."""
    return "runinjob" in settings.get("prologflags", "").lower().split(",")


def not_roots_own(path: Path) -> Path | None:
    """Return what of *path*, from it up to the root folder, a user other than root may change; ``None`` where nothing.

    A folder with the sticky bit lets others add to it, and change nothing of root's.
    """
    for part in (path, *path.parents):
        status = part.stat()
        if status.st_uid != 0 or (status.st_mode & _OTHERS_WRITE and not status.st_mode & stat.S_ISVTX):
            return part
    return None
