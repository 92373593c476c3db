"""What gpusage's Slurm adapter answers when the core asks."""

from gpusage_slurm.render import render_decision
from gpusage_slurm.request import parse_submission

__all__ = ["parse_submission", "render_decision"]
