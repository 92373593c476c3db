"""How long it takes to make cards from timm's own definitions: goal <= 20 minutes for 1,000 models, once.

Run: ``python bench/cards.py`` (needs the extra [torch]). A model is built on the meta device, traced and encoded as its
card. A sample is measured and scaled up to 1,000, and said to be that; ``--all`` makes every card instead. The sample
is every so-many-th model by the length of its card in gpusage's own zoo, so that large and small ones have their share.
The verdict is on the processor's time, which other work on the machine does not change; the clock's stands beside it.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import NamedTuple

import click
from rich.console import Console
from rich.progress import track

from gpusage.graphs.card.text import encode
from gpusage.graphs.named.image_libraries import build as read
from gpusage_hooks.errors import GraphError
from gpusage_planning.zoo import load_zoo

MODELS = 1000
GOAL_S = 20 * 60
LIBRARY, FIRST = "timm", "resnet18"
SLOWEST = 5


class CardCost(NamedTuple):
    """One model's card: what it took, and what went wrong, if anything did."""

    name: str
    busy_s: float
    clock_s: float
    card_bytes: int
    trouble: str


@click.command(help=__doc__)
@click.option(
    "--models", "count", type=click.IntRange(min=1), default=60, show_default=True, help="Size of the sample."
)
@click.option("--all", "whole", is_flag=True, help="Every model that timm lists.")
@click.option("--processes", type=click.IntRange(min=1), default=2, show_default=True, help="Each of one thread.")
def main(count: int, *, whole: bool, processes: int) -> None:
    """Print the figures; exit 1 where the goal is missed."""
    names = listed() if whole else sample(sizes_in_the_zoo(), count)
    start = time.perf_counter()
    made = list(cards(names, processes))
    elapsed_s = time.perf_counter() - start
    for line in lines(made, processes, elapsed_s):
        print(line)
    sys.exit(0 if scaled_s(made, processes) <= GOAL_S else 1)


def listed() -> list[str]:
    """Return the names of all models that timm defines."""
    import timm  # seconds, and --help needs none

    return list(timm.list_models())


def sizes_in_the_zoo() -> dict[str, int]:
    """Return, by timm's name, the length of the longest card that gpusage has of the model."""
    sizes: dict[str, int] = {}
    names = set(listed())
    for key, card in load_zoo().cards.items():
        library, _, rest = key.partition(":")
        name = rest.rpartition("@")[0]
        if library == LIBRARY and name in names:
            sizes[name] = max(sizes.get(name, 0), len(card))
    return sizes


def sample(sizes: dict[str, int], count: int) -> list[str]:
    """Return *count* names, or all where there are fewer, at equal distances in the order of their sizes."""
    ordered = sorted(sizes, key=lambda name: (sizes[name], name))
    count = min(count, len(ordered))
    return [ordered[(2 * place + 1) * len(ordered) // (2 * count)] for place in range(count)]


def cards(names: Sequence[str], processes: int) -> Iterator[CardCost]:
    """Make the card of each of *names*, the long ones first, so that no process waits for another at the end."""
    os.environ["OMP_NUM_THREADS"] = "1"  # read by the new processes
    console = Console(stderr=True)
    fresh = multiprocessing.get_context("spawn")  # as in a shell of one's own: nothing is inherited
    with ProcessPoolExecutor(processes, fresh, initializer=start_up) as pool:
        futures = [pool.submit(card, name) for name in reversed(names)]
        done = track(as_completed(futures), "cards", len(futures), console=console, disable=not console.is_terminal)
        for one in done:
            yield one.result()


def start_up() -> None:
    """Import everything: once a process, not once a card."""
    read(LIBRARY, FIRST, {})


def card(name: str) -> CardCost:
    """Make one card as a user's command does, and time it."""
    start, busy = time.perf_counter(), time.process_time()
    length, trouble = 0, ""
    try:
        length = len(encode(read(LIBRARY, name, {})))
    except GraphError as error:
        trouble = str(error)
    return CardCost(name, time.process_time() - busy, time.perf_counter() - start, length, trouble)


def scaled_s(made: Sequence[CardCost], processes: int) -> float:
    """Return the processor's seconds that 1,000 such models take on so many processes."""
    return MODELS * sum(one.busy_s for one in made) / len(made) / processes


def lines(made: Sequence[CardCost], processes: int, elapsed_s: float) -> Iterator[str]:
    """Yield what was found."""
    busy_s, clock_s = (sum(times) for times in zip(*((one.busy_s, one.clock_s) for one in made), strict=True))
    for one in sorted(made, key=lambda one: -one.busy_s)[:SLOWEST]:
        yield f"{one.name:<44}{one.busy_s:>8.2f} s of the processor"
    yield from (f"no card: {one.trouble}" for one in made if one.trouble)
    yield f"measured: {len(made)} models in {elapsed_s:.0f} s, start-up of {processes} processes with it"
    yield f"a card: {busy_s / len(made):.2f} s of the processor, {clock_s / len(made):.2f} s by the clock"
    verdict = "kept" if scaled_s(made, processes) <= GOAL_S else "missed"
    minutes, by_the_clock = scaled_s(made, processes) / 60, MODELS * clock_s / len(made) / processes / 60
    word = "extrapolated" if len(made) < MODELS else "scaled down"
    yield (
        f"{word} from {len(made)} to {MODELS} models, {processes} processes of one thread: {minutes:.1f} minutes "
        f"({by_the_clock:.1f} by the clock, busy as this machine is); goal {GOAL_S / 60:.0f}: {verdict}"
    )


if __name__ == "__main__":
    main()
