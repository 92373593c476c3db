"""Slurm as gpusage knows it: its section of gpusage.toml, and who asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from gpusage_hooks.managers import Manager, ManagerSettings
from gpusage_hooks.types import Range


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings(ManagerSettings):
    """The limits of the Slurm adapter, in the controller and on the login node.

    Attributes:
        limit_ms: How long slurmctld waits for one answer of gpusaged, in milliseconds.
        card_limit_s: How long sbatch waits for the description of a model, in seconds.
        notice: Whether the output of a job that has a share begins with a line that says so.
        accept_double_booking: Whether GPUs are shared on Slurm before 23.11.5, which gives a GPU away
            that has shares.
    """

    limit_ms: Annotated[float, Range(low=1, high=1000)] = 40.0
    card_limit_s: Annotated[float, Range(low=0.1, high=60)] = 2.0
    notice: bool = True
    accept_double_booking: bool = False

    @property
    def answer_limit_s(self) -> float:
        """How long slurmctld waits, in seconds."""
        return self.limit_ms / 1000


SLURM = Manager(
    name="slurm",
    title="Slurm",
    settings=SlurmSettings,
    directive="#SBATCH",
    submit=("sbatch",),
    users=("slurm",),
    sampling="AccountingStorageTRES=gres/gpu and a JobAcctGatherType in slurm.conf, AutoDetect=nvml in gres.conf, and "
    "TRESUsageInMax of the steps in the file",
)
MANAGER = SLURM.name
