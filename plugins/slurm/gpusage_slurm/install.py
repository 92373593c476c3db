"""What installing changes at a site, as a list of edits that can be shown, made, and unmade.

Invariants:

1. Planning reads and never writes; `make_edits` writes all or, where one fails, none.
2. Planning an installation where one stands gives edits that change nothing.
3. After an uninstallation each file has the site's own bytes again, also where the site changed it meanwhile.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from gpusage.configuration import Configuration, SiteMode, configuration_path, load_configuration
from gpusage.edits import Edit, edit_of, read_text
from gpusage_hooks.errors import RequestError
from gpusage_slurm import conf, preference
from gpusage_slurm.block import with_block, without_block
from gpusage_slurm.lua import LuaSettings, cli_filter_block, job_submit_block

_INCLUDE = re.compile(r"^\s*include\s+(\S+)", re.IGNORECASE | re.MULTILINE)
_BILLED = re.compile(r"^[^#\n]*TRESBillingWeights=[^#\n]*gres/mps", re.IGNORECASE | re.MULTILINE)
_MODE = re.compile(r"""^[ \t]*mode[ \t]*=[ \t]*("[^"\n]*"|'[^'\n]*')""", re.MULTILINE)
_NODE = Path(__file__).parent / "node"
_PROTECTED = ("/home", "/root")  # ProtectHome= of the unit
TRACKED = ("gres/gpu", "gres/mps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where a site keeps what we change.

    Attributes:
        slurm_conf: Its main configuration file.
        gpusage_toml: Ours.
        command: The `gpusage` that the login nodes call.
        unit_folder: Where to put gpusaged's unit; ``None`` leaves systemd alone.
    """

    slurm_conf: Path
    gpusage_toml: Path
    command: Path
    unit_folder: Path | None = None

    @property
    def folder(self) -> Path:
        """Where slurmctld looks for its Lua scripts."""
        return self.slurm_conf.parent


def find_site(slurm_conf: Path | None = None, unit_folder: Path | None = None) -> Site:
    """Return the site whose *slurm_conf* is given, else the one that SLURM_CONF names, else the usual place's.

    Raises:
        RequestError: There is no such file, or a unit is wanted and could not start this installation's daemon.
    """
    chosen = slurm_conf or Path(os.environ.get("SLURM_CONF") or "/etc/slurm/slurm.conf")
    if not chosen.is_file():
        message = f"Slurm's configuration must be a file; got {str(chosen)!r}. Name it with --slurm-conf."
        raise RequestError(message)
    command = Path(sys.executable).parent / "gpusage"
    if unit_folder is not None and any(command.is_relative_to(folder) for folder in _PROTECTED):
        message = (
            f"gpusage must lie where systemd's unit may read it, not below {' or '.join(_PROTECTED)}; got "
            f"{str(command.parent)!r}. Install it in /opt, for example."
        )
        raise RequestError(message)
    # Not resolved: where slurm.conf is a link, Slurm looks for its scripts beside the link.
    chosen = chosen.absolute()
    return Site(slurm_conf=chosen, gpusage_toml=configuration_path(), command=command, unit_folder=unit_folder)


def plan_installation(site: Site, mode: SiteMode | None = None) -> tuple[Edit, ...]:
    """Return the edits that install us; *mode* is ``observe`` at a new site, and an old one's own, where not given."""
    configuration = load_configuration() if site.gpusage_toml.exists() else Configuration()
    settings = LuaSettings(
        socket=configuration.daemon.socket,
        limit_ms=configuration.slurm.limit_ms,
        card_limit_s=configuration.slurm.card_limit_s,
        command=str(site.command),
    )
    texts = dict(_configuration_files(site))
    prolog = _add_settings(texts, site)
    edits = [
        edit_of(site.folder / name, with_block(read_text(site.folder / name) or "", body))
        for name, body in (
            ("job_submit.lua", job_submit_block(settings)),
            ("cli_filter.lua", cli_filter_block(settings)),
        )
    ]
    if prolog is not None:
        edits.append(edit_of(_prolog_path(site), prolog, executable=True))
    edits.append(edit_of(site.gpusage_toml, _toml(read_text(site.gpusage_toml), mode)))
    edits += _unit_edits(site, _unit(site))
    # What slurm.conf names must be there first: sbatch reads slurm.conf anew each time, and fails without the script.
    return (*edits, *(edit_of(path, texts[path]) for path in texts))


def plan_uninstallation(site: Site) -> tuple[Edit, ...]:
    """Return the edits that take us out; a gpusage.toml that the site changed is left to it.

    A task prolog that wraps the site's own goes with the second uninstallation, when no slurm.conf names it any more.
    """
    edits = [edit_of(path, conf.without_edits(text)) for path, text in _configuration_files(site)]
    for name in ("job_submit.lua", "cli_filter.lua"):
        text = read_text(site.folder / name)
        if text is not None:
            edits.append(
                edit_of(site.folder / name, without_block(text) or (None if without_block(text) != text else ""))
            )
    # Until the slurmds have read slurm.conf again, they fail each task whose prolog is gone: it stays till then.
    if not any(edit.before and str(_prolog_path(site)) in edit.before for edit in edits):
        edits.append(edit_of(_prolog_path(site), None))
    own = read_text(site.gpusage_toml)
    generated = own is not None and _MODE.sub("", own) == _MODE.sub("", _toml(None, None))
    edits.append(edit_of(site.gpusage_toml, None if generated else own))
    return (*edits, *_unit_edits(site, None))


def new_task_prolog(edits: Iterable[Edit]) -> str | None:
    """Return the task prolog that *edits* would name anew: where a node lacks it, every task there fails."""
    for edit in edits:
        named = conf.setting(edit.after or "", "TaskProlog")
        if edit.path.suffix == ".conf" and named and named != conf.setting(edit.before or "", "TaskProlog"):
            return named
    return None


def accounts(text: str) -> bool:
    """Tell whether slurm.conf's *text* has Slurm account for anything; without slurmdbd it counts no GPU at all.

    There, slurmctld does not even start with a generic resource in AccountingStorageTRES or TRESBillingWeights.
    """
    return (conf.setting(text, "AccountingStorageType") or "").lower().endswith("slurmdbd")


def tracked_or_billed(text: str) -> bool:
    """Tell whether slurm.conf's *text* counts gres/mps, so that a share is neither free nor outside every limit."""
    tracked = (conf.setting(text, "AccountingStorageTRES") or "").lower().split(",")
    return "gres/mps" in tracked or bool(_BILLED.search(text))


def _add_settings(texts: dict[Path, str], site: Site) -> str | None:
    """Add to *texts* what we need; return the text of the task prolog that keeps the site's own, if it has one."""

    def file_of(key: str) -> Path:
        return next((path for path, text in texts.items() if conf.setting(text, key) is not None), site.slurm_conf)

    for key in ("JobSubmitPlugins", "CliFilterPlugins"):
        texts[file_of(key)] = conf.with_item(texts[file_of(key)], key, "lua")
    texts[file_of("SchedulerParameters")] = conf.with_item(
        texts[file_of("SchedulerParameters")], "SchedulerParameters", preference.SETTING
    )
    if accounts(texts[file_of("AccountingStorageType")]):
        key = "AccountingStorageTRES"
        texts[file_of(key)] = conf.with_item(texts[file_of(key)], key, *TRACKED)
    ours, wrapper = str(_NODE / "task_prolog.sh"), str(_prolog_path(site))
    path = file_of("TaskProlog")
    theirs = conf.setting(conf.without_edits(texts[path]), "TaskProlog")
    if theirs in (None, "", ours):
        texts[path] = conf.with_setting(texts[path], "TaskProlog", ours)
        return None
    texts[path] = conf.with_setting(texts[path], "TaskProlog", wrapper)
    # A task prolog that fails costs the job, so a node that lacks ours goes on without it.
    theirs, ours = shlex.quote(theirs), shlex.quote(ours)
    return (
        "#!/bin/sh\n# The site's own task prolog, then gpusage's.\n"
        f'{theirs} "$@" || exit $?\n[ ! -x {ours} ] || exec {ours}\n'
    )


def _configuration_files(site: Site) -> Iterator[tuple[Path, str]]:
    """Yield slurm.conf and the files that it includes, with their texts."""
    main = read_text(site.slurm_conf) or ""
    yield site.slurm_conf, main
    for name in _INCLUDE.findall(main):
        path = site.folder / name
        text = read_text(path)
        if text is not None:
            yield path, text


def _unit(site: Site) -> str:
    """Return gpusaged's unit with the full path of this installation's daemon."""
    text = files("gpusage.service").joinpath("gpusaged.service").read_text(encoding="utf-8")
    return text.replace("ExecStart=gpusaged\n", f"ExecStart={site.command.with_name('gpusaged')}\n")


def _unit_edits(site: Site, after: str | None) -> tuple[Edit, ...]:
    return () if site.unit_folder is None else (edit_of(site.unit_folder / "gpusaged.service", after),)


def _toml(present: str | None, mode: SiteMode | None) -> str:
    if present is None:
        return (
            "# Settings of gpusage; `gpusage slurm doctor` prints every key with its value and where it came from.\n"
            "# A change holds at once; nothing has to be restarted.\n"
            f'mode = "{mode or "observe"}"  # observe: record only; advise: tell the user; enforce: rewrite\n'
        )
    if mode is None:
        return present
    line = f'mode = "{mode}"'
    return _MODE.sub(line, present, count=1) if _MODE.search(present) else f"{line}\n{present}"


def _prolog_path(site: Site) -> Path:
    return site.folder / "gpusage_task_prolog.sh"
