"""Utilization of real models, which nothing is fitted on: from the graph alone, and with a figure of an earlier run.

What a graph can show at most is scored as well: a job that waits for its data looks like one that does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpusage.decisions.advisor import Advisor
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.plugins.loading import make_hooks
from gpusage.predictors.arrays import FloatArray
from gpusage.predictors.work.lowering import forward_flop
from gpusage_hooks.types import Gpu, Interval, ModelGraph, SoloRun, Workload
from gpusage_lab.learning.scores import rank_correlation, rmsle
from gpusage_lab.learning.splits import leave_one_out
from gpusage_lab.learning.targets import Cell, ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_planning import named_jobs
from gpusage_planning.named_jobs import GAVEL, LUCID, NamedJob, workload
from gpusage_planning.zoo import load_zoo

OTHER_SOURCES = "constant of other sources"
LUCID_SOURCE = "Lucid, training"
WAITS = ("PointNet",)
"""Its steps last 7 to 14 times as long as its kernels, for a parser of text files; no graph shows it."""
NO_STEPS = ("PPO", "TD3")
"""Lucid counts steps of their games, not samples of a training step."""
LEAST_SHARE = 1e-3
MISO_KEYS = {"bert": LUCID["BERT"], "cyclegan": GAVEL["CycleGAN"]}
"""The two of MISO's models whose sizes its code and paper leave no doubt about."""
LAMBDA_JOBS = {
    "resnet50": (GAVEL["ResNet-50"], 128),
    "bert_base_squad": (LUCID["BERT"], 24),
    "gnmt": (NamedJob("mlperf:gnmt@32", "adam"), 128),
    "SSD": (NamedJob("mlperf:ssd@300", "momentum"), 48),
}
"""By task: the job, and its batch size in fp32 on a V100 of 16 GB; in half precision it is twice as large."""
LAMBDA_FOLDERS = ("V100", "p3.2xlarge")
"""Those whose batch sizes are published."""
STEADY_SAMPLES = 20
"""With fewer, a mean says little."""


class Test(NamedTuple):
    """One measured run of a real model; its step time is ``None`` where it was not measured."""

    source: str
    model: str
    graph: ModelGraph
    workload: Workload
    gpu: Gpu
    percent: float
    step_s: float | None = None


def yeung_features(graph: ModelGraph, batch_size: int) -> FloatArray:
    """Return what Yeung et al. extract: FLOP, parameters, layers by type, activations and the input's size.

    Source:
        Yeung et al., "Towards GPU Utilization Prediction for Cloud Deep Learning", HotCloud 2020, table 2.
    """
    types = [node.op_type for node in graph.nodes]
    inputs = sum(float(np.prod([abs(size) for size in shape])) for _, shape in graph.inputs) * batch_size
    counts = [float(types.count(name)) for name in ("Conv", "Gemm", "MatMul", "BatchNormalization", "LSTM", "MaxPool")]
    flop = forward_flop(graph) * batch_size
    return np.array([flop, float(graph.parameter_count), float(len(types)), inputs, float(batch_size), *counts])


def utilization_table(data: DataFolder) -> ScoreTable:
    """Return the shipped predictor's errors on real models, by source and by what is known."""
    tests = list(real_tests(data))
    by_source = {source: [test for test in tests if test.source == source] for source in {one.source for one in tests}}

    lines: list[tuple[Cell, ...]] = []
    for source, own in sorted(by_source.items()):
        # Each other source counts alike, however many runs it has.
        logs = [np.log1p(_percents(others)).mean() for name, others in sorted(by_source.items()) if name != source]
        lines += _source_lines(source, own, float(np.expm1(np.mean(logs))) if logs else None)

    return ScoreTable(
        title="Utilization of real models, none of them fitted on: RMSLE on percent",
        columns=("source", "rows", "ours", "constant", OTHER_SOURCES, "coverage %", "rank correlation"),
        rows=tuple(lines),
        notes=(
            "Constant: the best one for the other models of the same source.",
            "Constant of other sources: the mean of their constants; nothing of the source is known.",
            "Step time known: as `step_time=` gives it. At another batch: `utilization=60@32`, of the nearest other.",
            "Ceiling: what a graph could show at most, every model exact but one that waits for its data,",
            "which is taken for one that does not. Of PPO and TD3 no step time is known.",
            "Lucid's small networks of images of 32 x 32 wait for two loading processes, PPO and TD3 for their games.",
            "Takayama's jobs are whole MLPerf tasks, with evaluation and loading of data.",
            "Left out: Alnair (maxima alone, image sizes not published), Lambda's other GPUs (no batch sizes), and",
            "MISO's other models (sizes that neither its code nor its paper settles).",
        ),
    )


def _source_lines(source: str, tests: Sequence[Test], usual: float | None) -> Iterator[tuple[Cell, ...]]:
    """Yield the lines of one source; *usual* is the utilization elsewhere, in percent."""
    yield _line(f"{source}, from the graph", tests, [_predicted(test, SoloRun()) for test in tests], usual)

    waits = np.array([test.model in WAITS for test in tests], dtype=bool)
    if waits.any():
        fed = [test for test in tests if test.model not in WAITS]
        yield _line(f"{source}, without PointNet", fed, [_predicted(test, SoloRun()) for test in fed], usual)
        yield _scores(f"{source}, ceiling of graphs", tests, np.where(waits, 100.0, _percents(tests)), usual)

    timed = [test for test in tests if test.step_s is not None]
    if timed:
        predictions = [_predicted(test, SoloRun(step_time_s=test.step_s)) for test in timed]
        yield _line(f"{source}, step time known", timed, predictions, usual)

    batch_pairs = [(test, other) for test in tests if (other := other_batch(test, tests)) is not None]
    if batch_pairs:
        predictions = [_predicted(test, solo_run(other)) for test, other in batch_pairs]
        known = [test for test, _ in batch_pairs]
        yield _line(f"{source}, utilization at another batch known", known, predictions, usual)


def _predicted(test: Test, alone: SoloRun) -> Interval:
    (need,) = _ADVISOR.predict(test.graph, replace(test.workload, alone=alone), [test.gpu])
    return need.gpu_utilization


def other_batch(test: Test, tests: Sequence[Test]) -> Test | None:
    """Return the run of the same model at the nearest other batch, the smaller of two that are as near."""
    others = [
        one
        for one in tests
        if (one.model, one.workload.precision) == (test.model, test.workload.precision)
        and one.workload.batch_size != test.workload.batch_size
    ]
    size = test.workload.batch_size
    return min(
        others, key=lambda one: (abs(np.log(one.workload.batch_size / size)), one.workload.batch_size), default=None
    )


def solo_run(test: Test) -> SoloRun:
    """Return what a user knows who saw *test*."""
    share = float(np.clip(test.percent / 100.0, LEAST_SHARE, 1.0))
    return SoloRun(utilization=share, batch_size=test.workload.batch_size)


def _percents(tests: Sequence[Test]) -> FloatArray:
    return np.array([test.percent for test in tests], dtype=float)


def _line(name: str, tests: Sequence[Test], predictions: Sequence[Interval], usual: float | None) -> tuple[Cell, ...]:
    each = zip(predictions, _percents(tests), strict=True)
    inside = [100 * one.low <= value <= 100 * one.high for one, value in each]
    is_known = all(one.low == one.high for one in predictions)
    coverage = None if is_known else 100.0 * float(np.mean(inside))
    return _scores(name, tests, 100.0 * np.array([one.value for one in predictions]), usual, coverage)


def _scores(
    name: str, tests: Sequence[Test], ours: FloatArray, usual: float | None, coverage: float | None = None
) -> tuple[Cell, ...]:
    truth = _percents(tests)
    elsewhere = None if usual is None else rmsle(truth, np.full(len(truth), usual))
    constant = error_of_constant(truth, [test.model for test in tests])
    return name, len(truth), rmsle(truth, ours), constant, elsewhere, coverage, rank_correlation(truth, ours)


def error_of_constant(truth: FloatArray, models: Sequence[str]) -> float | None:
    """Return the RMSLE of a constant, which is the best one for all other models; ``None`` if there is only one."""
    if len(set(models)) == 1:
        return None
    constants = np.zeros_like(truth)
    for fold in leave_one_out(models, "model"):
        constants[fold.test] = np.expm1(np.log1p(truth[fold.train]).mean())
    return rmsle(truth, constants)


def real_tests(data: DataFolder) -> Iterator[Test]:
    """Yield every run of a real model whose utilization was measured."""
    zoo, find_gpu = load_zoo(), builtin_catalogue().find

    if "lucid_solo.csv" in data:
        gpu = find_gpu("rtx-3090")
        for row in data.read("lucid_solo.csv").to_dict("records"):
            job = LUCID[row["model"]]
            run = workload(job, row["batch_size"], half=bool(row["amp"]))
            step_s = None if row["model"] in NO_STEPS else run.batch_size / row["speed_samples_per_s"]
            yield Test(LUCID_SOURCE, row["model"], zoo.graph(job.key), run, gpu, float(row["gpu_util_pct"]), step_s)

    if "miso_a100_mig.csv" in data:
        gpu, rows = find_gpu("a100-sxm4-40gb"), data.read("miso_a100_mig.csv")
        for row in rows[(rows["mig_slice"] == "7g.40gb") & rows["model"].isin(list(MISO_KEYS))].to_dict("records"):
            job, percent = MISO_KEYS[row["model"]], float(row["sm_util_pct_a100_solo"])
            run, step_s = workload(job, row["batch_size"]), float(row["iter_time_median_s"])
            yield Test("MISO, training", row["model"], zoo.graph(job.key), run, gpu, percent, step_s)

    if "lambda_monitor_util_memory.csv" in data:
        gpu, rows = find_gpu("v100-sxm2-16gb"), data.read("lambda_monitor_util_memory.csv")
        steady = rows["result_dir"].isin(LAMBDA_FOLDERS) & (rows["num_steady_samples"] >= STEADY_SAMPLES)
        for row in rows[steady].to_dict("records"):
            task, _, precision = row["task"].rpartition("_")
            if task in LAMBDA_JOBS:
                job, batch_size = LAMBDA_JOBS[task]
                half = precision != "FP32"
                run = workload(job, batch_size * (2 if half else 1), half=half)
                yield Test(
                    "Lambda, training", task, zoo.graph(job.key), run, gpu, float(row["mean_gpu_util_pct_steady"])
                )

    gpu = find_gpu(named_jobs.NEW)
    for each in named_jobs.JOBS:
        run = Workload(batch_size=each.batch_size, optimizer=each.optimizer, mode=each.mode)
        yield Test("Takayama, MLPerf", each.name, zoo.graph(each.key), run, gpu, each.utilization)


_ADVISOR = Advisor(hooks=make_hooks(), catalogue=builtin_catalogue())
