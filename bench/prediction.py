"""How long a prediction on ten GPU types takes: of a new card, of four shares of each, and of a card just predicted.

Run: ``python bench/prediction.py``. The models are the examples and two large ones of the zoo. Each model's card is
decoded and then predicted for the first time (step time, memory, activity and familiarity on every GPU); then shares
are priced for the first time, and both are asked once more. Decoding is timed by itself and is in none of the other
figures; the daemon decodes a card that it has seen only once. Each figure is the median of many rounds, and in
parentheses the fastest, which another process on the machine disturbs least.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from gpusage.advisor import Advisor, make_advisor
from gpusage.graphs.card.text import decode, encode
from gpusage_hooks.types import Gpu, ModelGraph, Workload
from gpusage_lab.zoo.cards import load_zoo

T = TypeVar("T")

LARGE = ("timm:efficientnet_b7@600", "profile:hf:gpt2-large")
MODELS = Path(__file__).parent.parent / "examples" / "models"
GPUS = "k80 p100 v100 t4 rtx-3090 a100 a100-80gb l4 h100 b200"
ROUNDS = 30
PERCENTS = (25, 33, 50, 75)
NEW_GOAL_S, WARM_GOAL_S = 1e-3, 200e-6


def main() -> None:
    """Print the table."""
    advisor = make_advisor()
    gpus = [advisor.catalogue.find(name) for name in GPUS.split()]
    table = Table(title=f"prediction on {len(gpus)} GPU types, us: median of {ROUNDS} rounds (fastest)")
    table.add_column("model")
    goals = (f"new, goal {NEW_GOAL_S * 1e6:.0f}", "priced", f"seen before, goal {WARM_GOAL_S * 1e6:.0f}", "priced")
    for heading in ("nodes", "different", "decode", *goals):
        table.add_column(heading, justify="right")
    for path in sorted(MODELS.glob("*.onnx")):
        table.add_row(path.stem, *_row(advisor, advisor.read(str(path)), gpus))
    for key in LARGE:
        table.add_row(key, *_row(advisor, load_zoo().graph(key), gpus))
    Console(width=110).print(table)


def _row(advisor: Advisor, model: ModelGraph, gpus: list[Gpu]) -> tuple[str, ...]:
    card = encode(model)
    workload = Workload(batch_size=64)
    rounds = []
    for _ in range(ROUNDS):
        decoded_s, graph = _timed(partial(decode, card))
        predict = partial(advisor.predict, graph, workload, gpus)
        price = partial(advisor.price, graph, workload, gpus, PERCENTS)
        rounds.append((decoded_s, *(_timed(question)[0] for question in (predict, price, predict, price))))
    times = (f"{median(column) * 1e6:.0f} ({min(column) * 1e6:.0f})" for column in zip(*rounds, strict=True))
    return str(len(graph.nodes)), str(len(set(graph.nodes))), *times


def _timed(call: Callable[[], T]) -> tuple[float, T]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


if __name__ == "__main__":
    main()
