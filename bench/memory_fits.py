"""Whether a job fits a GPU, by what it needs and by what it takes, against public records of what ran and what did not.

NVIDIA's DeepLearningExamples name batches that ran on GPUs of 16 to 80 GB; nothing here was fitted on them. GPUMemNet
trained timm's models at growing batches on an A100 of 40 GB: below are its rows that ran with 24 GB or more, and
those whose run came to nothing although a smaller batch had taken 20 GB or more, so that memory ended it. Of language
models, the public record has the memory of runs, and runs that are published as out of memory.

Example: python bench/memory_fits.py --data ../shared/data
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

from gpusage.decisions.advisor import Advisor, make_advisor
from gpusage_hooks.types import Workload
from gpusage_hooks.types.workloads import Precision
from gpusage_hooks.units import GIB, MIB
from gpusage_lab.learning.memory_rows import GPU, PEAKS, STATIC
from gpusage_lab.learning.targets import Cell, ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.published import runs as published_runs
from gpusage_lab.published.rows import LANGUAGE, published_rows
from gpusage_lab.seeds.command import command_of
from gpusage_planning.zoo import Zoo, load_zoo

PUBLISHED = "published_vision.csv.gz"
GPUS = {
    "V100-16GB": "v100-sxm2-16gb",
    "V100-32GB": "v100-sxm2-32gb",
    "A100-40GB": "a100-sxm4-40gb",
    "A100-80GB": "a100-sxm4-80gb",
}
PRECISIONS = {"fp32": "fp32", "tf32": "tf32", "amp-fp16": "fp16"}
OUT_OF_MEMORY = "oom"
"""The figure's unit in the table of language models."""
LARGE_BYTES, LARGE_BEFORE_MIB = 24 * GIB, 20_000


class Run(NamedTuple):
    """One run of a model of the zoo, and whether it ran to its end."""

    key: str
    workload: Workload
    gpu: str
    ran: bool


def tables(data: DataFolder) -> list[ScoreTable]:
    """Return how many runs are told right."""
    zoo, advisor = load_zoo(), make_advisor()
    sources = {
        "DeepLearningExamples, one GPU": published(data, zoo),
        "GPUMemNet, A100 of 40 GB, large runs": measured(data, zoo, advisor),
        "language models": language_models(data, zoo),
    }
    return [
        ScoreTable(
            title="Memory: what ran, and what memory ended",
            columns=("source", "runs", "told right by the need %", "by a share's end %", "by the point taken %"),
            rows=tuple(
                line for name, runs in sources.items() for line in lines(name, [*dict.fromkeys(runs)], zoo, advisor)
            ),
            notes=("What ran must fit, what memory ended must not; some of these may have ended for another reason.",),
        )
    ]


def lines(name: str, runs: Sequence[Run], zoo: Zoo, advisor: Advisor) -> Iterator[tuple[Cell, ...]]:
    """Yield the row of the runs that ended well, and that of the others; each run counts once."""
    for ran in (True, False):
        of_kind = [run for run in runs if run.ran is ran]
        right = [0, 0, 0]
        for run in of_kind:
            gpu = advisor.catalogue.find(run.gpu)
            (need,) = advisor.predict(zoo.graph(run.key), run.workload, [gpu])
            ends = (need.required_bytes.high, need.share_memory_bytes, need.memory_bytes.value)
            for place, end in enumerate(ends):
                right[place] += (end <= gpu.memory_bytes) is ran
        if of_kind:
            yield (
                f"{name}: {'ran' if ran else 'ended'}",
                len(of_kind),
                *(100 * count / len(of_kind) for count in right),
            )


def published(data: DataFolder, zoo: Zoo) -> Iterator[Run]:
    """Yield the training runs on one GPU of models that the zoo has."""
    rows = data.read(PUBLISHED)
    rows = rows[(rows["mode"] == "train") & (rows["gpu_count"].astype(int) == 1) & rows["batch_per_gpu"].notna()]
    for row in rows.itertuples():
        name = re.fullmatch(r"timm (\w+)", str(row.architecture_hint))
        key = f"timm:{name[1] if name else ''}@{str(row.input).partition('x')[0]}"
        if key not in zoo or row.gpu not in GPUS or row.precision not in PRECISIONS:
            continue
        precision = cast("Precision", PRECISIONS[row.precision])
        yield Run(key, Workload(batch_size=int(row.batch_per_gpu), precision=precision), GPUS[row.gpu], ran=True)


def language_models(data: DataFolder, zoo: Zoo) -> Iterator[Run]:
    """Yield the runs of language models whose memory is published, or which were out of memory."""
    for row in published_rows(data):
        if row.metric not in ("memory_gb", OUT_OF_MEMORY):
            continue
        outcome, ran = published_runs.run_of(row._replace(metric="memory_gb")), row.metric != OUT_OF_MEMORY
        if not isinstance(outcome, published_runs.Run) or outcome.key not in zoo:
            continue
        is_larger_gpu = ran and outcome.counted_bytes > outcome.gpu.memory_bytes  # torchtitan's H100 of 96 GB
        if not is_larger_gpu:
            yield Run(outcome.key, outcome.workload, outcome.gpu.name, ran)


def measured(data: DataFolder, zoo: Zoo, advisor: Advisor) -> Iterator[Run]:
    """Yield GPUMemNet's large runs, and those that memory ended."""
    sides = dict(data.read(STATIC)[["model", "img_size_px"]].astype({"img_size_px": int}).itertuples(index=False))
    gpu = advisor.catalogue.find(GPU)
    for model, rows in data.read(PEAKS).groupby("model"):
        key, before_mib = f"timm:{model}@{sides.get(model)}", 0.0
        if key not in zoo:
            continue
        for row in rows.sort_values("batch_size").itertuples():
            workload, mib = Workload(batch_size=int(row.batch_size)), float(row.max_gpu_memory_MiB)
            ended = row.quality == "decreasing_suspect_oom" and before_mib >= LARGE_BEFORE_MIB
            if ended or (row.quality == "ok" and mib * MIB >= LARGE_BYTES):
                yield Run(key, workload, gpu.name, ran=not ended)
            before_mib = max(before_mib, mib)


main = command_of("memory_fits", tables, (PUBLISHED, LANGUAGE, PEAKS, STATIC))

if __name__ == "__main__":
    main()
