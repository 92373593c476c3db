"""Who suits whom under MPS: a law of contention beside popular partner, and how far any method could get.

The law has one parameter for each resource that two jobs contend for. A job's step, beside a partner that runs at the
share x of its speed, takes 1 + x * sum(parameter * own demand * partner's demand) of its time alone; both shares are
solved together. On top, as in what is shipped, each measured job has an effect on its own throughput and one on its
partner's. Which resources take part is chosen by folds inside the training models.

Example: python bench/colocation_law.py --data ../shared/data
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from gpusage_lab.learning.colocation import refit_sums
from gpusage_lab.learning.pairs import QUEUE_LENGTH, Name, Pairs, Policy, gavel, lucid, scores
from gpusage_lab.learning.partners import DRAM, SM, mean_sums, with_partner_held_out
from gpusage_lab.learning.targets import ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.seeds.command import command_of
from gpusage_planning.named_jobs import GAVEL, LUCID, NamedJob
from gpusage_planning.zoo import load_zoo

FloatArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
Form: TypeAlias = tuple[str, ...]
Demands: TypeAlias = Mapping[Name, Mapping[str, float]]
FORMS: tuple[Form, ...] = (
    (),
    ("SMs",),
    ("input",),
    ("SMs", "input"),
    ("SMs", "launches", "input"),
    ("SMs", "memory", "launches", "input"),
)
"""The laws to choose from, by the resources that jobs contend for; the first is job effects alone."""
FULL_INPUT_BYTES_PER_S = 1e9
"""Of input that a job reads; one process of a loader makes about this much, a judgement."""
EFFECTS_RIDGE, PARAMETERS_RIDGE, LIKELY_LOGARITHM = 3.0, 0.09, -0.5
"""How strongly effects are drawn to 0, and the logarithm of each of the law's parameters to what is likely."""
ROUNDS = 25
DRAWS = 4000


class Law(NamedTuple):
    """What was fitted: the parameters of its resources, and what each job adds to its own and its partner's speed."""

    parameters: FloatArray
    average: float
    own: FloatArray
    partner: FloatArray


def demands_of(pairs: Pairs, jobs: Mapping[str, NamedJob]) -> Demands:
    """Return what each job takes of each resource, 0 to 1, from its graph alone."""
    by_job = {}
    for name, need, row in zip(pairs.jobs, pairs.needs, pairs.features, strict=True):
        inputs = load_zoo().graph(jobs[name[0]].key).inputs
        elements = sum(np.prod([length for length in shape if length > 0]) for _, shape in inputs)
        bytes_per_s = 4.0 * elements * need.throughput_samples_per_s.value
        by_job[name] = {
            "SMs": row[SM],
            "memory": row[DRAM],
            "launches": 1.0 - need.gpu_utilization.value,
            "input": bytes_per_s / (bytes_per_s + FULL_INPUT_BYTES_PER_S),
        }
    return by_job


def throughput_losses(parameters: FloatArray, demands: FloatArray) -> FloatArray:
    """Return the row's job's share of its own speed beside the column's: the fixed point, by damped rounds."""
    contention: FloatArray = (demands * parameters) @ demands.T
    shares: FloatArray = np.full_like(contention, 0.6)
    for _ in range(ROUNDS):
        shares = 0.5 * (shares + 1.0 / (1.0 + contention * shares.T))
    return shares


def fitted(pairs: Pairs, demands: FloatArray, train_mask: BoolArray) -> Law:
    """Return the law by least squares; for whatever parameters, the effects are those of a ridge regression."""
    from scipy.optimize import least_squares  # type: ignore[import-untyped, unused-ignore]

    chosen = ~np.isnan(pairs.parts) & train_mask[:, np.newaxis] & train_mask
    own, partner = np.nonzero(chosen)
    measured, count, rows = np.minimum(pairs.parts[chosen], 1.0), len(pairs.jobs), np.arange(len(own))
    design = np.zeros((len(own), 2 * count + 1))
    design[rows, own] = design[rows, count + partner] = design[:, -1] = 1.0
    ridge = np.append(np.full(2 * count, EFFECTS_RIDGE), 1e-3)
    solved = np.linalg.solve(design.T @ design + np.diag(ridge), design.T)

    def missed(logarithms: FloatArray) -> FloatArray:
        left = measured - throughput_losses(np.exp(logarithms), demands)[chosen]
        effects = solved @ left
        drawn = np.sqrt(PARAMETERS_RIDGE) * (logarithms - LIKELY_LOGARITHM)
        return np.concatenate([left - design @ effects, np.sqrt(ridge) * effects, drawn])

    start = np.full(demands.shape[1], LIKELY_LOGARITHM)
    parameters = np.exp(least_squares(missed, start, bounds=(-8.0, 4.0)).x) if len(start) else start
    effects = solved @ (measured - throughput_losses(parameters, demands)[chosen])
    return Law(parameters, float(effects[-1]), effects[:count], effects[count : 2 * count])


def following(form: Form, demands: Demands) -> Policy:
    """Return the law of *form* as a policy; each set of training jobs is fitted once."""
    known: dict[tuple[tuple[Name, ...], bytes], FloatArray] = {}

    def policy(pairs: Pairs, train_mask: BoolArray, target: int) -> FloatArray:
        key = pairs.jobs, train_mask.tobytes()
        if key not in known:
            rows = np.array([[demands[job][resource] for resource in form] for job in pairs.jobs])
            rows = rows.reshape(len(pairs.jobs), len(form))
            law = fitted(pairs, rows, train_mask)
            losses = throughput_losses(law.parameters, rows) + law.average
            losses = losses + law.own[:, np.newaxis] + law.partner
            known[key] = losses + losses.T
        sums: FloatArray = known[key][target]
        return sums

    return policy


def choosing(laws: Mapping[Form, Policy], chosen: dict[str, Form]) -> Policy:
    """Return the law of the form that does best on folds inside the training models; *chosen* notes which."""

    def policy(pairs: Pairs, train_mask: BoolArray, target: int) -> FloatArray:
        model = str(pairs.models[target])
        if model not in chosen:
            inner = _of(pairs, train_mask)
            figures = {form: scores(inner, law) for form, law in laws.items()}
            chosen[model] = max(laws, key=lambda form: figures[form]["all"] + figures[form]["queue"])
        losses: FloatArray = laws[chosen[model]](pairs, train_mask, target)
        return losses

    return policy


def _of(pairs: Pairs, jobs: BoolArray) -> Pairs:
    places = np.flatnonzero(jobs)
    square = np.ix_(places, places)
    return replace(
        pairs,
        jobs=tuple(pairs.jobs[place] for place in places),
        needs=tuple(pairs.needs[place] for place in places),
        features=pairs.features[places],
        sums=pairs.sums[square],
        parts=pairs.parts[square],
        failed=(),
    )


def siblings(pairs: Pairs, train_mask: BoolArray, target: int) -> FloatArray:
    """Return the measured sums of the target's model in other batch sizes, which no prediction may know."""
    same = pairs.models == pairs.models[target]
    same[target] = False
    return _mean_or(pairs.sums[same], mean_sums(pairs, train_mask, target))


def sibling_models(pairs: Pairs, train_mask: BoolArray, target: int) -> FloatArray:
    """Return the same, averaged over each partner's batch sizes as well: all that is of models."""
    sums = siblings(pairs, train_mask, target)
    same = pairs.models == pairs.models[target]
    same[target] = False
    for model in set(pairs.models):
        partners = pairs.models == model
        among = pairs.sums[np.ix_(same, partners)]
        if not np.isnan(among).all():
            sums[partners] = np.nanmean(among)
    return sums


def _mean_or(rows: FloatArray, otherwise: FloatArray) -> FloatArray:
    counts = (~np.isnan(rows)).sum(axis=0)
    return np.where(counts > 0, np.nansum(rows, axis=0) / np.maximum(counts, 1), otherwise)


def _against(pairs: Pairs, policy: Policy, baseline: Policy) -> list[tuple[float, float, float]]:
    """Return, of all candidates and of queues, by how much *policy* is better, and the ends of the 90 % interval."""
    ours, theirs = (np.array(scores(pairs, one)["targets"])[:, 1:] for one in (policy, baseline))
    gains, generator = ours - theirs, np.random.default_rng(0)
    means = np.array([gains[generator.integers(0, len(gains), len(gains))].mean(axis=0) for _ in range(DRAWS)])
    low, high = np.quantile(means, (0.05, 0.95), axis=0)
    return list(zip(gains.mean(axis=0), low, high, strict=True))


def _compared(title: str, pairs: Pairs, policies: Mapping[str, Policy], notes: Sequence[str] = ()) -> ScoreTable:
    """Return the figures of *policies*, and what each gains over the first of them."""
    baseline, rows = next(iter(policies.values())), []
    for name, policy in policies.items():
        figures = scores(pairs, policy)
        gains = (
            [None] * 6 if policy is baseline else [end for gain in _against(pairs, policy, baseline) for end in gain]
        )
        rows.append((name, figures["all"], *gains[:3], figures["queue"], *gains[3:]))
    columns = ("policy", "all", "gain", "low", "high", f"queue of {QUEUE_LENGTH}", "gain", "low", "high")
    return ScoreTable(title=f"% of Oracle, {title}", columns=columns, rows=tuple(rows), notes=tuple(notes))


LIMITS: Mapping[str, Policy] = {"known: other batch sizes": siblings, "known: the same, by models": sibling_models}
FIXED: Form = ("SMs", "input")
"""The best on inner folds of all seven models taken together, which therefore has seen each of them."""


def tables(data: DataFolder) -> list[ScoreTable]:
    """Return the law beside popular partner, and what a method would reach that knew more than any may."""
    pairs = gavel(data)
    laws = {form: following(form, demands_of(pairs, GAVEL)) for form in FORMS}
    chosen: dict[str, Form] = {}
    policies = {
        "popular partner": mean_sums,
        "law, chosen by inner folds": choosing(laws, chosen),
        "law of SMs and input": laws[FIXED],
    }
    compared = _compared("Gavel 2020, V100, MPS, target's model held out", pairs, {**policies, **LIMITS})
    forms = "; ".join(f"{model}: {' and '.join(form) or 'effects alone'}" for model, form in sorted(chosen.items()))
    notes = ("Gain over the first line, with its 90 % interval by drawing targets anew.", f"Chosen: {forms}.")
    both = {"ours": with_partner_held_out(refit_sums), "law of SMs and input": with_partner_held_out(laws[FIXED])}
    shown = [replace(compared, notes=notes), _compared("Gavel 2020, the partner's model held out too", pairs, both)]
    if "lucid_pairs.csv" in data:
        others = lucid(data)
        known = {"popular partner": mean_sums, "ours, fitted on Lucid's others": refit_sums}
        own = {"law, fitted on Lucid's others": following(FIXED, demands_of(others, LUCID))}
        shown.append(_compared("Lucid, time slicing, target's model held out", others, {**known, **own, **LIMITS}))
    return shown


main = command_of("colocation law", tables, ("gavel_pairs.csv",), __file__)

if __name__ == "__main__":
    main()
