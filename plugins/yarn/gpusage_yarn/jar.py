"""The jar for Hadoop's daemons: where this installation has it."""

from __future__ import annotations

from pathlib import Path

import click

from gpusage_hooks.errors import RequestError

SOURCES = Path(__file__).resolve().parents[1] / "java"
"""The Maven module, in a checkout."""
_CLASSPATH = "share/hadoop/yarn/lib of every host"


def show_jar() -> None:
    """Print where the jar is, to copy it."""
    jar = packaged_jar()
    if jar is None:
        raise RequestError(jar_instructions())
    click.echo(jar)


def in_checkout() -> bool:
    """Return whether this is a checkout, which has the jar's sources."""
    return (SOURCES / "pom.xml").is_file()


def packaged_jar() -> Path | None:
    """Return the jar that the wheel brought, ``None`` where it brought none."""
    return next(Path(__file__).parent.glob("gpusage-yarn-*.jar"), None)


def jar_instructions() -> str:
    """Return instructions for an admin to copy this installation's jar to the daemons."""
    jar = packaged_jar()
    if jar is not None:
        return f"Copy {jar} into {_CLASSPATH} first."
    if in_checkout():
        return f"Copy the jar that 'gpusage yarn jar' builds into {_CLASSPATH} first."
    return (
        "This installation of gpusage must hold its YARN jar; it was installed without one. Install a released wheel, "
        "or one that 'make wheel' makes in a checkout."
    )
