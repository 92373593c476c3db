"""The scripts that Slurm runs on compute nodes for each job, beside the site's own: where they lie and who names them.

Invariants:

1. A site's own script runs as before, and its exit status is the result; ours cannot fail.
2. slurm.conf names the host's copies in one folder that no package manager replaces (`libexec`), or wrappers beside
   slurm.conf where the site has a script of its own or a setting must reach the prolog; never a file inside a package.
3. The copies need nothing of gpusage's Python package: while that is missing or half replaced they work, without the
   programs of the package that they call (the sampler, gpusaged, `gpusage job-card`). A wrapper works without a copy.
4. A copy is replaced by a rename, so that there is no moment without it.
"""

from __future__ import annotations

import glob
import re
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from gpusage.boundary.edits import Edit, read_text
from gpusage.capture import ON_START
from gpusage.node.dividing.programs import node_programs, plain_python
from gpusage_slurm.install import lua_scripts
from gpusage_slurm.scontrol import Line

NODE_FOLDER = Path(__file__).parents[1] / "node"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_GLOB = re.compile(r"[*?\[]")
_ENDED = "PrologFlags=RunInJob ends a GPU's MPS daemon with the job that began it, and with it the jobs beside it"
_MISSING = "the nodes do not run gpusage's {}, which hold a job to its share"

_README = """\
Slurm and YARN run these files of gpusage {version}. They are copies, so that no upgrade of gpusage takes one away while
a job begins. `gpusage slurm install --node --yes` writes them again, `gpusage slurm uninstall --node --yes` removes
them.
"""


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
        """Where our own script lies, inside the package: slurm.conf must not name it."""
        return NODE_FOLDER / self.name

    def copy(self, folder: Path) -> Path:
        """Return where its copy lies in *folder*, the host's own or that of slurm.conf, which holds a wrapper."""
        return folder / f"gpusage_{self.name}"


TASK_PROLOG = NodeScript(key="TaskProlog", what="task prolog")
PROLOG = NodeScript(key="Prolog", what="prolog")
EPILOG = NodeScript(key="Epilog", what="epilog")
TASK_EPILOG = NodeScript(key="TaskEpilog", what="task epilog")
SAMPLER = "usage.sh"
"""What our prolog and epilog call, where it lies beside them, so that a job's usage is sampled."""
_CALLED = ("turn_back.sh", "units_per_gpu.sh")
"""What they call as well."""
SCRIPTS = (TASK_PROLOG, PROLOG, EPILOG, TASK_EPILOG)
REQUIRED_SCRIPTS = (TASK_PROLOG, PROLOG, EPILOG)
"""Without these no job is held to its share; without the task epilog none is rescued."""


def render_wrapper(script: NodeScript, theirs: str | None, copy: Path, *, across_users: bool) -> str | None:
    """Return the wrapper of *script* where one is needed: the site has *theirs*, or a setting must reach the prolog.

    A prolog of the site's comes first, since our *copy* relies on what it sets up; an epilog of the site's comes last.
    """
    is_multiuser = across_users and script is PROLOG
    if not theirs and not is_multiuser:
        return None

    ours = shlex.quote(str(copy))
    export = "export GPUSAGE_ACROSS_USERS=yes\n" if is_multiuser else ""
    site = _call(theirs, '"$@" ' if script in (TASK_PROLOG, TASK_EPILOG) else "") if theirs else ""

    # A missing copy of ours must fail no job: an epilog or prolog with a status other than 0 drains the node.
    if script is EPILOG:
        return f"#!/bin/sh\n# gpusage's epilog, then the site's own.\n[ ! -x {ours} ] || {ours}\n{site}exit 0\n"
    head = f"#!/bin/sh\n# The site's own {script.what}, then gpusage's.\n"
    return f"{head}{site}{export}[ ! -x {ours} ] || {ours}\nexit 0\n"


def _call(theirs: str, arguments: str) -> str:
    """Return the lines that run a site's script, or all that a pattern finds, as Slurm does: the last name first."""
    if arguments or not _GLOB.search(theirs):
        return f"{shlex.quote(theirs)} {arguments}|| exit $?\n"

    # Everything but the pattern itself is quoted, so that the shell expands it and nothing else.
    pattern = re.sub(r"[^\w/.*?\[\]-]", r"\\\g<0>", theirs)
    return f'set --\nfor each in {pattern}; do set -- "$each" "$@"; done\nfor each; do "$each" || exit $?; done\n'


def missing_scripts(settings: Mapping[str, str]) -> tuple[NodeScript, ...]:
    """Return the needed scripts of ours that slurmctld's *settings*, by their names in lower case, do not name."""
    return tuple(script for script in REQUIRED_SCRIPTS if script_path(settings, script) is None)


def script_path(settings: Mapping[str, str], script: NodeScript) -> str | None:
    """Return the path of *script*, or of its wrapper, that slurmctld's *settings* name; ``None`` where they do not.

    From 24.11 on there may be several prologs, ``prolog[0]`` and so on; a pattern is looked up on this host.
    """
    key = script.key.lower()
    values = [value for name, value in settings.items() if name.partition("[")[0] == key]
    paths = [path for value in values for path in (glob.glob(value) or [value])]  # noqa: PTH207 - of a whole path
    return next((path for path in paths if is_ours(Path(path), script)), None)


def is_ours(path: Path, script: NodeScript) -> bool:
    """Return whether the file at *path* is *script* or a wrapper of it, by its name."""
    return "gpusage" in path.name or path.parts[-3:] == script.path.parts[-3:]


def unenforced_partitions(settings: Mapping[str, str], partitions: Iterable[Line]) -> dict[str, str]:
    """Return every partition, with why no GPU is shared there: slurmctld's *settings* let nothing hold jobs apart.

    Args:
        settings: slurmctld's, by their names in lower case.
        partitions: As `scontrol.partitions` returns them.
    """
    lacking = " and ".join(script.what for script in missing_scripts(settings))
    why = _MISSING.format(lacking) if lacking else _ENDED if prolog_runs_in_job(settings) else ""
    names = [f"partition={each['PartitionName']}" for each in partitions] if why else ()
    return dict.fromkeys(names, why)


def prolog_runs_in_job(settings: Mapping[str, str]) -> bool:
    """Return whether a prolog's processes end with its job, because by *settings* the prolog runs inside the job."""
    return "runinjob" in settings.get("prologflags", "").lower().split(",")


def path_not_owned_by_root(path: Path) -> Path | None:
    """Return the first of *path* and its parents that others than root may change; ``None`` if there is none.

    A folder with the sticky bit lets others add to it, and change nothing of root's.
    """
    # Whoever may rename a parent may replace what lies in it.
    for part in (path, *path.parents):
        status = part.stat()
        if status.st_uid != 0 or (status.st_mode & _OTHERS_WRITE and not status.st_mode & stat.S_ISVTX):
            return part
    return None


def plan_copies(folder: Path) -> tuple[Edit, ...]:
    """Return the edits that put all that Slurm runs on a host into *folder*.

    A node needs no Python for it, but to sample jobs: then it must have the Python of this installation, with gpusage.
    """
    return tuple(
        Edit(path=path, before=read_text(path), after=text, mode=mode, summary="what Slurm runs on this host")
        for path, text, mode in _copies(folder)
    )


def plan_removal(folder: Path) -> tuple[Edit, ...]:
    """Return the edits that take the files of `plan_copies` out of *folder*."""
    return tuple(
        Edit(path=path, before=read_text(path), after=None, summary="is removed") for path, _, _ in _copies(folder)
    )


def _copies(folder: Path) -> Iterator[tuple[Path, str, int]]:
    """Yield each file's path, its text and its mode."""
    for script in SCRIPTS:
        text = script.path.read_text(encoding="utf-8")
        yield script.copy(folder), text.replace("{GPUSAGE_ON_START:-}", f"{{GPUSAGE_ON_START:-{ON_START}}}"), 0o755
    for name in _CALLED:
        yield folder / name, (NODE_FOLDER / name).read_text(encoding="utf-8"), 0o755
    yield from node_programs(folder)

    # A copy lies apart from the package, so it has that Python's path in it.
    sampler = (NODE_FOLDER / SAMPLER).read_text(encoding="utf-8")
    text = sampler.replace("{GPUSAGE_PYTHON:-}", f"{{GPUSAGE_PYTHON:-{plain_python()}}}")
    yield folder / SAMPLER, text, 0o755

    for name in lua_scripts.MODULES:
        yield folder / name, (lua_scripts.LUA_FOLDER / name).read_text(encoding="utf-8"), 0o644
    yield folder / "README", _README.format(version=version("gpusage")), 0o644
