"""KACE across campaigns: what chooses partners in Lucid's campaign is fitted on Gavel's alone, and the reverse.

The two differ in GPU, way of sharing, host and most models, as any site's jobs do from those that were published. No
pair of the campaign that is scored is in a fit, except of popular partner, which needs the campaign's own pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from gpusage.predictors.arrays import BoolArray, FloatArray
from gpusage_lab.learning.colocation import as_shipped, fitted_on
from gpusage_lab.learning.pairs import (
    QUEUE_LENGTH,
    Pairs,
    Policy,
    activities,
    gavel,
    gavel_step_times,
    kace_fitted_on,
    lucid,
    lucid_step_times,
    lucid_utilizations,
    mean_sums,
    scores,
    seen_as,
)
from gpusage_lab.learning.targets import ScoreTable
from gpusage_lab.measurements.tables import DataFolder

FILES = ("gavel_pairs.csv", "lucid_pairs.csv", "lucid_solo.csv")
DRAWS = 20
"""Of partners by chance."""
HALF = 50.0
RULE, OURS = "rule from activities", "ours, as shipped"
GRAPHS, STEP_TIMES, UTILIZATIONS = "graphs alone", "step times alone", "utilizations alone"


WHICH = {"all": "all", f"queue of {QUEUE_LENGTH}": "queue"}
"""Among which candidates: the columns, and their keys in `scores`."""


class Campaign(NamedTuple):
    """One campaign's pairs, by what is known of its jobs alone."""

    name: str
    known: dict[str, Pairs]

    @property
    def truth(self) -> Pairs:
        """What is scored."""
        return self.known[GRAPHS]


def table(data: DataFolder) -> ScoreTable:
    """Return every policy's % of Oracle in both campaigns, and how far the goals are."""
    of_lucid = {GRAPHS: lucid(data), STEP_TIMES: lucid(data, lucid_step_times(data))}
    of_lucid[UTILIZATIONS] = lucid(data, lucid_utilizations(data))
    capped = {name: at_most_alone(pairs) for name, pairs in of_lucid.items()}
    of_gavel = {GRAPHS: gavel(data), STEP_TIMES: gavel(data, gavel_step_times(data))}
    scored = (
        (Campaign("Lucid", of_lucid), of_gavel),
        (Campaign("Lucid, capped", capped), of_gavel),
        (Campaign("Gavel", of_gavel), of_lucid),
    )
    columns = [f"{campaign.name}, {which}" for campaign, _ in scored for which in WHICH]
    reached: dict[tuple[str, str], dict[str, float]] = {}
    for campaign, sources in scored:
        for line, policies in _policies(campaign, sources):
            figures = [scores(campaign.truth, policy) for policy in policies]
            for key, which in WHICH.items():
                mean = float(np.mean([each[which] for each in figures]))
                reached.setdefault(line, {})[f"{campaign.name}, {key}"] = mean
    rows = [(policy, known, *(cells.get(column) for column in columns)) for (policy, known), cells in reached.items()]
    return ScoreTable(
        title="KACE across campaigns: % of Oracle, fitted on the other campaign's pairs alone",
        columns=("policy", "known of the jobs", *columns),
        rows=(*rows, ("Oracle", "all pairs", *(100.0 for _ in columns))),
        notes=(
            "Capped: no job counts as faster beside another than alone; Lucid's speeds alone are 5 to 10 % off.",
            "Popular partner needs the campaign's own pairs; the target's model is held out.",
            "Goals: never below the rule from graphs alone; half of the way from it to the Oracle with step times.",
            *_goals(columns, reached),
        ),
    )


def at_most_alone(pairs: Pairs) -> Pairs:
    """Return *pairs* with no job faster beside another than alone."""
    parts = np.minimum(pairs.parts, 1.0)
    return replace(pairs, parts=parts, sums=parts + parts.T)


def _policies(campaign: Campaign, sources: dict[str, Pairs]) -> Iterator[tuple[tuple[str, str], list[Policy]]]:
    yield ("random", "nothing"), [partial(_by_chance, seed) for seed in range(DRAWS)]
    yield ("popular partner", "the campaign's pairs"), [mean_sums]
    for known, pairs in campaign.known.items():
        source = sources.get(known, sources[STEP_TIMES])
        everyone = np.full(len(source.jobs), fill_value=True)
        yield (RULE, known), [seen_as(pairs, activities)]
        yield (OURS, known), [seen_as(pairs, as_shipped)]
        yield ("ours, fitted on the other", known), [seen_as(pairs, fitted_on(source))]
        yield ("KACE: linear regression", known), [seen_as(pairs, kace_fitted_on(source, everyone))]


def _by_chance(seed: int, pairs: Pairs, _: BoolArray, target: int) -> FloatArray:
    return np.random.default_rng((seed, target)).random(len(pairs.jobs))


def _goals(columns: Sequence[str], reached: Mapping[tuple[str, str], Mapping[str, float]]) -> Iterator[str]:
    """Yield of each column how much of the way from the rule to the Oracle ours goes where step times are known."""
    for column in columns:
        rule, ours = reached[RULE, GRAPHS][column], reached[OURS, GRAPHS][column]
        way = 100.0 * (reached[OURS, STEP_TIMES][column] - rule) / (100.0 - rule)
        verdicts = ["met" if is_met else "missed" for is_met in (round(ours, 1) >= round(rule, 1), way >= HALF)]
        yield f"{column}: never below the rule: {verdicts[0]}. Step times known: {way:.0f} % of the way: {verdicts[1]}."
