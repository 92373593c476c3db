"""Whether a job fits a GPU, by what it needs and by what it takes, against public records of what ran and what did not.

NVIDIA's DeepLearningExamples name batches that ran on GPUs of 16 to 80 GB; nothing here was fitted on them. GPUMemNet
trained timm's models at growing batches on an A100 of 40 GB: below are its rows that ran with 24 GB or more, and
those whose run came to nothing although a smaller batch had taken 20 GB or more, so that memory ended it. Of language
models, the public record has the memory of runs, and runs that are published as out of memory.

Jobs of several GPUs have tables of their own: what a decision would say of runs that are published, and which of two
GPUs it would call faster.

Example: python bench/memory_fits.py --data ../shared/data
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import fmean
from typing import NamedTuple, cast

from gpusage.decisions.advisor import Advisor, make_advisor
from gpusage.decisions.several_gpus import predict_several
from gpusage_hooks.types import DecisionRequest, GpuRequest, Job, ModelRequest, Workload
from gpusage_hooks.types.workloads import Precision
from gpusage_hooks.units import GIB, MIB
from gpusage_lab.learning.memory_rows import GPU, PEAKS, STATIC
from gpusage_lab.learning.targets import Cell, ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.published import runs as published_runs
from gpusage_lab.published.comparison import Compared, compare
from gpusage_lab.published.rows import LANGUAGE, published_rows
from gpusage_lab.seeds.ardagna_runs import gavel, sia
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
OF_SEVERAL = ("gavel_solo.csv", "sia_step_times.csv")
WORDS = ("gpus", "strategy", "checkpointing")
NEAR = 1.1
"""What is nearer to a GPU's memory tells of none."""
APART = 1.25
Steps = dict[tuple[str, Hashable], dict[str, list[tuple[float, float]]]]
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
        ),
        *tables_of_several(data, zoo, advisor),
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


def tables_of_several(data: DataFolder, zoo: Zoo, advisor: Advisor) -> Iterator[ScoreTable]:
    """Yield what decisions on jobs of several GPUs would have told right."""
    rows = [one for one in compare(data, zoo).compared if one.run.workload.gpus > 1]
    fits: dict[str, list[list[bool]]] = defaultdict(list)
    for name, run in dict.fromkeys(fitting_runs(rows, advisor)):
        fits[f"{name}: {'ran' if run.ran else 'does not fit'}"].append(
            [is_possible(run, zoo, advisor, named) is run.ran for named in ((), WORDS)]
        )
    yield ScoreTable(
        title="Several GPUs: what fits",
        columns=("runs", "n", "told right with gpus= alone %", "with all keys %"),
        rows=tuple(
            (name, len(each), *(100 * fmean(one) for one in zip(*each, strict=True))) for name, each in fits.items()
        ),
        notes=("A GPU is too small where the low end of the least need is more than it has.",),
    )

    # Of each two GPU types of a job, whether the faster one is told right.
    pairs: dict[str, list[bool]] = defaultdict(list)
    for (source, _), by_gpu in steps_by_job(data, rows, zoo, advisor).items():
        means = [[fmean(one) for one in zip(*each, strict=True)] for each in by_gpu.values()]
        for (ours_s, measured_s), (other_ours_s, other_s) in combinations(means, 2):
            is_right = (ours_s < other_ours_s) is (measured_s < other_s)
            is_apart = max(measured_s / other_s, other_s / measured_s) >= APART
            for name in (source, *([f"{source}, a quarter apart"] if is_apart else [])):
                pairs[name].append(is_right)
    yield ScoreTable(
        title="Several GPUs: which of two types is faster",
        columns=("jobs", "pairs", "told right %"),
        rows=tuple((name, len(pairs[name]), 100 * fmean(pairs[name])) for name in sorted(pairs)),
    )


def fitting_runs(rows: Sequence[Compared], advisor: Advisor) -> Iterator[tuple[str, Run]]:
    """Yield the published runs, and those whose memory is published on each of `GPUS` that it tells of."""
    for run in (one.run for one in rows):
        kind = "training" if run.workload.mode == "train" else "answers"
        yield f"{kind}, published", Run(run.key, run.workload, run.gpu.name, ran=True)
        for gpu in map(advisor.catalogue.find, GPUS.values()) if run.memory else ():
            room = run.counted_bytes / gpu.memory_bytes
            if not 1 / NEAR < room < NEAR:
                yield f"{kind}, memory published", Run(run.key, run.workload, gpu.name, ran=room < 1)


def is_possible(run: Run, zoo: Zoo, advisor: Advisor, named: Sequence[str]) -> bool:
    """Return whether a decision lets *run* have its GPUs, where its user's keys are gpus and those of *named*."""
    workload = run.workload if named or run.workload.mode == "infer" else replace(run.workload, strategy="ddp")
    words = ModelRequest(model=run.key, workload=workload, named=tuple(named))
    request, submission = GpuRequest(gpu_count=workload.gpus), DecisionRequest(manager="bench")
    job = Job(submission=submission, request=request, request_text="", model_request=words)
    least = predict_several(advisor, zoo.graph(run.key), job, workload, [advisor.catalogue.find(run.gpu)])[2][0]
    return least is None or least.fits


def steps_by_job(data: DataFolder, rows: Sequence[Compared], zoo: Zoo, advisor: Advisor) -> Steps:
    """Return predicted and measured steps by GPU, of each job of the public record, of Gavel and of Sia."""
    steps: Steps = defaultdict(lambda: defaultdict(list))
    for one in rows:
        run = one.run
        if run.memory is None:
            (need,) = advisor.predict(zoo.graph(run.key), run.workload, [run.gpu])
            ours_s = need.step_time_s.value
            steps["published", (run.key, run.workload, run.row.metric)][run.gpu.name].append(
                (ours_s, ours_s / one.ratio)
            )
    for row in (*gavel(data), *sia(data)):
        if row.gpu_count > 1:
            # A step of Sia's recommendation takes ten times as long on its V100s, which no GPU explains.
            source = f"{row.source}{', recommendation' * (row.network == 'ncf')}"
            steps[source, (row.network, row.gpu_count, row.batch_size)][row.gpu].append((row.ours_s, row.step_s))
    return steps


main = command_of("memory_fits", tables, (PUBLISHED, LANGUAGE, PEAKS, STATIC, *OF_SEVERAL))

if __name__ == "__main__":
    main()
