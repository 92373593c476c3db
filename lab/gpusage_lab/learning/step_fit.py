"""Fits `gpusage.predictors.times.efficiency` by least logarithmic error of whole steps and of operators.

Every step is the sum of its kernels, so that no kernel need be measured alone; operators that were measured alone are
steps of one kernel. The derivatives are written out below; SciPy's L-BFGS does the rest. Nothing here is random.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize  # type: ignore[import-untyped, unused-ignore]

from gpusage.predictors.artifacts import StepTimeDeviations
from gpusage.predictors.times.efficiency import FEATURES, OVERLAP, Efficiency
from gpusage.predictors.work.operators import OperatorClass
from gpusage_lab.learning.step_flat import CLASSES, Array, Flat, Sample, flattened

HIDDEN = 6
STARTS = (7, 8, 9, 10, 11, 12)
"""Seeds of the first weights: the search ends elsewhere from each.

Networks from several starts, averaged, miss less on a GPU that none has seen. The mean of three there still lies 6 %
from that of three others; of six, about half as far.
"""
FIRST_EFFICIENCY = {OperatorClass.CONVOLUTION: 0.6, OperatorClass.PRODUCT: 0.7, OperatorClass.BATCHED_PRODUCT: 0.5}
DEFAULT_COMPUTE, DEFAULT_TRAFFIC = 0.3, 0.65
FIRST_HOST_S = (60e-6, 15e-6, 15e-6, 1.5e-6)
FIRST_LATENCY_S = 2.5e-6
HUBER = 0.08
"""Logarithmic misses below it count by their squares, those above by their size."""
TOO_FAR = 1e9
"""A loss greater than any."""
APART_HUBER = 0.04
APART_WEIGHT = 2.0
"""The same for what GPUs differ in: see `Sample.group`."""


def initial(start: int = STARTS[0]) -> Efficiency:
    """Return constant efficiencies by class: where a fit starts, and what it is drawn to where nothing is known."""
    generator = np.random.default_rng(start)
    compute = np.log([FIRST_EFFICIENCY.get(item, DEFAULT_COMPUTE) for item in OperatorClass])
    traffic = np.full(CLASSES, np.log(DEFAULT_TRAFFIC))
    return Efficiency(
        first=generator.normal(0.0, 0.5, (CLASSES, len(FEATURES), HIDDEN)),
        first_bias=generator.normal(0.0, 0.5, (CLASSES, HIDDEN)),
        second=np.zeros((CLASSES, HIDDEN, 2)),
        second_bias=np.stack([compute, traffic], axis=1),
        latency_s=FIRST_LATENCY_S,
        host_s=np.array(FIRST_HOST_S),
        gpu_log_factors={},
        deviations=StepTimeDeviations(known=0.2, unseen_gpu=0.2, short=0.5),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalties:
    """How strongly parameters are drawn to where they started, as inverse variances."""

    first: float = 2.0
    second: float = 4.0
    bias: float = 1.0
    gpu: float = 400.0
    campaign: float = 4.0
    host: float = 4.0
    scale: float = 2e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What came out: the efficiencies, and each campaign's host, as a logarithm."""

    efficiency: Efficiency
    campaign_log_factors: dict[str, float]


def fit(samples: Sequence[Sample], *, iterations: int = 150, penalties: Penalties | None = None) -> Fitted:
    """Return the efficiencies that explain *samples* best: the mean of a fit from each of `STARTS`."""
    flat = flattened(samples)
    return mean([_fit_from(initial(start), flat, iterations, penalties or Penalties()) for start in STARTS])


def _fit_from(start: Efficiency, flat: Flat, iterations: int, penalties: Penalties) -> Fitted:
    objective = _Objective(flat, start, penalties)
    solution = minimize(
        objective, objective.packed(), jac=True, method="L-BFGS-B", options={"maxiter": iterations, "maxcor": 20}
    )
    return objective.result(solution.x)


def mean(fits: Sequence[Fitted]) -> Fitted:
    """Return one fit whose logarithms are the means of those of *fits*: their networks side by side make one."""
    efficiencies = [item.efficiency for item in fits]

    def middle(logarithms: Sequence[Mapping[str, float]]) -> dict[str, float]:
        return {name: float(np.mean([item[name] for item in logarithms])) for name in logarithms[0]}

    efficiency = replace(
        efficiencies[0],
        first=np.concatenate([item.first for item in efficiencies], axis=2),
        first_bias=np.concatenate([item.first_bias for item in efficiencies], axis=1),
        second=np.concatenate([item.second for item in efficiencies], axis=1) / len(efficiencies),
        second_bias=np.mean([item.second_bias for item in efficiencies], axis=0),
        latency_s=float(np.exp(np.mean([np.log(item.latency_s) for item in efficiencies]))),
        host_s=np.exp(np.mean([np.log(item.host_s) for item in efficiencies], axis=0)),
        gpu_log_factors=middle([item.gpu_log_factors for item in efficiencies]),
    )
    campaigns = middle([item.campaign_log_factors for item in fits])
    return Fitted(efficiency=efficiency, campaign_log_factors=campaigns)


def _first_host(campaign: str) -> float:
    """Return where a campaign's host starts: those of pytorch-gpu-benchmark are seen at once to be twice as slow."""
    return 0.7 if campaign.startswith("torchvision") else 0.0


class _Objective:
    """The loss and its gradient as a function of one vector."""

    def __init__(self, flat: Flat, start: Efficiency, penalties: Penalties) -> None:
        self._flat, self._start, self._penalties = flat, start, penalties
        self._blocks: dict[str, Array] = {
            "first": start.first,
            "first_bias": start.first_bias,
            "second": start.second,
            "second_bias": start.second_bias,
            "latency": np.log([start.latency_s * 1e6]),
            "host": np.log(start.host_s * 1e6),
            "gpu": np.zeros(len(flat.gpu_names)),
            "campaign": np.array([_first_host(name) for name in flat.campaigns]),
        }
        p = penalties
        self._strengths = {
            "first": p.first,
            "first_bias": p.first,
            "second": p.second,
            "second_bias": p.bias,
            "latency": p.host,
            "host": p.host,
            "gpu": p.gpu,
            "campaign": p.campaign,
        }

    def packed(self) -> Array:
        return np.concatenate([block.ravel() for block in self._blocks.values()])

    def unpacked(self, vector: Array) -> dict[str, Array]:
        result, offset = {}, 0
        for name, block in self._blocks.items():
            result[name] = vector[offset : offset + block.size].reshape(block.shape)
            offset += block.size
        return result

    def result(self, vector: Array) -> Fitted:
        values = self.unpacked(vector)
        efficiency = replace(
            self._start,
            first=values["first"],
            first_bias=values["first_bias"],
            second=values["second"],
            second_bias=values["second_bias"],
            latency_s=float(np.exp(values["latency"][0])) / 1e6,
            host_s=np.exp(values["host"]) / 1e6,
            gpu_log_factors=dict(zip(self._flat.gpu_names, values["gpu"].tolist(), strict=True)),
        )
        campaigns = dict(zip(self._flat.campaigns, values["campaign"].tolist(), strict=True))
        return Fitted(efficiency=efficiency, campaign_log_factors=campaigns)

    def __call__(self, vector: Array) -> tuple[float, Array]:
        values = self.unpacked(vector)
        gradient = {name: np.zeros_like(block, dtype=np.float64) for name, block in values.items()}
        with np.errstate(over="ignore", invalid="ignore"):
            loss = self._misses(values, gradient)
        if not np.isfinite(loss):  # a step of the search that went out of the range of numbers: it takes a smaller one
            return TOO_FAR, np.zeros_like(vector)
        for name, block in values.items():
            away = block - self._blocks[name] if name not in ("first", "first_bias", "second") else block
            strength = self._strengths[name] * self._penalties.scale
            loss += 0.5 * strength * float((away**2).sum())
            gradient[name] += strength * away
        return loss, np.concatenate([block.ravel() for block in gradient.values()])

    def _misses(self, values: dict[str, Array], gradient: dict[str, Array]) -> float:
        flat = self._flat
        kernels = [self._class_forward(values, index) for index in range(CLASSES)]
        time_us = np.concatenate([item[0] for item in kernels])
        rows = len(flat.log_measured_us)
        latency = np.exp(values["latency"][0])
        launches = flat.counts * flat.launches
        busy = np.bincount(flat.row, flat.counts * time_us + latency * launches, rows) + flat.waits_us
        busy *= np.exp(values["gpu"][flat.gpu])
        host_parts = flat.host_counts * np.exp(values["host"]) * np.exp(values["campaign"][flat.campaign])[:, None]
        host = host_parts.sum(axis=1)
        step = (busy**OVERLAP + host**OVERLAP) ** (1.0 / OVERLAP)
        whole = step + flat.extra_us
        miss = np.log(whole) - flat.log_measured_us
        root = np.sqrt(1.0 + (miss / HUBER) ** 2)
        loss = float((flat.weight * HUBER * (root - 1.0)).sum())
        apart_loss, d_apart = self._group_loss(miss)
        loss += apart_loss
        d_log_step = (flat.weight * miss / (HUBER * root) + d_apart) * step / whole
        host_share = (host / step) ** OVERLAP
        d_log_busy = d_log_step * (1.0 - host_share)
        d_host = d_log_step * host_share / host
        gradient["gpu"] += np.bincount(flat.gpu, d_log_busy, len(flat.gpu_names))
        gradient["host"] += d_host @ host_parts
        gradient["campaign"] += np.bincount(flat.campaign, d_host * host, len(flat.campaigns))
        d_sum = (d_log_busy / busy * np.exp(values["gpu"][flat.gpu]))[flat.row]
        gradient["latency"] += latency * float((d_sum * launches).sum())
        d_time = (d_sum * flat.counts).astype(np.float32)
        for index in range(CLASSES):
            self._class_backward(values, gradient, index, kernels[index], d_time)
        return loss

    def _group_loss(self, miss: Array) -> tuple[float, Array]:
        """Return the loss of what the misses of one group differ in, and its derivative."""
        group, strength = self._flat.group, self._flat.weight * APART_WEIGHT
        sizes = np.bincount(group)
        apart = miss - (np.bincount(group, miss) / sizes)[group]
        root = np.sqrt(1.0 + (apart / APART_HUBER) ** 2)
        slope = strength * apart / (APART_HUBER * root)
        derivative = slope - (np.bincount(group, slope) / sizes)[group]
        return float((strength * APART_HUBER * (root - 1.0)).sum()), derivative

    def _class_forward(self, values: dict[str, Array], index: int) -> tuple[Array, ...]:
        flat = self._flat
        part = slice(flat.starts[index], flat.starts[index + 1])
        features = flat.features[part]
        hidden = np.tanh(
            features @ values["first"][index].astype(np.float32) + values["first_bias"][index].astype("f4")
        )
        out = hidden @ values["second"][index].astype(np.float32) + values["second_bias"][index].astype("f4")
        compute = _fourth_power(flat.compute_us[part] * np.exp(-out[:, 0]))
        traffic = _fourth_power(flat.traffic_us[part] * np.exp(-out[:, 1]))
        total = compute + traffic
        return np.sqrt(np.sqrt(total)), hidden, compute / total

    def _class_backward(
        self, values: dict[str, Array], gradient: dict[str, Array], index: int, kernel: tuple[Array, ...], d_time: Array
    ) -> None:
        flat = self._flat
        part = slice(flat.starts[index], flat.starts[index + 1])
        time_us, hidden, compute_share = kernel
        if not len(time_us):
            return
        d_out = -(d_time[part] * time_us)[:, None] * np.stack([compute_share, 1.0 - compute_share], axis=1)
        gradient["second"][index] += hidden.T @ d_out
        gradient["second_bias"][index] += d_out.sum(axis=0)
        d_hidden = (d_out @ values["second"][index].T.astype(np.float32)) * (1.0 - hidden**2)
        gradient["first"][index] += flat.features[part].T @ d_hidden
        gradient["first_bias"][index] += d_hidden.sum(axis=0)


def _fourth_power(values: Array) -> Array:
    """Return the fourth powers: a kernel takes the 4-norm of two times, and a general power is slow."""
    squares: Array = values * values
    fourth: Array = squares * squares
    return fourth
