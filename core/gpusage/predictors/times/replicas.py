"""The step time of a model that several GPUs train, each with a batch of its own: that of one GPU, known less well.

No rule for the exchange of gradients did better on public runs than the step time of fewer GPUs as it is
(docs/experiments.md); its error there is the interval here.
"""

from __future__ import annotations

from dataclasses import replace

from gpusage.predictors.work.division import GATHERING
from gpusage_hooks.types import Interval, Workload

LEAST_RATIO = 0.88
"""Of a step on several GPUs over one on a GPU alone with the same batch: 5 % of Sia's runs are below."""
MOST_RATIO = 2.21
"""5 % of Sia's runs on one host are above ..."""
MOST_RATIO_OF_HOSTS = 3.5
"""... and of those on several hosts; `python bench/several_gpus.py` prints all three."""
GPUS_OF_HOST = 8
"""More are on several hosts."""
GATHERING_TRAFFIC = 1.5
"""What ZeRO's stage 3 sends for each byte of the others: arXiv 1910.02054, section 7."""
NOT_MEASURED = "A step on several GPUs was never measured here: memory is arithmetic, step time that of one GPU."


def of_replicas(step_time_s: Interval, workload: Workload) -> Interval:
    """Return the step time on all GPUs of *workload* from that of one."""
    if workload.gpus == 1:
        return step_time_s
    return replace(step_time_s, low=step_time_s.low * LEAST_RATIO, high=step_time_s.high * _most_ratio(workload))


def _most_ratio(workload: Workload) -> float:
    ratio = MOST_RATIO if workload.gpus <= GPUS_OF_HOST else MOST_RATIO_OF_HOSTS
    return 1.0 + (ratio - 1.0) * (GATHERING_TRAFFIC if workload.strategy in GATHERING else 1.0)


def replica_notes(workload: Workload) -> tuple[str, ...]:
    """Return what the figures of several GPUs mean."""
    if workload.gpus == 1:
        return ()
    note = (
        f"All figures are per GPU, of {workload.gpus} that train by {workload.strategy}: samples per second as well. "
        f"A step may take up to {_most_ratio(workload):.1f} times as long as on one GPU with the same batch."
    )
    return (note,)
