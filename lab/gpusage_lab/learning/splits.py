"""The split into training and test rows: whole groups change sides, so that nothing of a tested family was learned.

Invariants:

1. In every fold no group has rows on both sides, and every row is tested in exactly one fold.
2. The same groups give the same folds, whatever order the rows stand in.
3. A random split says so in its name; it is there only to be compared with papers that used one.

What is chosen by a score makes that score too good. So about a quarter of the families is sealed: `gpusage evaluate`
leaves their rows out, and shows them only to those who name a file in which the look is counted.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpusage.predictors.arrays import IntArray
from gpusage_hooks.errors import RequestError

LEAST_GROUPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """One way to divide the rows.

    Attributes:
        name: ``unseen family``, ``unseen GPU`` or ``random rows``, and which fold or group it is.
        train: Indices of the training rows.
        test: Indices of the rows that test.
    """

    name: str
    train: IntArray
    test: IntArray


def check_enough(groups: Sequence[str], kind: str, *, least_rows: int = 1) -> None:
    """Require that one of *groups* can be left out while another is in training.

    Args:
        groups: Of each possible training row.
        kind: What a group is, for people.
        least_rows: A group with fewer is not used.

    Raises:
        RequestError: There are not two groups that can.
    """
    count = sum(size >= least_rows for size in Counter(groups).values())
    if count < LEAST_GROUPS:
        rows = "with usable rows" if least_rows == 1 else f"with {least_rows} usable rows each"
        message = (
            f"Measurements must be of at least {LEAST_GROUPS} {kind}, {rows}, so that one can be left out; "
            f"got {count}. Put the whole files that SOURCES.md describes into the folder."
        )
        raise RequestError(message)


def by_group(groups: Sequence[str], fold_count: int, kind: str) -> list[Fold]:
    """Return *fold_count* folds, each group in one of them; *kind* is a family, a GPU or a campaign.

    The largest groups are dealt out first, each to the fold that has the fewest rows.
    """
    sizes = Counter(groups)
    fold_of: dict[str, int] = {}
    filled = [0] * min(fold_count, len(sizes))
    for group in sorted(sizes, key=lambda name: (-sizes[name], _digest(name))):
        fold = filled.index(min(filled))
        fold_of[group] = fold
        filled[fold] += sizes[group]
    numbers = np.array([fold_of[group] for group in groups], dtype=np.int64)
    return [_fold(numbers == fold, f"unseen {kind}, fold {fold + 1} of {len(filled)}") for fold in range(len(filled))]


def leave_one_out(groups: Sequence[str], kind: str) -> list[Fold]:
    """Return one fold a group: all others train."""
    names = np.array(groups)
    return [_fold(names == group, f"unseen {kind} {group}") for group in sorted(set(groups))]


def random_rows(row_count: int, fold_count: int, seed: int = 0) -> list[Fold]:
    """Return folds of rows drawn by chance: rows of one family stand on both sides."""
    numbers = np.random.default_rng(seed).permutation(row_count) % fold_count
    return [_fold(numbers == fold, f"random rows, fold {fold + 1} of {fold_count}") for fold in range(fold_count)]


def _fold(tested: npt.NDArray[np.bool_], name: str) -> Fold:
    return Fold(name=name, train=np.flatnonzero(~tested), test=np.flatnonzero(tested))


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


FAMILY_BEGINNINGS = {
    "albert": "bert",
    "alexnet": "alexnet",
    "bert": "bert",
    "bloom": "gpt",
    "convnext": "convnext",
    "cyclegan": "cyclegan",
    "dcgan": "dcgan",
    "densenet": "densenet",
    "distilbert": "bert",
    "efficientnet": "efficientnet",
    "electra": "bert",
    "googlenet": "inception",
    "gpt": "gpt",
    "inception": "inception",
    "lstm": "lstm",
    "mixer": "mlp_mixer",
    "mnasnet": "efficientnet",
    "mobilenet": "efficientnet",
    "ncf": "recommender",
    "neumf": "recommender",
    "opt": "gpt",
    "pointnet": "pointnet",
    "pythia": "gpt",
    "recommendation": "recommender",
    "resnet": "resnet",
    "resnext": "resnet",
    "roberta": "bert",
    "shufflenet": "shufflenet",
    "squeezenet": "squeezenet",
    "swin": "swin_transformer",
    "switch": "t5",
    "transformer": "transformer",
    "vgg": "vgg",
    "vit": "vision_transformer",
    "wide_resnet": "resnet",
}
"""How a model's name begins -> its family, spelt as the module of timm that defines it where there is one."""


def family_of(name: str) -> str:
    """Return the family of a model that is not of timm, whose own module (``timm_module``) says it better."""
    plain = name.lower().replace("-", "").replace(" ", "_")
    fits = [start for start in FAMILY_BEGINNINGS if plain.startswith(start)]
    return FAMILY_BEGINNINGS[max(fits, key=len)] if fits else plain.partition("_")[0]


PART = 4
"""One family in so many is sealed."""


def is_sealed(family: str) -> bool:
    """Return whether *family* is sealed: its name alone decides, so that no score could draw it."""
    return int(hashlib.sha256(f"sealed {family}".encode()).hexdigest()[:8], 16) % PART == 0


def count_evaluation(counter: Path, targets: list[str]) -> None:
    """Append a line to *counter*: when it was looked, and at which *targets*.

    Raises:
        RequestError: The file cannot be written.
    """
    now = datetime.now(tz=timezone.utc).isoformat(timespec="seconds")
    try:
        with counter.open("a", encoding="utf-8") as file:
            file.write(f"{now} {','.join(targets)}\n")
    except OSError as error:
        message = (
            f"File '{counter}' must be one to which a look can be added; got one that cannot be written "
            f"({error.strerror}). Name another with --sealed."
        )
        raise RequestError(message) from error


def evaluation_count(counter: Path) -> int:
    """Return how many looks *counter* has."""
    return len(counter.read_text(encoding="utf-8").splitlines()) if counter.is_file() else 0
