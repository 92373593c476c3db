"""How good the predictions are, as Markdown: the goals and every table.

``python bench/remake.py lab/docs/accuracy.md`` puts it into this page. A run looks at the sealed families, and
adds a line to bench/looks.txt. Without the public measurements it says so and ends well.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from gpusage_lab.learning.report import cell, table_lines
from gpusage_lab.learning.splits import evaluation_count
from gpusage_lab.learning.targets import ScoreTable

ROOT = Path(__file__).resolve().parents[1]
EVALUATION_COUNT_FILE = ROOT / "bench" / "looks.txt"
SEALED = "Looks at the sealed families since 2026-11-22: {count} (bench/looks.txt has one line a look)."
OTHER_SOURCES = "constant of other sources"
BASELINE_COLUMNS = ("constant roofline", "random forest", "constant", OTHER_SOURCES, "node times alone")
OUR_ROWS = ("ours", "gpusage", "ceiling")
UNSEEN_FAMILY, UNSEEN_GPU = "Step time of an unseen family", "Step time on an unseen GPU"
NEIGHBOURS, WIDE = "Neighbour generations", "Wide generations"
MEMORY = "Memory: measured peaks of training, flat and impossible rows left out"
MEMORY_FAMILIES = "Memory: unseen families"
NEEDED, MOST = "Memory: what a run needs", "a share's end"
GAVEL, LUCID = (
    "Co-location, target's model held out: Gavel 2020, V100, MPS",
    "Co-location, target's model held out: Lucid",
)
HEAD = ("| figure | goal | ours | best plainer method | |", "|---|--:|--:|--:|---|")
ALL, QUEUE = "% of Oracle, all", "% of Oracle, queue of 4"
Table = Mapping[str, Any]
Targets = Mapping[str, Sequence[Table]]


class Goal(NamedTuple):
    """One figure that was promised, and where it stands.

    Attributes:
        table: How its title begins.
        row: How the first cell of the row begins.
        bounds: Least and greatest value that meets it; None where it is to be better than what is held beside it.
        against: What is held beside it: ``columns`` of the same row, ``rows`` of the same column, or nothing.
        ceiling: How the first cell of the row begins that says what a graph can tell at most.
    """

    text: str
    table: str
    row: str
    column: str
    bounds: tuple[float, float] | None
    against: str
    ceiling: str = ""


ACTIVITY_COVERAGE = "Activity: coverage"
COLOCATION_COVERAGE = "Co-location: coverage"
COVERED = (85, 95)
OF_FAMILIES, COVERED_BY_FAMILY = "ours, mean of families", "coverage %, mean of families"
STEP, SEALED_TIMM, INSIDE = "step time, ", "timm infer, sealed", "inside the 90 % interval, %"
SLOWDOWN, ON_A_PART, KNOWN = "slowdown on a share, ", "Slowdown on a part of a GPU: ", "step time known"
UNSEEN = f"family unseen, {INSIDE}"
REAL = "Utilization of real models"
LUCID_RUNS, MLPERF = "Lucid, training", "Takayama, MLPerf"
RMSLE, RANK, RANKED, RANKED_WELL = "RMSLE", "rank correlation", (0.6, 1.0), (0.9, 1.0)
OF_REAL, GRAPH, OTHER_BATCH = "utilization of real models, ", "from the graph", "utilization at another batch known"
LUCID_CEILING, UNSEEN_KIND = f"{LUCID_RUNS}, ceiling", "Utilization of random networks, a kind"
FAR_HALF = "speed-up, generations far apart, half precision without Titan Xp"
RANDOM, OF_GRAPH = "utilization of random networks, ", "ours, utilization"
MAIN = (
    Goal(f"{OF_REAL}Lucid, {GRAPH}: {RMSLE}", REAL, f"{LUCID_RUNS}, {GRAPH}", "ours", None, "columns"),
    Goal(f"{OF_REAL}MLPerf, {GRAPH}: {RMSLE}", REAL, MLPERF, "ours", None, "columns"),
    Goal(f"{OF_REAL}Lucid, {GRAPH}: {RANK}", REAL, f"{LUCID_RUNS}, {GRAPH}", RANK, RANKED, "", LUCID_CEILING),
    Goal(f"{OF_REAL}Lucid, step time known: {RANK}", REAL, f"{LUCID_RUNS}, step time", RANK, RANKED_WELL, ""),
    Goal(f"{RANDOM}kind unseen: RMSLE", UNSEEN_KIND, OF_GRAPH, "unseen kind: all", None, "rows"),
    Goal(f"{STEP}timm inference, family unseen: MAPE %", UNSEEN_FAMILY, "timm infer", "ours", (0, 12), "columns"),
    Goal(f"{STEP}timm inference, sealed families: MAPE %", UNSEEN_FAMILY, SEALED_TIMM, "ours", (0, 12), "columns"),
    Goal(f"{STEP}NeuSight's models, GPU unseen: MAPE %", UNSEEN_GPU, "neusight: all", "ours", (0, 9), "columns"),
    Goal("speed-up, neighbour generations: MAPE %", NEIGHBOURS, "mean", "ours", (0, 3.5), "columns"),
    Goal("speed-up, generations far apart, fp32: MAPE %", WIDE, "mean of fp32", "ours", (0, 15), "columns"),
    Goal("memory, family unseen: MAPE %", MEMORY, "gpusage, unseen", "MAPE %", (0, 5), "rows"),
    Goal("memory, more than the high end: % of rows", MEMORY, "gpusage, unseen", "above high %", (0, 1), ""),
    Goal(f"{SLOWDOWN}RaPP, {KNOWN}: MAPE %", f"{ON_A_PART}rapp", "gpusage, step", "MAPE %", (0, 15), "rows"),
    Goal(f"{SLOWDOWN}ParvaGPU, {KNOWN}: MAPE %", f"{ON_A_PART}parva", "gpusage, step", "MAPE %", (0, 12), "rows"),
    Goal(
        "partner on Gavel's V100, its other models measured, of all: % of Oracle", GAVEL, "ours", ALL, (97, 100), "rows"
    ),
    Goal("partner in Lucid's data, of all: % of Oracle", LUCID, "ours, as shipped", ALL, (96, 100), "rows"),
)
"""What stands on the front page: what users rely on, and what is missed by most."""
OTHERS = (
    Goal(f"{OF_REAL}Lucid without PointNet, {GRAPH}: {RMSLE}", REAL, f"{LUCID_RUNS}, without", "ours", None, "columns"),
    Goal(f"{OF_REAL}MLPerf, {GRAPH}: {RANK}", REAL, MLPERF, RANK, RANKED, ""),
    Goal(f"{OF_REAL}Lucid, {OTHER_BATCH}: {RANK}", REAL, f"{LUCID_RUNS}, {OTHER_BATCH}", RANK, RANKED_WELL, ""),
    Goal(f"{STEP}NeuSight's models, model unseen: MAPE %", UNSEEN_FAMILY, "neusight", "ours", (0, 7), "columns"),
    Goal(f"{STEP}timm inference, {UNSEEN}", UNSEEN_FAMILY, "timm infer", "coverage %", COVERED, ""),
    Goal(f"{STEP}timm inference, mean of families: MAPE %", UNSEEN_FAMILY, "timm infer", OF_FAMILIES, (0, 12), ""),
    Goal(
        f"{STEP}timm inference, mean of families, {INSIDE}", UNSEEN_FAMILY, "timm infer", COVERED_BY_FAMILY, COVERED, ""
    ),
    Goal(f"{STEP}torchvision inference, {UNSEEN}", UNSEEN_FAMILY, "torchvision infer", "coverage %", COVERED, ""),
    Goal(f"{STEP}torchvision training, {UNSEEN}", UNSEEN_FAMILY, "torchvision train", "coverage %", COVERED, ""),
    Goal(f"{FAR_HALF}: MAPE %", WIDE, "mean of half precision, Titan Xp left", "ours", (0, 12), "columns"),
    Goal("memory, family unseen: median %", MEMORY, "gpusage, unseen", "median %", (0, 3), "rows"),
    Goal("memory, sealed families: MAPE %", MEMORY, "gpusage, sealed", "MAPE %", (0, 5), ""),
    Goal("memory, mean of families: MAPE %", MEMORY, "gpusage, unseen", "MAPE %, mean of families", (0, 5), "rows"),
    Goal(f"memory, {INSIDE}", MEMORY, "gpusage, unseen", "coverage %", COVERED, ""),
    Goal("memory that a share must have, family unseen: % of rows above", NEEDED, MOST, "above %", (0, 0.1), ""),
    Goal("memory that a share must have over the point", NEEDED, MOST, "end/point", (1, 1.35), ""),
    Goal(f"{RANDOM}type unseen, {INSIDE}", ACTIVITY_COVERAGE, "utilization", "all", COVERED, ""),
    Goal(
        f"SM activity of random networks, type unseen, {INSIDE}", ACTIVITY_COVERAGE, "SM activity", "all", COVERED, ""
    ),
    Goal(f"sum of two throughputs, model unseen, {INSIDE}", COLOCATION_COVERAGE, "one job", "sum", COVERED, ""),
    Goal(
        "partner on Gavel's V100, its other models measured, of four: % of Oracle",
        GAVEL,
        "ours",
        QUEUE,
        (95, 100),
        "rows",
    ),
    Goal("partner in Lucid's data, of four: % of Oracle", LUCID, "ours, as shipped", QUEUE, (98.5, 100), "rows"),
    Goal(f"{SLOWDOWN}MISO, {KNOWN}: MAPE %", f"{ON_A_PART}miso", "gpusage, step", "MAPE %", (0, 12), "rows"),
    Goal(f"{SLOWDOWN}RaPP, {KNOWN}, {INSIDE}", f"{ON_A_PART}rapp", "gpusage, step", "coverage %", COVERED, ""),
    Goal(f"{SLOWDOWN}ParvaGPU, {KNOWN}, {INSIDE}", f"{ON_A_PART}parva", "gpusage, step", "coverage %", COVERED, ""),
)


@click.command(help=__doc__)
@click.option("--data", type=click.Path(path_type=Path), default=ROOT.parent / "shared" / "data")
@click.option("--json", "file", type=click.Path(exists=True, path_type=Path), help="What `evaluate --json` printed.")
def main(data: Path, file: Path | None) -> None:
    """Print the Markdown."""
    if file is None and not data.is_dir():
        click.echo(f"Folder '{data}' must have the public measurements; got none. Name it with --data.", err=True)
        return
    text = file.read_text(encoding="utf-8") if file else _evaluated(data)
    click.echo("\n".join(markdown(json.loads(text)["targets"])))


def _evaluated(data: Path) -> str:
    words = ("evaluate", "--data", str(data), "--sealed", str(EVALUATION_COUNT_FILE), "--json")
    command = [sys.executable, "-m", "gpusage.cli", *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def goals(targets: Targets) -> Iterator[str]:
    """Yield the lines of both tables of the goals: the main ones and the others."""
    tables = [table for of_target in targets.values() for table in of_target]
    main, others = ([_goal_line(goal, tables) for goal in each] for each in (MAIN, OTHERS))
    others += _families_line(tables)
    met, met_main = (sum(line.endswith("| met |") for line in lines) for lines in (main + others, main))
    yield (
        f"Goals met: {met} of {len(main + others)}. Of the {len(main)} main figures {met_main}, "
        f"of the {len(others)} others {met - met_main}."
    )
    yield from ("", *HEAD, *main, "", "**The other figures**", "", *HEAD, *others)


def markdown(targets: Targets) -> Iterator[str]:
    """Yield the lines of the page."""
    yield from ("## Against the goals", "", *goals(targets))
    yield from ("", SEALED.format(count=evaluation_count(EVALUATION_COUNT_FILE)))
    for name, of_target in targets.items():
        yield from ("", f"## {name.replace('_', ' ').capitalize()}: every table")
        for table in of_target:
            yield from ("", *table_lines(ScoreTable(**table)))


def _find(goal: Goal, tables: Sequence[Table], row_name: str) -> tuple[Table, list[Any]] | None:
    for table in tables:
        if table["title"].startswith(goal.table) and goal.column in table["columns"]:
            for row in table["rows"]:
                if row[0].startswith(row_name):
                    return table, row
    return None


def _goal_line(goal: Goal, tables: Sequence[Table]) -> str:
    is_share = goal.column.startswith(("%", RANK))
    match = _find(goal, tables, goal.row)
    if match is None:
        return f"| {goal.text} | {_goal_text(goal.bounds, is_share=is_share)} | no table | | |"
    table, row = match
    place = table["columns"].index(goal.column)
    value = row[place]
    name, figure = _best(_baselines(goal, table, row), is_share=is_share)
    best_baseline = f"{cell(figure)} ({name})" if name else ""
    least, most = goal.bounds or (0.0, figure or 0.0)
    verdict = "met" if least <= value <= most else "**missed**"
    ceiling = _find(goal, tables, goal.ceiling) if goal.ceiling and verdict != "met" else None
    if ceiling:
        verdict += f"; a graph tells at most {cell(ceiling[1][place])}"
    return (
        f"| {goal.text} | {_goal_text(goal.bounds, is_share=is_share)} | {cell(value)} | {best_baseline} | {verdict} |"
    )


def _families_line(tables: Sequence[Table]) -> Iterator[str]:
    """Yield the line of the goal that each family has, if it is not too small for a share of its rows to mean much."""
    for table in (each for each in tables if each["title"].startswith(MEMORY_FAMILIES)):
        places = [table["columns"].index(name) for name in ("rows", "coverage %")]
        covers = [
            coverage for count, coverage in ([row[each] for each in places] for row in table["rows"]) if count >= 20
        ]
        share = 100.0 * sum(COVERED[0] <= each <= COVERED[1] for each in covers) / max(len(covers), 1)
        verdict = "met" if share == 100 else "**missed**"
        text = "memory, families of 20 rows or more: % of them with 85 to 95 % inside"
        yield f"| {text} | ≥ 100 | {cell(share)} | | {verdict} |"


def _goal_text(bounds: tuple[float, float] | None, *, is_share: bool) -> str:
    if bounds is None:
        return "< plainer"
    least, most = bounds
    return f"≥ {least:g}" if is_share else f"≤ {most:g}" if not least else f"{least:g} to {most:g}"


def _baselines(goal: Goal, table: Table, row: Sequence[Any]) -> dict[str, float]:
    columns = table["columns"]
    if goal.against == "columns":
        return _plainer(columns, row)
    if goal.against == "rows":
        return _other_rows(table, row, columns.index(goal.column))
    return {}


def _plainer(columns: Sequence[str], row: Sequence[Any]) -> dict[str, float]:
    """Return what plainer methods have in the same row, those that are known."""
    return {
        name: each for name, each in zip(columns, row, strict=True) if name in BASELINE_COLUMNS and each is not None
    }


def _other_rows(table: Table, row: Sequence[Any], place: int) -> dict[str, float]:
    """Return what other methods have in the same column, of the same figure where a table has several."""
    _, _, figure = row[0].partition(", ")
    of_figure = f", {figure}" if figure in ("utilization", "SM activity") else ""
    others = [line for line in table["rows"] if not line[0].startswith(OUR_ROWS) and line[0].endswith(of_figure)]
    return {line[0].removesuffix(of_figure): line[place] for line in others if line[place] is not None}


def _best(baselines: Mapping[str, float], *, is_share: bool) -> tuple[str, float | None]:
    if not baselines:
        return "", None
    return (max if is_share else min)(baselines.items(), key=lambda item: item[1])


if __name__ == "__main__":
    main()
