"""The changes that an installation makes at a site, as a list of edits that can be shown, made, and undone.

Invariants:

1. Planning reads and never writes; `make_edits` writes all edits or, if one fails, none.
2. Planning an installation where one stands gives edits that change nothing.
3. An uninstallation restores each file's own bytes, also where the site has changed the file meanwhile.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from gpusage.boundary.edits import Edit, edit_of, read_text
from gpusage.node.dividing import libexec_folder
from gpusage.plugins.loading import load_hooks
from gpusage.settings.configuration import Configuration, DaemonSettings, SiteMode
from gpusage.settings.configuration_file import configuration_path, default_configuration, load_configuration
from gpusage_hooks.comment import MODEL_NAMES
from gpusage_hooks.errors import GpuUsageError, RequestError
from gpusage_slurm.install import node_scripts, slurm_conf
from gpusage_slurm.install.lua_scripts import cli_filter_block, job_submit_block, socket_in, with_block, without_block
from gpusage_slurm.settings import SlurmSettings

_BILLED = re.compile(r"^[^#\n]*TRESBillingWeights=[^#\n]*gres/mps", re.IGNORECASE | re.MULTILINE)
_MODE = re.compile(r"""^[ \t]*mode[ \t]*=[ \t]*("[^"\n]*"|'[^'\n]*')""", re.MULTILINE)
PACKAGED_UNIT = Path("/usr/lib/systemd/system/gpusaged.service")  # where deb and rpm put it
_START = re.compile(r"^ExecStart=gpusaged(?= |$)", re.MULTILINE)
_PLAIN = re.compile(r"[\w/.+@:~-]+")  # what slurm.conf and a systemd unit hold without quotes
_PROTECTED = ("/home", "/root")  # ProtectHome= of the unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The files of a site that an installation changes.

    Attributes:
        slurm_conf: Its main configuration file.
        gpusage_toml: Ours.
        command: The `gpusage` that the login nodes call.
        libexec: Where each host has its copies of what Slurm runs.
        unit_folder: Where to put gpusaged's unit; ``None`` leaves systemd alone.
    """

    slurm_conf: Path
    gpusage_toml: Path
    command: Path
    libexec: Path
    unit_folder: Path | None = None

    @property
    def folder(self) -> Path:
        """Where slurmctld looks for its Lua scripts."""
        return self.slurm_conf.parent

    @property
    def backup(self) -> Path:
        """Where slurm.conf stays as it was before we first touched it."""
        return self.slurm_conf.with_name(f"{self.slurm_conf.name}.gpusage-before")


def find_site(conf: Path | None = None, unit_folder: Path | None = None) -> Site:
    """Return the site whose slurm.conf is *conf*, else the one that SLURM_CONF names, else the usual place's.

    Raises:
        RequestError: There is no such file, slurm.conf could not name this installation, or a unit is wanted and could
            not start its daemon.
    """
    chosen = conf or Path(os.environ.get("SLURM_CONF") or "/etc/slurm/slurm.conf")
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
    chosen, copies = chosen.absolute(), libexec_folder()
    for path in (chosen, command, copies):
        if not _PLAIN.fullmatch(str(path)):
            message = (
                "gpusage and slurm.conf must lie where a path has no blanks and no signs like '#', because slurm.conf "
                f"names them without quotes; got {str(path)!r}. Install it in /opt/gpusage, for example."
            )
            raise RequestError(message)
    return Site(
        slurm_conf=chosen, gpusage_toml=configuration_path(), command=command, libexec=copies, unit_folder=unit_folder
    )


def socket_candidates(configuration: Configuration | None, job_submit: str) -> tuple[str, ...]:
    """Return the sockets where gpusaged may listen, the likeliest first.

    Args:
        configuration: ``None`` where it is broken: gpusaged runs on with the last good one.
        job_submit: The text of job_submit.lua, which still names its socket then.
    """
    ours = configuration.daemon.socket if configuration else None
    candidates = (ours, socket_in(job_submit), DaemonSettings().socket)
    return tuple(dict.fromkeys(socket for socket in candidates if socket is not None))


def local_socket_candidates() -> tuple[str, ...]:
    """Return the sockets where gpusaged may listen by this host's files."""
    # The configuration may be broken while gpusaged runs on with the last good one.
    configuration, script = None, ""
    with suppress(GpuUsageError):
        configuration = load_configuration()
    with suppress(GpuUsageError, OSError):
        script = (find_site().folder / "job_submit.lua").read_text(encoding="utf-8", errors="replace")
    return socket_candidates(configuration, script)


def plan_installation(site: Site, mode: SiteMode | None = None) -> tuple[Edit, ...]:
    """Return the edits of an installation; without *mode*, a new site gets ``observe`` and an old one keeps its own."""
    configuration = load_configuration() if site.gpusage_toml.exists() else default_configuration()
    ours = configuration.of_manager(SlurmSettings)
    capture = configuration.learning.capture
    names = (*MODEL_NAMES, *load_hooks().describe_model_names())
    blocks = {
        "job_submit.lua": job_submit_block(site.libexec, configuration.daemon.socket, ours.limit_ms),
        "cli_filter.lua": cli_filter_block(site.libexec, str(site.command), ours.card_limit_s, capture, names),
    }
    edits = [
        edit_of(site.folder / name, with_block(read_text(site.folder / name) or "", body))
        for name, body in blocks.items()
    ]

    before = slurm_conf.read_files(site.slurm_conf)
    texts = dict(before)
    # A generic resource in AccountingStorageTRES keeps a slurmctld without slurmdbd from starting.
    counted = uses_slurmdbd(texts[_file_of("AccountingStorageType", texts, site)])
    for key, items in slurm_conf.ADDED_ITEMS.items():
        if key != "AccountingStorageTRES" or counted:
            path = _file_of(key, texts, site)
            texts[path] = slurm_conf.with_list_items(texts[path], key, *items)

    edits += _add_node_side(texts, site, across_users=configuration.sharing.across_users)
    edits.append(edit_of(site.gpusage_toml, _toml(read_text(site.gpusage_toml), mode)))
    edits += _unit_edits(site, wanted=True)

    # Only what was never ours is worth a copy.
    conf = before[site.slurm_conf]
    if texts[site.slurm_conf] != conf and slurm_conf.without_edits(conf) == conf:
        summary = f"a copy of {site.slurm_conf.name} as it is now"
        edits.append(Edit(path=site.backup, before=read_text(site.backup), after=conf, mode=0o600, summary=summary))

    # What slurm.conf names must be there first: sbatch reads slurm.conf anew each time, and fails without the script.
    return (*node_scripts.plan_copies(site.libexec), *edits, *(edit_of(path, texts[path]) for path in texts))


def plan_uninstallation(site: Site, *, in_use: bool = False) -> tuple[Edit, ...]:
    """Return the edits of an uninstallation; a gpusage.toml that the site has changed stays.

    Until the slurmds have read slurm.conf again, a node whose prolog is gone takes no job. So what Slurm runs stays at
    first, and goes with the second uninstallation: when no slurm.conf names it any more, and it is not *in_use*.
    """
    edits = [
        edit_of(path, slurm_conf.without_edits(text)) for path, text in slurm_conf.read_files(site.slurm_conf).items()
    ]
    restored = edits[0].after
    for name in ("job_submit.lua", "cli_filter.lua"):
        text = read_text(site.folder / name)
        if text is not None:
            # A script that held our block alone goes; one of the site's that was empty before stays.
            site_text = without_block(text)
            edits.append(edit_of(site.folder / name, site_text or (None if site_text != text else "")))

    wrappers = [script.copy(site.folder) for script in node_scripts.SCRIPTS]
    names = [str(path) for path in (site.libexec, *wrappers)]
    if not (in_use or any(name in (edit.before or "") for edit in edits for name in names)):
        edits += [edit_of(path, None) for path in wrappers]
        edits += node_scripts.plan_removal(site.libexec)

    own = read_text(site.gpusage_toml)

    # A file that differs from ours in its mode alone has nothing of the site's in it.
    is_unchanged = own is not None and _MODE.sub("", own) == _MODE.sub("", _toml(None, None))
    edits.append(edit_of(site.gpusage_toml, None if is_unchanged else own))
    if read_text(site.backup) == restored:
        edits.append(Edit(path=site.backup, before=restored, after=None, summary="is removed"))
    return (*edits, *_unit_edits(site, wanted=False))


def new_node_scripts(edits: Iterable[Edit]) -> tuple[str, ...]:
    """Return the node scripts that *edits* would name anew: where a node lacks one, it fails its jobs."""
    changes = [
        (slurm_conf.setting(edit.before or "", script.key), slurm_conf.setting(edit.after or "", script.key))
        for edit in edits
        for script in node_scripts.SCRIPTS
        if edit.path.suffix == ".conf"
    ]
    return tuple(after for before, after in changes if after and after != before)


def uses_slurmdbd(text: str) -> bool:
    """Return whether slurm.conf's *text* has Slurm account for anything; without slurmdbd it counts no GPU at all.

    There, slurmctld does not even start with a generic resource in AccountingStorageTRES or TRESBillingWeights.
    """
    return (slurm_conf.setting(text, "AccountingStorageType") or "").lower().endswith("slurmdbd")


def tracks_or_bills_mps(text: str) -> bool:
    """Return whether slurm.conf's *text* counts gres/mps, so that a share is neither free nor outside every limit."""
    tracked = (slurm_conf.setting(text, "AccountingStorageTRES") or "").lower().split(",")
    return "gres/mps" in tracked or bool(_BILLED.search(text))


def _add_node_side(texts: dict[Path, str], site: Site, *, across_users: bool) -> list[Edit]:
    """Name our node scripts in *texts*, and return the wrappers that keep the site's own."""
    edits = []
    for script in node_scripts.SCRIPTS:
        path = _file_of(script.key, texts, site)
        theirs = slurm_conf.setting(slurm_conf.without_edits(texts[path]), script.key)
        copy = script.copy(site.libexec)
        if theirs and node_scripts.is_ours(Path(theirs), script):
            continue  # the site itself names a copy

        wrapper = script.copy(site.folder)
        text = node_scripts.render_wrapper(script, theirs, copy, across_users=across_users)
        texts[path] = slurm_conf.with_setting(texts[path], script.key, str(wrapper if text else copy))
        if text:
            edits.append(edit_of(wrapper, text, mode=0o755))
    return edits


def _file_of(key: str, texts: dict[Path, str], site: Site) -> Path:
    """Return the file that sets *key*, slurm.conf itself where none does."""
    return next((path for path, text in texts.items() if slurm_conf.setting(text, key) is not None), site.slurm_conf)


def _unit_edits(site: Site, *, wanted: bool) -> tuple[Edit, ...]:
    """Return the edit that puts gpusaged's unit in place, or takes it away."""
    if site.unit_folder is None:
        return ()

    # The shipped unit finds gpusaged on the PATH; this one names the program of this installation.
    shipped = files("gpusage.service").joinpath("gpusaged.service").read_text(encoding="utf-8")
    text = _START.sub(f"ExecStart={site.command.with_name('gpusaged')}", shipped)
    return (edit_of(site.unit_folder / "gpusaged.service", text if wanted else None),)


def _toml(present: str | None, mode: SiteMode | None) -> str:
    """Return gpusage.toml, *present* where the site has one, in *mode*."""
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
