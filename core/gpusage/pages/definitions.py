"""What the figures of a prediction mean, one sentence or two each, for pages and docs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {
        "step time": "Seconds from one step to the next: forward pass, and in training backward pass and update. "
        "Waiting for data is not in it.",
        "memory": "Device memory at its peak, the CUDA context included. It fits if the upper end does.",
        "GPU busy": "GPU utilization, as nvidia-smi shows it: the share of time in which at least one kernel runs, "
        "however small. In training it is the kernels' time over the step time and the gaps between kernels. "
        "Its low end also has jobs that wait for their data.",
        "gaps between kernels": "The time in which a usual training job's host leaves the GPU idle after its kernels: "
        "25 us for each. It is beside the step time, which is that of hosts as fast as in benchmarks.",
        "SM activity": "The share of the same time in which an SM has work, the mean over all SMs (DCGM's SM_ACTIVE); "
        "never more than GPU busy.",
        "DRAM activity": "The share of the same time that the traffic would take at the memory's peak (DCGM's "
        "DRAM_ACTIVE); never more than GPU busy.",
        "samples/s": "The batch over the step time.",
        "tokens/s": "New tokens of all samples per second, where a language model generates.",
        "speedup": (
            "How many times as many samples per second as on the first GPU of the table: of several batches, with the "
            "same batch; with --max-batch, each GPU with its own."
        ),
        "waiting for launches": "The part of the step time in which no kernel runs, because the host has not yet "
        "launched the next one, however fast it is. It contains neither the gaps of a usual host nor waiting for data.",
        "slowdown": "The step time on a share over that on the whole GPU, alone there.",
    }
)
"""By the words of the tables."""
