"""How long a prediction on ten GPU types takes: of a new card, of four shares of each, and of a card just predicted.

Run: ``python bench/prediction.py``, or ``python bench/prediction.py --against CHECKOUT`` for the ratios to another
checkout's times in one run. The models are the examples and two large ones of the zoo. Each model's card is
decoded and then predicted for the first time (step time, memory, activity and familiarity on every GPU); then shares
are priced for the first time, and both are asked once more. Decoding is timed by itself and is in none of the other
figures; the daemon decodes a card that it has seen only once. Each figure is the median of many rounds, and in
parentheses the fastest, which another process on the machine disturbs least.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from gpusage.decisions.advisor import Advisor, make_advisor
from gpusage.graphs.card.text import decode, encode
from gpusage_hooks.types import Gpu, ModelGraph, Workload
from gpusage_planning.zoo import load_zoo

T = TypeVar("T")

LARGE = ("timm:efficientnet_b7@600", "profile:hf:gpt2-large")
HERE = Path(__file__).resolve().parents[1]
MODELS = HERE / "examples" / "models"
COLUMNS = ("decode", "new", "new, priced", "seen before", "seen before, priced")
TURNS = 3
GPUS = "k80 p100 v100 t4 rtx-3090 a100 a100-80gb l4 h100 b200"
ROUNDS = 30
PERCENTS = (25, 33, 50, 75)
NEW_GOAL_S, WARM_GOAL_S = 1e-3, 200e-6


def main() -> None:
    """Print the table, or how this checkout compares with another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="compare with this one, in turns")
    parser.add_argument("--times", action="store_true", help="print the fastest times as JSON")
    options = parser.parse_args()
    if options.times:
        print(json.dumps({row.model: [min(column) for column in row.columns] for row in _rows()}))
    else:
        Console(width=110).print(_ratios(options.against) if options.against else _times())


class Row(NamedTuple):
    """One model: its nodes, those that differ, and the seconds of each round by what was timed (`COLUMNS`)."""

    model: str
    node_count: int
    kind_count: int
    columns: tuple[tuple[float, ...], ...]


def _times() -> Table:
    table = Table(title=f"prediction on {len(GPUS.split())} GPU types, us: median of {ROUNDS} rounds (fastest)")
    table.add_column("model")
    goals = (f"new, goal {NEW_GOAL_S * 1e6:.0f}", "priced", f"seen before, goal {WARM_GOAL_S * 1e6:.0f}", "priced")
    for heading in ("nodes", "different", "decode", *goals):
        table.add_column(heading, justify="right")
    for row in _rows():
        times = (f"{median(column) * 1e6:.0f} ({min(column) * 1e6:.0f})" for column in row.columns)
        table.add_row(row.model, str(row.node_count), str(row.kind_count), *times)
    return table


def _ratios(other: Path) -> Table:
    """Return the fastest times of this checkout over those of *other*; processes of both take turns."""
    ours, theirs = zip(*((_times_of(HERE), _times_of(other)) for _ in range(TURNS)), strict=True)
    table = Table(title=f"fastest times over those of {other}: below 1 is faster here")
    for heading in ("model", *COLUMNS):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    ratios = {model: _fastest(ours, model) / _fastest(theirs, model) for model in ours[0]}
    for model, row in ratios.items():
        table.add_row(model, *(f"{ratio:.2f}" for ratio in row))
    table.add_row("median", *(f"{ratio:.2f}" for ratio in np.median([*ratios.values()], axis=0)))
    return table


def _fastest(turns: Sequence[Mapping[str, Sequence[float]]], model: str) -> npt.NDArray[np.float64]:
    fastest: npt.NDArray[np.float64] = np.array([turn[model] for turn in turns]).min(axis=0)
    return fastest


def _times_of(checkout: Path) -> dict[str, list[float]]:
    """Return the fastest seconds by model, as this script finds them with the sources of *checkout*."""
    sources = (
        checkout / part for part in ("core", "hooks", "lab", "planning", "plugins/slurm", "plugins/yarn", "sandboxes")
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sources))}
    command = [sys.executable, __file__, "--times"]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    times: dict[str, list[float]] = json.loads(output)
    return times


def _rows() -> Iterator[Row]:
    advisor = make_advisor()
    gpus = [advisor.catalogue.find(name) for name in GPUS.split()]
    for path in sorted(MODELS.glob("*.onnx")):
        yield _row(path.stem, advisor, advisor.read(str(path)), gpus)
    for key in LARGE:
        yield _row(key, advisor, load_zoo().graph(key), gpus)


def _row(name: str, advisor: Advisor, model: ModelGraph, gpus: list[Gpu]) -> Row:
    card = encode(model)
    workload = Workload(batch_size=64)
    rounds = []
    for _ in range(ROUNDS):
        decoded_s, graph = _timed(partial(decode, card))
        predict = partial(advisor.predict, graph, workload, gpus)
        price = partial(advisor.price, graph, workload, gpus, PERCENTS)
        rounds.append((decoded_s, *(_timed(question)[0] for question in (predict, price, predict, price))))
    columns = tuple(zip(*rounds, strict=True))
    return Row(model=name, node_count=len(model.nodes), kind_count=len(set(model.nodes)), columns=columns)


def _timed(call: Callable[[], T]) -> tuple[float, T]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


if __name__ == "__main__":
    main()
