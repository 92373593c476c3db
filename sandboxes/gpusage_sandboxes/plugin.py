"""What the sandboxes add to gpusage: commands in the groups of the workload managers, and counters of their GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpusage_hooks import hookimpl
from gpusage_sandboxes.counters import read_gpu

if TYPE_CHECKING:
    import click  # each sampled job would wait for it

__all__ = ["add_commands", "read_gpu"]


@hookimpl
def add_commands() -> Sequence[click.Command]:
    """Return `gpusage slurm sandbox` and `gpusage yarn sandbox`, and in a checkout `gpusage yarn jar`."""
    import click

    from gpusage_sandboxes.commands import jar, slurm_sandbox, yarn_sandbox  # gpusaged has no commands
    from gpusage_yarn.jar import in_checkout

    # The jar of a checkout is built, which takes the Java and the Maven that the sandbox has prepared.
    jars = {"jar": jar} if in_checkout() else {}
    return [
        click.Group("slurm", {"sandbox": slurm_sandbox}),
        click.Group("yarn", {"sandbox": yarn_sandbox, **jars}),
    ]
