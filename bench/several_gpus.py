"""A training step on several GPUs, over that on one GPU with the same batch per GPU: what Sia's runs say of the rule.

The plain rule takes the step of one GPU, or of the next smaller number on the same hosts, as it is. What is shipped
adds what gradients take on a bus that GPUs share. Both steps are measured, so that the error is the rule's alone.

Example: python bench/several_gpus.py --data ../shared/data
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.times.replicas import Gradients, waiting_s
from gpusage_hooks.types import Workload
from gpusage_lab.learning.targets import ScoreTable
from gpusage_lab.measurements.tables import DataFolder, Table
from gpusage_lab.seeds.command import command_of

FILE = "sia_step_times.csv"
KEY = ["app", "cluster", "gpu", "local_batch_size"]
ENDS = (0.05, 0.5, 0.95)
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
BOARDS = {
    "aws": "t4",
    "azure": "v100-sxm2-32gb",
    "dgx": "a100-sxm4-40gb",
    "dgx-ext": "a100-sxm4-40gb",
    "quad": "quadro-rtx-6000",
    "rtx": "rtx-2080-ti",
}
"""Of Sia's clusters."""
LINKS = [*product(np.geomspace(1e8, 1e12, 30), (0.0, 0.25, 0.5, 0.66), (0.0, 0.03, 0.06, 0.1))]
"""Bytes per second, the part of the step behind which the exchange hides, and what several GPUs cost beside it."""
Cells: TypeAlias = tuple[Any, ...]


def tables(data: DataFolder) -> list[ScoreTable]:
    """Return the errors of the rule on one host and on several, by application."""
    rows = _runs(data)
    ours = [("one host", rows[rows["hosts"] == 1]), ("several hosts", rows[rows["hosts"] > 1])]
    ratios = [_table(f"Sia, {name}: the step on n GPUs over that on one", part) for name, part in ours]
    return [*ratios, _linked(rows[rows["hosts"] == 1]), _waiting(rows[rows["hosts"] == 1])]


def _runs(data: DataFolder) -> Table:
    """Return the placements on 2 GPUs or more, with the ratio of their step to that of one, and of the next fewer."""
    rows = data.read(FILE)
    rows = rows[rows["kind"] == "placements"].copy()
    digits = rows["placement"].astype(int).astype(str)
    rows["hosts"] = digits.str.len()
    rows["gpus"] = digits.map(lambda text: sum(map(int, text)))
    rows = rows.sort_values("gpus").drop_duplicates([*KEY, "placement"])
    one_host = rows[rows["hosts"] == 1]
    alone = one_host[one_host["gpus"] == 1].set_index(KEY)["step_time_s"].rename("alone_s")
    rows["fewer_s"] = rows[rows["hosts"] == 1].groupby(KEY)["step_time_s"].shift()
    rows = rows[rows["gpus"] > 1].join(alone, on=KEY, how="inner")
    return rows.assign(ratio=rows["step_time_s"] / rows["alone_s"])


def _table(title: str, rows: Table) -> ScoreTable:
    parts = [*rows.groupby("app"), ("all", rows)]
    return ScoreTable(
        title=title,
        columns=(
            "application",
            "rows",
            "as with one, MAPE %",
            "as with the next fewer, MAPE %",
            "5 %",
            "median",
            "95 %",
        ),
        rows=tuple(_cells(str(name), part) for name, part in parts),
        notes=("Both steps are measured. 5 %, median, 95 %: of the ratio. Fewer: on one host.",),
    )


def _cells(name: str, rows: Table) -> Cells:
    errors = 100 * np.abs(1 / rows["ratio"] - 1)
    fewer = (100 * np.abs(rows["fewer_s"] / rows["step_time_s"] - 1)).mean()
    ends = [round(float(rows["ratio"].quantile(end)), 2) for end in ENDS]
    return (name, len(rows), round(float(errors.mean()), 1), None if np.isnan(fewer) else round(float(fewer), 1), *ends)


def _linked(rows: Table) -> ScoreTable:
    """Return what it brings to know each cluster's link, which is learned from the other applications' runs on it."""
    rows = rows.assign(sent_bytes=rows["app"].map(GRADIENT_BYTES) * 2 * (rows["gpus"] - 1) / rows["gpus"])
    for (app, cluster), part in rows.groupby(["app", "cluster"]):
        others = rows[(rows["app"] != app) & (rows["cluster"] == cluster)]
        best = min(LINKS, key=lambda link: _errors(others, *link).groupby(others["app"]).mean().mean())
        rows.loc[part.index, "linked"] = _errors(part, *best)
    plain = np.abs(1 / rows["ratio"] - 1)
    cells: list[Cells] = [
        (
            str(name),
            len(part),
            *(round(100 * float(each.loc[part.index].mean()), 1) for each in (plain, rows["linked"])),
        )
        for name, part in [*rows.groupby("app"), ("all", rows)]
    ]
    return ScoreTable(
        title="Sia, one host: where the cluster's link is known",
        columns=("application", "rows", "as with one, MAPE %", "with the link, MAPE %"),
        rows=tuple(cells),
        notes=(
            "A ring of gradients over the link, part of it behind the step; both fitted on the other applications.",
        ),
    )


def _waiting(rows: Table) -> ScoreTable:
    """Return the errors of the rule that is shipped, and of the same where Azure's V100s use their bus, not NVLink."""
    ways = {"by board": BOARDS, "bus known": {**BOARDS, "azure": "v100-pcie-32gb"}}
    steps = {name: _waited_s(rows, boards) for name, boards in ways.items()}
    errors = [np.abs(one / rows["step_time_s"] - 1) for one in (rows["alone_s"], *steps.values())]
    parts = [*rows.groupby("app"), ("mean of applications", None), ("all", rows)]
    cells: list[Cells] = []
    for name, part in parts:
        means = [
            one.groupby(rows["app"]).mean().mean() if part is None else one.loc[part.index].mean() for one in errors
        ]
        cells.append((str(name), len(rows if part is None else part), *(round(100 * float(one), 1) for one in means)))
    ratios = [(rows["step_time_s"] / one).quantile([0.05, 0.95]).round(2).tolist() for one in steps.values()]
    return ScoreTable(
        title="Sia, one host: gradients cross the host's bus, nothing fitted",
        columns=("application", "rows", "as with one, MAPE %", *(f"{name}, MAPE %" for name in ways)),
        rows=tuple(cells),
        notes=(f"5 % and 95 % of measured over predicted: {ratios[0]}, bus known {ratios[1]}.",),
    )


def _waited_s(rows: Table, boards: Mapping[str, str]) -> Table:
    """Return the steps that the rule gives where each cluster has these *boards*."""
    find, waits_s = builtin_catalogue().find, []
    for row in rows.itertuples():
        whole, late = GRADIENT_BYTES[row.app], LATE_BYTES.get(row.app, 0.0)
        run = Workload(gpus=int(row.gpus), batch_size=int(row.local_batch_size))
        waits_s.append(waiting_s(Gradients(whole - late, late), row.alone_s, run, find(boards[row.cluster])))
    return rows["alone_s"] + np.array(waits_s)


def _errors(rows: Table, bytes_per_s: float, hidden: float, fixed: float) -> Table:
    """Return the relative errors of a step that waits for its ring, but for what a *hidden* part of the step covers."""
    waiting_s = np.maximum(rows["sent_bytes"] / bytes_per_s - hidden * rows["alone_s"], 0)
    return np.abs((rows["alone_s"] * (1 + fixed) + waiting_s) / rows["step_time_s"] - 1)


main = command_of("several GPUs", tables, (FILE,), __file__)

if __name__ == "__main__":
    main()
