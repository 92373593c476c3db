"""What is predicted of Lambda's trainings, on which nothing here was fitted or chosen, beside a roofline.

ResNet-50 and BERT (384 tokens; the zoo has the large one with attention in one kernel) by NVIDIA's scripts on 1 to 8
GPUs, as a user would ask for them.

Example: python bench/trainings.py --data ../shared/data
"""

from __future__ import annotations

import re
from collections import defaultdict
from math import exp, log

import numpy as np

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.needs import predicted
from gpusage.predictors.times.step_time import timing_with
from gpusage_hooks.types import Optimizer, Workload
from gpusage_hooks.types.workloads import Precision
from gpusage_lab.learning.step_fit import initial
from gpusage_lab.learning.targets import Cell, ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.seeds.command import command_of
from gpusage_planning.zoo import load_zoo

TRAININGS = "lambda_throughput.csv"
GRAPHS = {
    "resnet50": "torchvision:resnet50@224",
    "bert_base_squad": "published:bert-base-eager@384",
    "bert_large_squad": "published:bert-large@384",
}
GPUS = {
    "A100 80GB SXM4": "a100-sxm4-80gb",
    "A100 40GB PCIe": "a100-pcie-40gb",
    "H100 80GB PCIe": "h100-pcie-80gb",
    "H100 80GB SXM5": "h100-sxm5-80gb",
    "B200 192GB SXM5": "b200-sxm6-180gb",
}
"""Those of Lambda's names that the catalogue does not know. NVIDIA's containers compute fp32 as TF32 where they can."""
HEAD = ("rows of", "n", "median ratio", "median factor", "roofline", "inside %", "high/low", "enough")
NOTE = "Roofline: a constant part of the peak rates, links free. Enough: the high over low that holds 90 % of the rows."
_NOT_OF_NAME = re.compile(r"^.*?(?=(Quadro )?RTX|[ABVGH]+\d{2})| Gen5$")


def tables(data: DataFolder) -> list[ScoreTable]:
    """Return Lambda's trainings beside our predictions, and beside a constant part of the peak rates by operator."""
    table = data.read(TRAININGS).drop(columns=["campaign", "price_usd", "gpu_tdp_W_times_num"])
    zoo, flat, kinds = load_zoo(), initial(), defaultdict[str, list[tuple[float, ...]]](list)
    # Most rows of the later campaign are those of the earlier one.
    for row in table[table.task.isin(list(GRAPHS))].drop_duplicates().itertuples():
        name, count = _NOT_OF_NAME.sub("", row.name_gpu), int(row.num_gpu)
        gpu = builtin_catalogue().find(GPUS.get(name, name))
        precision: Precision = row.precision if row.precision == "fp16" or "tf32" not in gpu.peak_flop_per_s else "tf32"
        optimizer: Optimizer = "momentum" if row.task == "resnet50" else "adamw"
        samples = int(row.batch_size_or_batch_tokens)
        workload = Workload(batch_size=samples // count, precision=precision, optimizer=optimizer, gpus=count)
        graph = zoo.graph(GRAPHS[row.task])
        step_s = samples / row.throughput_samples_or_tokens_per_s
        ours = predicted(graph, workload, [gpu])[0].step_time_s
        plain = timing_with(flat, WorkloadAnalysis(graph, workload).kernels, [gpu], precision)
        figures = log(ours.value / step_s), log(plain.step_s[0] / step_s), log(ours.high / ours.low)
        task = row.task.removesuffix("_squad")
        names = ["2 to 8 GPUs, all"] if count > 1 else ["1 GPU, all", f"1 GPU, {task}, {precision}"]
        for kind in names:
            kinds[kind].append((*figures, ours.low <= step_s <= ours.high))

    lines: list[tuple[Cell, ...]] = []
    for kind, rows in sorted(kinds.items()):
        ratio, plain_ratio, width, inside = np.array(rows).T
        middle = (np.median(each) for each in (ratio, abs(ratio), abs(plain_ratio), width))
        cells = [f"{exp(each):.2f}" for each in (*middle, 2 * np.quantile(abs(ratio), 0.9))]
        lines.append((kind, len(rows), *cells[:3], f"{100 * inside.mean():.0f}", *cells[3:]))
    return [ScoreTable(title="Trainings that nothing was fitted on", columns=HEAD, rows=tuple(lines), notes=(NOTE,))]


main = command_of("trainings", tables, (TRAININGS,))

if __name__ == "__main__":
    main()
