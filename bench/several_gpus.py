"""A training step on several GPUs, from that on one with the same batch per GPU: what three campaigns say of the rule.

Both steps are measured, so that the error is the rule's alone. The plain rule takes the step of one GPU as it is; what
is shipped adds what gradients take on the links of the board, beyond what a part of the step hides. That part, and what
of the last bucket is waited for, are in no data sheet: the first table has what each choice gives on Gavel's jobs, and
another what comes of it if it is made on Sia's other applications. Lambda's hosts have the bus of PCI Express 4.0.

Example: python bench/several_gpus.py --data ../shared/data
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.parallel.data_parallel import HIDDEN_SHARE, LAST_BYTES, gradient_traffic
from gpusage.predictors.parallel.links import GPUS_PER_HOST, allreduce_s_per_byte
from gpusage_lab.learning.targets import ScoreTable
from gpusage_lab.measurements.tables import DataFolder, Table
from gpusage_lab.seeds.ardagna_runs import GAVEL_GPUS
from gpusage_lab.seeds.command import command_of
from gpusage_planning.named_jobs import GAVEL, workload
from gpusage_planning.zoo import load_zoo

SIA, GAVEL_FILE, LAMBDA = "sia_step_times.csv", "gavel_solo.csv", "lambda_throughput.csv"
KEY = ["app", "cluster", "gpu", "local_batch_size"]
GRADIENT_BYTES = {
    "bert": 4 * 110e6,
    "yolov3": 4 * 61.9e6,
    "imagenet": 4 * 25.6e6,
    "cifar10": 4 * 11.2e6,
    "deepspeech2": 4 * 52e6,
    "ncf": 4 * 1.5e6,
}
"""Of BERT-base, YOLOv3, ResNet-50, ResNet-18, DeepSpeech2 and NCF, as their papers count parameters."""
LATE_BYTES = {"bert": 4 * 23.8e6, "ncf": 4 * 1.49e6}
"""Of embeddings, whose gradients come last: words, positions and kinds of BERT; users and films of NCF."""
VARIED = ("deepspeech2", "yolov3")
"""Inputs differ in size from step to step: lengths of speech, and pictures of 320 to 608 pixels, drawn on each GPU."""
BOARDS = {
    "aws": "t4",
    "azure": "v100-sxm2-32gb",
    "dgx": "a100-sxm4-40gb",
    "dgx-ext": "a100-sxm4-40gb",
    "quad": "quadro-rtx-6000",
    "rtx": "rtx-2080-ti",
}
"""Of Sia's clusters."""
LAMBDA_BOARDS = {
    "RTX 3090": "rtx-3090",
    "RTX 4090": "rtx-4090",
    "RTX A6000": "rtx-a6000",
    "A100 80GB PCIe": "a100-pcie-80gb",
    "RTX 6000 Ada": "rtx-6000-ada",
    "LambdaCloud V100 16GB": "v100-sxm2-16gb",
    "H100 80GB PCIe Gen5": "h100-pcie-80gb",
    "H100 80GB SXM5": "h100-sxm5-80gb",
}
LAMBDA_PARAMETERS = {"bert_base_squad": (109e6, 23.8e6), "bert_large_squad": (335e6, 31.8e6), "resnet50": (25.6e6, 0.0)}
"""All of them, and those of embeddings."""
CHOICES = (*product((0.0, 1 / 3, 1 / 2, 2 / 3), (0.0, LAST_BYTES, 2 * LAST_BYTES)),)
"""Of the part of a step that hides, and of the last bucket."""
Cells: TypeAlias = tuple[Any, ...]


def tables(data: DataFolder) -> list[ScoreTable]:
    """Return how the rule's two figures were chosen, and its errors."""
    sia = _sia(data)
    one_host = sia[sia["hosts"] == 1]
    return [
        _chosen(_gavel(data)),
        _errors("Sia, one host", one_host, "app"),
        _nested(one_host),
        _errors("Sia, one host, by cluster", one_host, "cluster"),
        _errors("Sia, several hosts", sia[sia["hosts"] > 1], "cluster"),
        _errors("Sia, more than 8 GPUs", sia[sia["gpus"] > GPUS_PER_HOST], "app"),
        _repeated(sia),
        _errors("Lambda, one host", _lambda(data), "board"),
    ]


def _sia(data: DataFolder) -> Table:
    """Return the placements on 2 GPUs or more; rows that two clusters share to the last digit count once."""
    rows = data.read(SIA)
    rows = rows[(rows["kind"] == "placements") & rows["app"].isin(list(GRADIENT_BYTES))].copy()
    digits = rows["placement"].astype(int).astype(str)
    rows["hosts"] = digits.str.len()
    rows["gpus"] = digits.map(lambda text: sum(map(int, text)))
    rows = rows.sort_values("gpus").drop_duplicates([*KEY, "placement"])
    alone = rows[rows["gpus"] == 1].set_index(KEY)["step_time_s"].rename("alone_s")
    rows = rows[rows["gpus"] > 1].join(alone, on=KEY, how="inner").rename(columns={"step_time_s": "step_s"})
    rows = rows.drop_duplicates(["app", "local_batch_size", "placement", "step_s", "alone_s"])
    return rows.assign(
        board=rows["cluster"].map(BOARDS),
        all_bytes=rows["app"].map(GRADIENT_BYTES),
        row_bytes=rows["app"].map(LATE_BYTES).fillna(0.0),
    )


def _gavel(data: DataFolder) -> Table:
    """Return the jobs on one host with boards that have no links."""
    rows = data.read(GAVEL_FILE)
    rows = rows[(rows["source_file_tag"] == "simulation_2020") & (rows["consolidated"] == "yes")]
    rows = rows[(rows["throughput_steps_per_s"] > 0) & rows["gpu"].isin(["K80", "P100"]) & rows["batch_size"].notna()]
    rows = rows.assign(step_s=rows["num_gpus"] / rows["throughput_steps_per_s"], gpus=rows["num_gpus"])
    key = ["gpu", "model", "batch_size"]
    alone = rows[rows["gpus"] == 1].set_index(key)["step_s"].rename("alone_s")
    rows = rows[rows["gpus"] > 1].join(alone, on=key, how="inner")
    sent = rows["model"].map(_sent)
    return rows.assign(board=rows["gpu"].map(GAVEL_GPUS), all_bytes=sent.str[0], row_bytes=sent.str[1])


@cache
def _sent(model: str) -> tuple[float, float]:
    """Return the bytes of all gradients of *model*, and of those that come last."""
    run = replace(workload(GAVEL[model], 1), gpus=2)
    early, late, _ = gradient_traffic(WorkloadAnalysis(load_zoo().graph(GAVEL[model].key), run).lowering, run)
    return early + late, late if late > LAST_BYTES else 0.0


def _lambda(data: DataFolder) -> Table:
    """Return the hosts of one kind with the same batch per GPU; a name may begin with the number of GPUs."""
    rows = data.read(LAMBDA)
    rows = rows[rows["task"].isin(list(LAMBDA_PARAMETERS))]
    host = rows["name_gpu"].str.replace(r"\b\d+x ?", "", regex=True).str.strip()
    rows = rows.assign(host=host, board=host.map(LAMBDA_BOARDS), gpus=rows["num_gpu"].astype(int))
    rows = rows.assign(batch=rows["batch_size_or_batch_tokens"].astype(float) / rows["gpus"])
    rows["step_s"] = rows["batch"] * rows["gpus"] / rows["throughput_samples_or_tokens_per_s"]
    rows = rows[rows["board"].notna()].drop_duplicates(["precision", "host", "task", "gpus"])
    key = ["precision", "host", "task", "batch"]
    alone = rows[rows["gpus"] == 1].set_index(key)["step_s"].rename("alone_s")
    number_bytes = rows["precision"].map({"fp16": 2.0, "fp32": 4.0})
    counts = rows["task"].map(LAMBDA_PARAMETERS)
    rows = rows.assign(all_bytes=number_bytes * counts.str[0], row_bytes=number_bytes * counts.str[1])
    return rows[rows["gpus"] > 1].join(alone, on=key, how="inner")


def _several_s(rows: Table, hidden: float = HIDDEN_SHARE, last_bytes: float = LAST_BYTES) -> Table:
    """Return the steps that the rule gives; of several hosts it knows no more than the number of GPUs."""
    find = builtin_catalogue().find
    each = zip(rows["board"], rows["gpus"], strict=True)
    byte_s = np.array([allreduce_s_per_byte(find(board), int(gpus)) for board, gpus in each])
    late = np.minimum(np.maximum(rows["row_bytes"], last_bytes), rows["all_bytes"])
    early_s = byte_s * (rows["all_bytes"] - late)
    return rows["alone_s"] + np.maximum(early_s - hidden * rows["alone_s"], 0.0) + byte_s * late


def _chosen(rows: Table) -> ScoreTable:
    """Return the errors of each choice of the two figures that no data sheet has."""
    cells = [
        (round(hidden, 2), round(last / 2**20, 1), *_means(rows, _several_s(rows, hidden, last), "gpu"))
        for hidden, last in CHOICES
    ]
    return ScoreTable(
        title="Gavel, one host: which part of a step hides, and how much of the last bucket does not",
        columns=("hidden share", "last bucket, MiB", "K80, MAPE %", "P100, MAPE %", "mean of both"),
        rows=(("as with one", None, *_means(rows, rows["alone_s"], "gpu")), *cells),
        notes=(f"{len(rows)} rows: ResNet-18, ResNet-50, Transformer, LM on 2, 4 and 8 GPUs.",),
    )


def _means(rows: Table, step_s: Table, by: str) -> Cells:
    errors = 100 * np.abs(step_s / rows["step_s"] - 1)
    means = errors.groupby(rows[by]).mean()
    return (*means.round(1), round(float(means.mean()), 1))


def _errors(title: str, rows: Table, by: str) -> ScoreTable:
    """Return the rule's errors beside those of the plain one, and where Azure's V100s use their bus, not NVLink."""
    on_bus = rows.assign(board=rows["board"].replace("v100-sxm2-32gb", "v100-pcie-32gb"))
    ways = {"as with one": rows["alone_s"], "by board": _several_s(rows), "bus known": _several_s(on_bus)}
    off = {name: 100 * np.abs(step_s / rows["step_s"] - 1) for name, step_s in ways.items()}
    parts = [(str(name), part.index) for name, part in rows.groupby(by)]
    if "app" in rows:
        parts.append(("inputs of one size", rows.index[~rows["app"].isin(VARIED)]))
    parts.append(("all", rows.index))
    ratios = rows["step_s"] / ways["by board"]
    ends = ratios.quantile([0.05, 0.5, 0.95]).round(2).tolist()
    return ScoreTable(
        title=f"{title}: the step on n GPUs, from that on one",
        columns=(by, "rows", *(f"{name}, MAPE %" for name in ways)),
        rows=tuple(
            (name, len(part), *(round(float(one[part].mean()), 1) for one in off.values())) for name, part in parts
        ),
        notes=(f"5 %, median and 95 % of measured over predicted by board: {ends}.",),
    )


def _nested(rows: Table) -> ScoreTable:
    """Return the errors where the choice is made on Sia's other applications, by the mean of theirs."""
    off = [100 * np.abs(_several_s(rows, *choice) / rows["step_s"] - 1) for choice in CHOICES]
    nested = off[0].copy()
    chosen = {}
    for app, part in rows.groupby("app"):
        others = rows["app"] != app
        means = [one[others].groupby(rows["app"][others]).mean().mean() for one in off]
        chosen[app] = int(np.argmin(means))
        nested[part.index] = off[chosen[app]][part.index]
    cells = [
        (str(app), round(CHOICES[best][0], 2), round(CHOICES[best][1] / 2**20, 1), round(float(one.mean()), 1))
        for (app, best), (_, one) in zip(chosen.items(), nested.groupby(rows["app"]), strict=True)
    ]
    of_one_size = nested[~rows["app"].isin(VARIED)]
    totals = (("inputs of one size", of_one_size), ("all", nested))
    return ScoreTable(
        title="Sia, one host: chosen on the other applications",
        columns=("app", "hidden share", "last bucket, MiB", "by board, MAPE %"),
        rows=(*cells, *((name, None, None, round(float(one.mean()), 1)) for name, one in totals)),
        notes=(),
    )


def _repeated(rows: Table) -> ScoreTable:
    """Return how far Sia's two clusters of the same host differ: nothing is known better than that."""
    key = ["app", "local_batch_size", "placement"]
    first, second = (rows[rows["cluster"] == name].set_index(key) for name in ("dgx", "dgx-ext"))
    both = first.join(second, how="inner", lsuffix="", rsuffix="_again")
    both = both[both["hosts"] == 1]
    ratios = (both["step_s"] / both["alone_s"]) / (both["step_s_again"] / both["alone_s_again"])
    off = 100 * np.abs(ratios - 1)
    cells = [(str(app), len(part), round(float(part.mean()), 1)) for app, part in off.groupby(level="app")]
    return ScoreTable(
        title="Sia, DGX A100, one host: the step on n GPUs over that on one, measured twice",
        columns=("app", "rows", "difference, %"),
        rows=(*cells, ("all", len(off), round(float(off.mean()), 1))),
        notes=("NCF's rows are the same in both and are in one only.",),
    )


main = command_of("several GPUs", tables, (SIA, GAVEL_FILE, LAMBDA), __file__)

if __name__ == "__main__":
    main()
