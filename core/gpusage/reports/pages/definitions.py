"""Meanings of the figures of a prediction, a sentence or two each, for pages and docs."""

from __future__ import annotations

from collections.abc import Mapping

DEFINITIONS: Mapping[str, str] = {
    "step time": "Seconds from one step to the next: forward pass, and in training backward pass and update. "
    "Waiting for data is not in it.",
    "memory needed": "Device memory without which a run fails, the CUDA context included.",
    "memory taken": "Device memory at its peak on a free GPU. 99 of 100 runs stay below the upper end.",
    "GPU busy": "GPU utilization, as nvidia-smi shows it: the share of time in which at least one kernel runs, "
    "however small. In training it is the kernels' time, divided by the step time plus the gaps between "
    "kernels. Its low end allows for jobs that wait for their data.",
    "gaps between kernels": "The time in which the host of a usual training job leaves the GPU idle after each "
    "kernel: 25 us. It is not a part of the step time, which is that of a host as fast as in benchmarks.",
    "SM activity": "The share of the same time in which an SM has work, the mean over all SMs (DCGM's SM_ACTIVE); "
    "never more than GPU busy.",
    "DRAM activity": "The share of the same time that the traffic would take at the memory's peak (DCGM's "
    "DRAM_ACTIVE); never more than GPU busy.",
    "samples/s": "The batch over the step time.",
    "tokens/s": "New tokens of all samples per second, where a language model generates.",
    "speedup": "Samples per second, divided by those on the first GPU of the table. With several batches, rows of "
    "the same batch are compared; with --max-batch, each GPU has its own batch.",
    "waiting for launches": "The part of the step time in which no kernel runs, because even a host as fast as in "
    "benchmarks has not yet launched the next one. It contains neither the gaps of a usual host nor waiting "
    "for data.",
    "slowdown": "The step time on a share divided by the step time on the whole GPU, for a job that runs alone on "
    "the GPU.",
}
"""By the words of the tables."""
