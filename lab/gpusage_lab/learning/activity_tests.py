"""Activity of real models, which nothing was fitted on: reported as it is. And the features that Yeung et al. used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.arrays import FloatArray
from gpusage.predictors.work.lowering import forward_flop
from gpusage_hooks.types import Gpu, ModelGraph, Workload
from gpusage_lab.learning import mlperf_jobs
from gpusage_lab.learning.scores import rank_correlation, rmsle
from gpusage_lab.learning.splits import leave_one_out
from gpusage_lab.learning.targets import ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_planning.named_jobs import GAVEL, LUCID, NamedJob, workload
from gpusage_planning.zoo import load_zoo

GLET_GPUS = {"RTX2080ti": "rtx-2080-ti", "RTX3080": "rtx-3080"}
MISO_KEYS = {"bert": LUCID["BERT"], "cyclegan": GAVEL["CycleGAN"]}
"""The two of MISO's models whose sizes its code and paper leave no doubt about."""


LUCID_SOURCE = "Lucid, training"
LAMBDA_JOBS = {
    "resnet50": (GAVEL["ResNet-50"], 128),
    "bert_base_squad": (LUCID["BERT"], 24),
    "gnmt": (NamedJob("mlperf:gnmt@32", "adam"), 128),
    "SSD": (NamedJob("mlperf:ssd@300", "momentum"), 48),
}
"""By task: the job, and its batch size in fp32 on a V100 of 16 GB; in half precision it is twice as large."""
LAMBDA_FOLDERS = ("V100", "p3.2xlarge")
"""Those whose batch sizes are published."""
LEFT_OUT_NOTE = "Constant: the best one for the other models of the same source."
STEADY_SAMPLES = 20
"""With fewer, a mean says little."""


NO_STEPS = ("PPO", "TD3")
"""Lucid counts steps of their games, not samples of a training step."""


class Test(NamedTuple):
    """One measured run of a real model, in percent; what was not measured is None.

    Attributes:
        step_s: How long a step took.
    """

    source: str
    model: str
    graph: ModelGraph
    workload: Workload
    gpu: Gpu
    utilization: float | None
    sm_activity: float | None
    memory: float | None
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


def tables(data: DataFolder) -> tuple[ScoreTable, ...]:
    """Return the shipped predictor's errors on real models, source by source."""
    lines: list[tuple[str | float | None, ...]] = []
    tests = list(real_tests(data))
    for source in sorted({test.source for test in tests}):
        lines += _lines(source, [test for test in tests if test.source == source])
    fed = [test for test in tests if test.source == LUCID_SOURCE and test.model != "PointNet"]
    if fed:
        lines += _lines(f"{LUCID_SOURCE}, without PointNet", fed)
    return (
        ScoreTable(
            title="Activity of real models, none of them fitted on: RMSLE on percent",
            columns=("source", "rows", "constant", "node times alone", "shipped", "coverage %", "rank correlation"),
            rows=tuple(lines),
            notes=(
                LEFT_OUT_NOTE,
                "Utilization: share of time in which any kernel runs; no graph shows slow hosts and waits for data.",
                "Lucid's PointNet parses text files: its steps last 7 to 14 times as long as its kernels.",
                "Its small networks of images of 32 x 32 wait for two loading processes, PPO and TD3 for their games.",
                "nvidia-smi's memory figure is the share of time in which memory is accessed at all; gpulets' SM is",
                "a profiler's throughput: neither is quite the figure beside it, so the ranks say more.",
                "Takayama's jobs are whole MLPerf tasks, with evaluation and loading of data.",
                "Left out: Alnair (maxima alone, image sizes not published), Lambda's other GPUs (no batch sizes), and",
                "MISO's other models (sizes that neither its code nor its paper settles).",
            ),
        ),
    )


def _lines(source: str, tests: list[Test]) -> Iterator[tuple[str | float | None, ...]]:
    questions = [WorkloadAnalysis(test.graph, test.workload) for test in tests]
    activities = [analysis.activity([test.gpu])[0] for analysis, test in zip(questions, tests, strict=True)]
    times = [analysis.timing([test.gpu]) for analysis, test in zip(questions, tests, strict=True)]
    for what in ("utilization", "sm_activity", "memory"):
        measured = [getattr(test, what) for test in tests]
        if any(value is None for value in measured):
            continue
        truth = np.array(measured)
        intervals = [getattr(activity, _FIELDS[what]) for activity in activities]
        ours = np.array([100.0 * interval.value for interval in intervals])
        plain = np.array([100.0 * getattr(time, _TIMES[what])[0] / time.step_s[0] for time in times])
        inside = [
            100.0 * interval.low <= value <= 100.0 * interval.high
            for interval, value in zip(intervals, measured, strict=True)
        ]
        figures = (error_of_constant(truth, [test.model for test in tests]), rmsle(truth, plain), rmsle(truth, ours))
        yield (
            f"{source}, {what}",
            len(truth),
            *figures,
            100.0 * float(np.mean(inside)),
            rank_correlation(truth, ours),
        )


def error_of_constant(truth: FloatArray, models: Sequence[str]) -> float | None:
    """Return the RMSLE of a constant, which is the best one for all other models; ``None`` if there is only one."""
    if len(set(models)) == 1:
        return None
    constants = np.zeros_like(truth)
    for fold in leave_one_out(models, "model"):
        constants[fold.test] = np.expm1(np.log1p(truth[fold.train]).mean())
    return rmsle(truth, constants)


_FIELDS = {"utilization": "gpu_utilization", "sm_activity": "sm_activity", "memory": "dram_activity"}
_TIMES = {"utilization": "busy_s", "sm_activity": "sm_s", "memory": "dram_s"}


def real_tests(data: DataFolder) -> Iterator[Test]:
    """Yield every measured run of a real model."""
    if "lucid_solo.csv" in data:
        yield from _lucid(data)
    if "glet_util.csv" in data:
        yield from _glet(data)
    if "miso_a100_mig.csv" in data:
        yield from _miso(data)
    if "lambda_monitor_util_memory.csv" in data:
        yield from _lambda(data)
    yield from _takayama()


def _lucid(data: DataFolder) -> Iterator[Test]:
    gpu = builtin_catalogue().find("rtx-3090")
    for row in data.read("lucid_solo.csv").to_dict("records"):
        job = LUCID[row["model"]]
        run = workload(job, row["batch_size"], half=bool(row["amp"]))
        measured = float(row["gpu_util_pct"]), None, float(row["gmem_util_pct"])
        step_s = None if row["model"] in NO_STEPS else run.batch_size / row["speed_samples_per_s"]
        yield Test(LUCID_SOURCE, row["model"], load_zoo().graph(job.key), run, gpu, *measured, step_s)


def _glet(data: DataFolder) -> Iterator[Test]:
    zoo = load_zoo()
    for row in data.read("glet_util.csv").to_dict("records"):
        key = f"torchvision:{row['model']}@224"
        if key in zoo:
            gpu = builtin_catalogue().find(GLET_GPUS[row["gpu"]])
            run = Workload(batch_size=int(row["batch_size"]), mode="infer")
            measured = None, float(row["sm_util_pct"]), float(row["mem_util_pct"])
            yield Test("gpulets, inference", row["model"], zoo.graph(key), run, gpu, *measured)


def _miso(data: DataFolder) -> Iterator[Test]:
    gpu = builtin_catalogue().find("a100-sxm4-40gb")
    rows = data.read("miso_a100_mig.csv")
    for row in rows[rows["mig_slice"] == "7g.40gb"].to_dict("records"):
        job = MISO_KEYS.get(row["model"])
        if job is not None:
            measured = float(row["sm_util_pct_a100_solo"]), None, float(row["mem_util_pct_a100_solo"])
            run = workload(job, row["batch_size"])
            graph, step_s = load_zoo().graph(job.key), float(row["iter_time_median_s"])
            yield Test("MISO, training", row["model"], graph, run, gpu, *measured, step_s)


def _lambda(data: DataFolder) -> Iterator[Test]:
    gpu = builtin_catalogue().find("v100-sxm2-16gb")
    rows = data.read("lambda_monitor_util_memory.csv")
    steady = rows["result_dir"].isin(LAMBDA_FOLDERS) & (rows["num_steady_samples"] >= STEADY_SAMPLES)
    for row in rows[steady].to_dict("records"):
        task, _, precision = row["task"].rpartition("_")
        if task in LAMBDA_JOBS:
            job, batch_size = LAMBDA_JOBS[task]
            half = precision != "FP32"
            run = workload(job, batch_size * (2 if half else 1), half=half)
            measured = float(row["mean_gpu_util_pct_steady"]), None, None
            yield Test("Lambda, training", task, load_zoo().graph(job.key), run, gpu, *measured)


def _takayama() -> Iterator[Test]:
    gpu = builtin_catalogue().find(mlperf_jobs.NEW)
    for job in mlperf_jobs.JOBS:
        run = Workload(batch_size=job.batch_size, optimizer=job.optimizer, mode=job.mode)
        measured = job.utilization, None, None
        yield Test("Takayama, MLPerf", job.name, load_zoo().graph(job.key), run, gpu, *measured)
