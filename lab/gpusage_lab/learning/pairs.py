"""Measured pairs of jobs on one GPU, how well a policy that chooses partners does, and the policies beside ours.

Beside ours are rules of one figure, the most popular partner, KACE's linear regression, and the rule from activities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from gpusage.decisions.advisor import make_advisor
from gpusage.predictors.arrays import BoolArray, FloatArray
from gpusage.predictors.sharing.colocation import JobFeatures, features_of, throughputs_by_rule
from gpusage_hooks.types import Gpu, GpuNeed, SoloRun
from gpusage_lab.learning.scores import rank_correlation
from gpusage_lab.learning.splits import check_enough
from gpusage_lab.measurements.tables import DataFolder
from gpusage_planning.named_jobs import GAVEL, LUCID, NamedJob, workload
from gpusage_planning.zoo import load_zoo

Name = tuple[str, int, bool]
"""Model, batch size, whether in mixed precision."""
NOTHING_KNOWN: Mapping[Name, SoloRun] = MappingProxyType({})
GAVEL_GPU, LUCID_GPU = "v100-sxm2-16gb", "rtx-3090"
QUEUE_LENGTH = 4
QUEUES = 200


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairs:
    """One source's pairs; each job's features are those of its graph alone.

    Attributes:
        sums: Sum of the two normalised throughputs, NaN where the pair was not measured, failed, or is of equal jobs.
        parts: The row's job's normalised throughput beside the column's job.
        failed: Pairs that did not run, most for lack of memory.
    """

    jobs: tuple[Name, ...]
    needs: tuple[GpuNeed, ...]
    features: FloatArray
    sums: FloatArray
    parts: FloatArray
    failed: tuple[tuple[int, int], ...]
    gpu: Gpu

    @property
    def models(self) -> npt.NDArray[np.str_]:
        """Each job's model."""
        return np.array([job[0] for job in self.jobs])


def gavel(data: DataFolder, alone: Mapping[Name, SoloRun] = NOTHING_KNOWN) -> Pairs:
    """Return Gavel's V100 pairs of 2020, the only ones under MPS; equal values of the two campaigns counted once.

    Args:
        data: The folder.
        alone: What is known of jobs alone; their needs follow from it.

    Raises:
        RequestError: There are too few to leave a model out.
    """
    rows = data.read("gavel_pairs.csv")
    rows = rows[(rows["source_file_tag"] == "simulation_2020") & (rows["gpu"] == "V100")]
    lines = [
        (
            (row["model_a"], _batch(row["batch_size_a"]), False),
            (row["model_b"], _batch(row["batch_size_b"]), False),
            (row["norm_a"], row["norm_b"]) if row["usable"] else None,
        )
        for row in rows.to_dict("records")
    ]
    pairs = _pairs(lines, GAVEL, GAVEL_GPU, alone)
    check_enough(pairs.models[~np.isnan(pairs.sums).all(axis=1)].tolist(), "models")
    return pairs


def gavel_step_times(data: DataFolder) -> dict[Name, SoloRun]:
    """Return the step time of each of Gavel's jobs alone on a V100: all that was measured of them alone."""
    rows = data.read("gavel_pairs.csv")
    rows = rows[(rows["source_file_tag"] == "simulation_2020") & (rows["gpu"] == "V100")]
    sides = (("model_a", "batch_size_a", "solo_a_steps_per_s"), ("model_b", "batch_size_b", "solo_b_steps_per_s"))
    return {
        (row[model], _batch(row[batch]), False): SoloRun(step_time_s=1 / row[rate], gpu=GAVEL_GPU)
        for row in rows.to_dict("records")
        for model, batch, rate in sides
        if row[rate] > 0
    }


def lucid_step_times(data: DataFolder) -> dict[Name, SoloRun]:
    """Return the step time of each of Lucid's jobs alone."""
    rows = data.read("lucid_solo.csv").to_dict("records")
    return {
        (row["model"], int(row["batch_size"]), bool(row["amp"])): SoloRun(
            step_time_s=row["batch_size"] / row["speed_samples_per_s"], gpu=LUCID_GPU
        )
        for row in rows
    }


def lucid_utilizations(data: DataFolder) -> dict[Name, SoloRun]:
    """Return the utilization that nvidia-smi showed of each of Lucid's jobs alone."""
    rows = data.read("lucid_solo.csv").to_dict("records")
    return {
        (row["model"], int(row["batch_size"]), bool(row["amp"])): SoloRun(utilization=row["gpu_util_pct"] / 100)
        for row in rows
    }


def lucid(data: DataFolder, alone: Mapping[Name, SoloRun] = NOTHING_KNOWN) -> Pairs:
    """Return Lucid's pairs: time slicing, non-commercial licence, for evaluation only.

    Args:
        data: The folder.
        alone: What is known of jobs alone; their needs follow from it.
    """
    rows = data.read("lucid_pairs.csv")
    lines = [
        (
            (row["model1"], int(row["batch_size_1"]), bool(row["amp1"])),
            (row["model2"], int(row["batch_size_2"]), bool(row["amp2"])),
            (row["norm_speed_1"], row["norm_speed_2"]),
        )
        for row in rows[(rows["gpu_num1"] == 1) & (rows["gpu_num2"] == 1)].to_dict("records")
    ]
    return _pairs(lines, LUCID, LUCID_GPU, alone)


def _batch(size: float) -> int:
    return int(size) if size == size else 1  # noqa: PLR0124 - NaN is not itself


def _pairs(
    lines: Iterable[tuple[Name, Name, tuple[float, float] | None]],
    jobs: Mapping[str, NamedJob],
    gpu_name: str,
    alone: Mapping[Name, SoloRun],
) -> Pairs:
    lines = list(lines)
    names = sorted({name for first, second, _ in lines for name in (first, second)})
    advisor = make_advisor()
    gpu = advisor.catalogue.find(gpu_name)
    needs = []
    for name in names:
        model, batch, half = name
        graph = load_zoo().graph(jobs[model].key)
        run = replace(workload(jobs[model], batch, half=half), alone=alone.get(name, SoloRun()))
        needs.append(advisor.predict(graph, run, [gpu])[0])
    index = {name: number for number, name in enumerate(names)}
    sums, parts = np.full((2, len(names), len(names)), np.nan)
    failed = []
    for first, second, speeds in lines:
        a, b = index[first], index[second]
        if speeds is None:
            failed.append((a, b))
        elif a != b:
            sums[a, b] = sums[b, a] = speeds[0] + speeds[1]
            parts[a, b], parts[b, a] = speeds
    return Pairs(
        jobs=tuple(names),
        needs=tuple(needs),
        features=features_of(needs),
        sums=sums,
        parts=parts,
        failed=tuple(failed),
        gpu=gpu,
    )


Policy = Callable[[Pairs, npt.NDArray[np.bool_], int], FloatArray]
"""(pairs, training jobs, target) -> how good each job would be as the target's partner."""


def scores(pairs: Pairs, policy: Policy) -> dict[str, Any]:
    """Return the policy's figures, each target's model (all its batch sizes) held out.

    Keys: ``all`` and ``queue``, % of Oracle over all candidates and over random queues; ``error``, MAPE of the sums in
    %; ``rank``, mean rank correlation; ``found``, the predicted sums; ``targets``, of each target that was scored its
    place, and % of Oracle over all candidates and over queues.
    """
    reached = np.full_like(pairs.sums, np.nan)
    targets, ranks = [], []
    for target in range(len(pairs.jobs)):
        predictions = policy(pairs, pairs.models != pairs.models[target], target)
        candidates = np.flatnonzero(~np.isnan(pairs.sums[target]))
        truth, predictions = pairs.sums[target][candidates], predictions[candidates]
        reached[target, candidates] = predictions
        if len(candidates) < QUEUE_LENGTH:
            continue
        generator = np.random.default_rng(target)
        queue = []
        for _ in range(QUEUES):
            chosen = generator.choice(len(candidates), QUEUE_LENGTH, replace=False)
            queue.append(truth[chosen[predictions[chosen].argmax()]] / truth[chosen].max())
        targets.append((target, 100.0 * truth[predictions.argmax()] / truth.max(), 100.0 * np.mean(queue)))
        ranks.append(rank_correlation(truth, predictions))
    errors = np.abs(reached - pairs.sums) / pairs.sums
    _, best, queues = np.array(targets).T
    return {
        "all": float(best.mean()),
        "queue": float(queues.mean()),
        "error": 100.0 * float(np.nanmean(errors)),
        "rank": float(np.mean(ranks)),
        "found": reached,
        "targets": targets,
    }


SM, DRAM, MEMORY = map(JobFeatures._fields.index, ("sm_activity", "dram_activity", "log_memory_bytes"))
"""Columns of `gpusage.predictors.sharing.colocation.features_of`."""


def mean_sums(pairs: Pairs, train_mask: BoolArray, _: int) -> FloatArray:
    """Return the mean sum of each job beside all training jobs; the mean of all sums for any other job."""
    known = np.where(train_mask[:, np.newaxis] & train_mask, pairs.sums, np.nan)
    counts = (~np.isnan(known)).sum(axis=1)
    return np.where(counts > 0, np.nansum(known, axis=1) / np.maximum(counts, 1), np.nanmean(known))


def kace(pairs: Pairs, train_mask: BoolArray, target: int) -> FloatArray:
    """Return what a linear regression on the sums of both jobs' features says."""
    first, second = np.nonzero(np.triu(~np.isnan(pairs.sums) & train_mask[:, np.newaxis] & train_mask))

    def design(rows: FloatArray) -> FloatArray:
        return np.concatenate([rows, np.ones((len(rows), 1))], axis=1)

    weights, *_ = np.linalg.lstsq(
        design(pairs.features[first] + pairs.features[second]), pairs.sums[first, second], rcond=None
    )
    return np.asarray(design(pairs.features[target] + pairs.features) @ weights)


def activities(pairs: Pairs, _: BoolArray, target: int) -> FloatArray:
    """Return what the rule from activities says, of whoever was measured."""
    return np.array([throughputs_by_rule(pairs.features[[target, other]]).sum() for other in range(len(pairs.jobs))])


RANKING: dict[str, Policy] = {
    "random": lambda pairs, _, target: np.random.default_rng(target).random(len(pairs.jobs)),
    "MEMCAP (least memory)": lambda pairs, *_: -pairs.features[:, MEMORY],
    "SM% (most SM activity)": lambda pairs, *_: pairs.features[:, SM],
    "MEM% (least memory activity)": lambda pairs, *_: -pairs.features[:, DRAM],
}
"""Policies that order partners and predict nothing."""
GUESSING: dict[str, Policy] = {
    "popular partner": mean_sums,
    "KACE: linear regression on sums": kace,
    "rule from activities alone": activities,
}


def with_partner_held_out(policy: Policy) -> Policy:
    """Return *policy* with the partner's model held out as well as the target's."""

    def both(pairs: Pairs, train_mask: BoolArray, target: int) -> FloatArray:
        predictions = np.zeros(len(pairs.jobs))
        for model in sorted(set(pairs.models)):
            own = pairs.models == model
            predictions[own] = policy(pairs, train_mask & ~own, target)[own]
        return predictions

    return both


def seen_as(known: Pairs, policy: Policy) -> Policy:
    """Return *policy* with the features of *known*, the same jobs of which more is known."""
    return lambda _, train_mask, target: policy(known, train_mask, target)
