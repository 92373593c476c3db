"""All that one comparison needs: jobs, GPUs, what is predicted, what happens, and the policies by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gpusage.cli.pairs import Pair
from gpusage.decisions.advisor import Advisor
from gpusage_hooks.errors import RequestError
from gpusage_planning.simulator.contract import Jobs, Policy
from gpusage_planning.simulator.fleet import Fleet
from gpusage_planning.simulator.policies import Packing, Production, Sets, Shipped, Slots, TypesOf, production
from gpusage_planning.simulator.predictions import Foresight, Load, Models, make_foresight, read_models
from gpusage_planning.simulator.truth import Measured, PredictedTruth, measured_of, predicted_truth


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scenario:
    """What policies are compared on.

    Attributes:
        foresight: What policies see.
        measured_pairs: What the site measured of pairs, by which policies predict all others.
        types_of: The GPU types on which each kind runs: its user asks for no others.
    """

    jobs: Jobs
    fleet: Fleet
    models: Models
    foresight: Foresight
    truth: PredictedTruth
    types_of: TypesOf
    advisor: Advisor
    measured_pairs: Measured | None = None

    @property
    def measured(self) -> Foresight:
        """Return the true utilization and memory, which a run alone would show to policies."""
        loads = {
            (kind, place): Load(
                utilization=self.truth.utilization(kind, place), memory_bytes=self.truth.memory_bytes(kind, place)
            )
            for kind, place in self.foresight.loads
        }
        return Foresight(loads=loads, pair_throughputs=self.foresight.pair_throughputs)


def scenario_of(
    jobs: Jobs, fleet: Fleet, advisor: Advisor, folder: Path, seed: int, pairs: Sequence[Pair] = ()
) -> Scenario:
    """Return the scenario; paths of models count from *folder*, and *seed* draws the errors of predictions.

    What happens beside partners is as in *pairs*, where it was measured; elsewhere it is predicted by them.

    Jobs whose model cannot be read count as jobs without a model.

    Raises:
        RequestError: A job fits nowhere.
    """
    models = read_models(jobs.kinds, fleet, advisor, folder)
    unreadable = models.unreadable
    kinds = (replace(kind, model=None) if place in unreadable else kind for place, kind in enumerate(jobs.kinds))
    jobs = replace(jobs, kinds=tuple(kinds))
    measured = measured_of(pairs, jobs.kinds, models, fleet) if pairs else None
    shown = measured.pair_throughputs if measured else ()
    foresight = make_foresight(models, fleet, len(jobs.kinds), shown)
    truth = predicted_truth(fleet, jobs.kinds, models, foresight, seed, shown)
    types_of = {kind: _types(truth, kind) for kind in range(len(jobs.kinds))}
    _require_room(jobs, fleet, types_of)

    return Scenario(
        jobs=jobs,
        fleet=fleet,
        models=models,
        foresight=foresight,
        truth=truth,
        types_of=types_of,
        advisor=advisor,
        measured_pairs=measured,
    )


def _production(scenario: Scenario) -> Production:
    made = production(scenario.fleet, scenario.jobs.kinds, scenario.models, scenario.advisor)
    return replace(made, types_of=scenario.types_of)


def _shipped(scenario: Scenario) -> Shipped:
    made = _production(scenario)
    names = ("fleet", "kinds", "models", "advisor", "types_of")
    return Shipped(**{name: getattr(made, name) for name in names})


def _packing(scenario: Scenario) -> Packing:
    return Packing(fleet=scenario.fleet, foresight=scenario.foresight, types_of=scenario.types_of)


def _observed(scenario: Scenario) -> Packing:
    return replace(_packing(scenario), foresight=scenario.measured, name="packing-observed")


POLICIES: Mapping[str, Callable[[Scenario], Policy]] = {
    "slots": lambda scenario: Slots(fleet=scenario.fleet, types_of=scenario.types_of),
    "price": _production,
    "price-online": _shipped,
    "packing": _packing,
    "packing-observed": _observed,
    "reactive": lambda scenario: replace(_observed(scenario), name="reactive", profiles=True),
    "sets": lambda scenario: Sets(fleet=scenario.fleet, foresight=scenario.foresight, types_of=scenario.types_of),
}
"""Whole GPUs; production; Yeung's by predicted, observed and profiled utilization; ours by sets."""
USUAL = ("slots", "price-online", "packing", "sets")


def _types(truth: PredictedTruth, kind: int) -> tuple[int, ...]:
    """Return the GPU types that a user of *kind* asks for: the named one, else all on which the job runs."""
    named = truth.kinds[kind].gpu_type
    return tuple(
        place
        for place, one in enumerate(truth.fleet.types)
        if named == one.name or (named is None and truth.memory_bytes(kind, place) <= one.memory_bytes)
    )


def _require_room(jobs: Jobs, fleet: Fleet, types_of: TypesOf) -> None:
    """See that each job's types have as many GPUs as it asks for.

    Raises:
        RequestError: One's have not.
    """
    most = np.array([max((fleet.types[one].gpu_count for one in types_of[kind]), default=0) for kind in types_of])
    over = np.flatnonzero(jobs.gpu_count > most[jobs.kind])
    if len(over):
        job = int(over[0])
        kind = jobs.kinds[jobs.kind[job]].name
        message = (
            f"Job {jobs.ids[job]!r} ({kind}) must fit on some GPU type; got {jobs.gpu_count[job]} GPUs, where those "
            f"that have its memory are {most[jobs.kind[job]]} at most. Take it out, or give the cluster more of them."
        )
        raise RequestError(message)
