"""The actions of `gpusage yarn install` and `gpusage yarn uninstall`, which change files and query no cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gpusage.cli.admin import show_and_make
from gpusage.settings.configuration import SiteMode
from gpusage_yarn.install.classes import require_classes
from gpusage_yarn.install.edits import find_site, installation_notes, plan_installation, plan_uninstallation

_SCHEMA = "gpusage.yarn.install/1"


def install(conf_dir: Path | None, mode: SiteMode | None, *, yes: bool, as_json: bool, **typed: Any) -> None:  # options
    """Show what installing would change in Hadoop's files; with --yes, change it."""
    roles = frozenset(typed.pop("roles"))
    site = find_site(conf_dir, roles, **typed)
    edits = plan_installation(site, mode)
    if yes:
        require_classes(edits, site.folder)
    restarted = {"rm": "ResourceManager", "node": "NodeManagers"}
    daemons = " and ".join(name for role, name in restarted.items() if role in roles)
    after = f"Now restart {daemons}; then run: gpusage yarn doctor" if daemons else "Now run: gpusage yarn doctor"
    show_and_make(edits, schema=_SCHEMA, yes=yes, as_json=as_json, after=after)
    for remark in installation_notes(site):
        click.echo(f"gpusage: note: {remark}", err=True)


def uninstall(conf_dir: Path | None, roles: tuple[Any, ...], *, yes: bool, as_json: bool) -> None:
    """Show what uninstalling would change in Hadoop's files; with --yes, change it."""
    edits = plan_uninstallation(find_site(conf_dir, frozenset(roles)))
    after = "Now restart the daemons; only then remove the jar, and /usr/libexec/gpusage where no Slurm runs it."
    show_and_make(edits, schema=_SCHEMA, yes=yes, as_json=as_json, after=after)
