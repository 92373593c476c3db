"""One driver for every reader of what users send: mutants of good examples are read, or refused in one sentence.

`python tests/fuzz/driver.py card --seconds 600` is for people; `test_fuzz.py` tries a few of each with a fixed seed.
A mutant that does anything else than that, takes longer than it may or makes the process grow is written to a file.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz.targets import TARGETS, Target
from gpusage_hooks.errors import GpuUsageError

LONGEST_S = 10.0
"""Of processor time, for one mutant; readers promise 5 s."""
LARGEST_BYTES = 1_000_000_000
_FIGURES = (0, 1, -1, 127, 128, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**48, 2**63 - 1, -(2**63), 2**64)
_WORDS = (
    b"",
    b"\x00",
    b"\xff" * 9,
    b"\x1b[31m",
    "\u202e".encode(),
    b'"',
    b"[" * 500,
    b"{}",
    b"null",
    b"1e999",
    b"-0",
    b"NaN",
)


@dataclass
class Outcome:
    """What became of the mutants."""

    tried: int = 0
    taken: int = 0
    refused: int = 0
    slowest_s: float = 0.0
    begun_bytes: int = 0
    faults: list[str] = field(default_factory=list)


def fuzz(target: Target, *, seed: int, count: int | None = None, seconds: float | None = None) -> Outcome:
    """Return what became of *count* mutants, or of as many as *seconds* allow."""
    outcome, chance = Outcome(begun_bytes=_largest_bytes()), random.Random(seed)  # nothing secret
    end_s = time.monotonic() + seconds if seconds else float("inf")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzz-")))
        consume = stack.enter_context(target.consumer(folder))
        seeds = target.seeds()
        for mutant in mutants(seeds, chance):
            if outcome.tried == count or time.monotonic() >= end_s:
                break
            _try(consume, mutant, outcome)
    return outcome


def _try(consume: Callable[[bytes], object], mutant: bytes, outcome: Outcome) -> None:
    outcome.tried += 1
    begun_s = time.process_time()
    try:
        consume(mutant)
    except GpuUsageError as error:
        outcome.refused += 1
        sentence = str(error)
        if not sentence.isprintable() or len(sentence) > 1000:
            outcome.faults.append(_save_mutant(mutant, f"no sentence: {sentence[:200]!r}"))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        where = error.__traceback__
        while where is not None and where.tb_next is not None:
            where = where.tb_next
        place = f"{where.tb_frame.f_code.co_filename}:{where.tb_lineno}" if where else "?"
        outcome.faults.append(_save_mutant(mutant, f"{type(error).__name__} at {place}: {str(error)[:200]}"))
    else:
        outcome.taken += 1
    taken_s = time.process_time() - begun_s
    outcome.slowest_s = max(outcome.slowest_s, taken_s)
    if taken_s > LONGEST_S:
        outcome.faults.append(_save_mutant(mutant, f"took {taken_s:.1f} s"))
    grown_bytes = _largest_bytes() - outcome.begun_bytes
    if grown_bytes > LARGEST_BYTES and not any("bytes" in fault for fault in outcome.faults):
        outcome.faults.append(_save_mutant(mutant, f"grew by {grown_bytes} bytes"))


def _largest_bytes() -> int:
    """Return the most memory that this process has had; a whole test run had much before."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _save_mutant(mutant: bytes, fault: str) -> str:
    """Return *fault* with where its mutant lies."""
    with tempfile.NamedTemporaryFile(prefix="gpusage-mutant-", delete=False) as file:
        file.write(mutant)
    return f"{fault} ({file.name})"


def mutants(seeds: list[bytes], chance: random.Random) -> Iterator[bytes]:
    """Yield each seed as it is, then mutants of them without end."""
    yield from seeds
    while True:
        content = bytearray(chance.choice(seeds))
        for _ in range(chance.choice((1, 1, 2, 4, 16))):
            chance.choice(_MUTATIONS)(content, chance, seeds)
        yield bytes(content)


def _place(content: bytearray, chance: random.Random) -> int:
    return chance.randrange(len(content) + 1)


def _flip(content: bytearray, chance: random.Random, _: list[bytes]) -> None:
    if content:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)


def _cut(content: bytearray, chance: random.Random, _: list[bytes]) -> None:
    at = _place(content, chance)
    del content[at : at + chance.choice((1, 2, 8, 64, 4096))]


def _truncate(content: bytearray, chance: random.Random, _: list[bytes]) -> None:
    del content[_place(content, chance) :]


def _repeat(content: bytearray, chance: random.Random, _: list[bytes]) -> None:
    at, length = _place(content, chance), chance.choice((1, 4, 32, 256))
    content[at:at] = content[at : at + length] * chance.choice((1, 2, 50))


def _splice(content: bytearray, chance: random.Random, seeds: list[bytes]) -> None:
    other, at = chance.choice(seeds), _place(content, chance)
    begin = chance.randrange(len(other) + 1)
    content[at : at + chance.choice((0, 8, 64))] = other[begin : begin + chance.choice((4, 32, 256))]


def _insert(content: bytearray, chance: random.Random, _: list[bytes]) -> None:
    at = _place(content, chance)
    content[at:at] = chance.choice(_WORDS)


def _figure(content: bytearray, chance: random.Random, _: list[bytes]) -> None:
    """Put an interesting number in the place of bytes, or of digits."""
    at, figure = _place(content, chance), chance.choice(_FIGURES)
    digits = [index for index, byte in enumerate(content) if 48 <= byte <= 57]
    if digits and chance.random() < 0.5:
        at = chance.choice(digits)
        content[at : at + 1] = str(figure).encode()
    else:
        width = chance.choice((1, 2, 4, 8))
        content[at : at + width] = (figure % 2 ** (8 * width)).to_bytes(width, "little")


_MUTATIONS = (_flip, _cut, _truncate, _repeat, _splice, _insert, _figure, _figure)


def main() -> int:
    """Fuzz one target by hand."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    faulthandler.enable()
    outcome = fuzz(TARGETS[options.target], seed=options.seed, seconds=options.seconds)
    counts = (
        f"{outcome.tried} tried, {outcome.taken} taken, {outcome.refused} refused, slowest {outcome.slowest_s:.1f} s"
    )
    output = f"{options.target}, seed {options.seed}: {counts}, {len(outcome.faults)} faults"
    sys.stdout.write("\n  ".join([output, *outcome.faults]) + "\n")
    return bool(outcome.faults)


if __name__ == "__main__":
    sys.exit(main())
