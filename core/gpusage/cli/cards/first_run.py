"""What a job's own runs showed, in its user's cache folder, and the comment of the next job of the same script.

The files are the user's own, read as the user is: `gpusage/capture/on_start/observer.py` wrote them in the jobs, and
`gpusage capture --from-run` puts the card of the model beside them. The folder of a script has one file for each job
and program.

Invariants:

1. A job counts only while the main files of its programs are the ones that ran, and while no two runs of a program
   showed different things.
2. What they say is checked as a comment of the user's own is: it may be forged, by the user alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpusage.capture.captured import Captured, check_record
from gpusage.cli.cards.cache import read_own, user_cache, write_atomically
from gpusage.graphs.model_files import read_bounded_file
from gpusage.graphs.reader import CARD_SUFFIX
from gpusage_hooks.comment import parse_first_run, parse_model
from gpusage_hooks.errors import GpuUsageError, GraphError, RequestError
from gpusage_hooks.managers import GpuCatalogue, known_gpu
from gpusage_hooks.types import ModelGraph

if TYPE_CHECKING:
    from gpusage.experience.learned import Learned
    from gpusage.settings.configuration import Configuration

MAXIMUM_BYTES = 1 << 18
"""Of one file, as `observer.py` limits it."""
MAXIMUM_RUNS = 16
"""Of one script on whole GPUs, and as many on shares: older ones are removed."""
MAXIMUM_JOBS = 4
"""The newest jobs on whole GPUs, whose usage decides."""
SCHEMA = "gpusage.first-run/2"
_PRIME = 2**128 - 159
_MAXIMUM_PROGRAM_BYTES = 1 << 20
_SEEN = ("calls", "optimizers", "accumulate", "compile", "world")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A run of one program, as `observer.py` saw it.

    Attributes:
        path: Of its file.
        document: The content of this file, unchecked but for its schema: ``command``, the words that start the program,
            Python's path first, and ``folder``, where it was started.
    """

    path: Path
    document: Mapping[str, Any]

    @property
    def job(self) -> str:
        """Return the number of its job; may be empty."""
        return str(self.document.get("job") or "")

    @property
    def seen(self) -> object:
        """Return what equal runs of a program have in common."""
        return [self.document.get(name) for name in _SEEN]


def runs_folder() -> Path:
    """Return the folder of this user's records, with a folder for each script."""
    return user_cache() / "runs"


def runs_of_job(job: str) -> list[RecordedRun]:
    """Return the runs of the programs of *job*."""
    return [run for path in runs_folder().glob(f"*/{escape(job)}.*.json") if (run := _read(path)) and run.job == job]


def keep_card(run: RecordedRun, captured: Captured, graph: ModelGraph) -> Path:
    """Write the card of the model of *run*, which then decides the next jobs of its script; return its path.

    Raises:
        OSError: It cannot be written.
    """
    from gpusage.graphs.card.text import write_file  # sbatch needs no writer

    card = run.path.with_name(f"model{CARD_SUFFIX}")
    write_file(graph, card)
    seen = {"keys": dict(captured.keys), "modules": captured.modules}
    document = {**seen, "program_digest": run.document["program_digest"]}
    write_atomically(card.with_name("captured"), json.dumps(document))
    return card


def learned_of_first_runs(configuration: Configuration) -> Learned:
    """Return what the store shows of jobs that named no model; nothing where it cannot be read from here."""
    from gpusage.experience.learned import NOTHING_LEARNED, Learned
    from gpusage.service.learner import first_runs_in_store
    from gpusage.store.opening import open_store

    with suppress(GpuUsageError, OSError), closing(open_store(configuration.store.url)) as store:
        return Learned(first_runs=first_runs_in_store(store, configuration.learning, time.time()))
    return NOTHING_LEARNED


def comment_of_run(
    folder: Path, catalogue: GpuCatalogue, files: Mapping[str, Path] = MappingProxyType({})
) -> str | None:
    """Return the comment of a job that runs as *folder* shows; ``None`` if there is none, or it no longer holds.

    Args:
        folder: Of one script.
        catalogue: The GPUs, by the names that the comment uses.
        files: What is sent along with the job, by its name there.
    """
    paths = sorted(folder.glob("*.json"), key=lambda path: path.lstat().st_mtime, reverse=True)
    # Runs on shares show whether runs differ; they push out none of those whose usage decides.
    kinds = [[path for path in paths if path.match("*.share.json") is is_share] for is_share in (False, True)]
    for path in (path for of_kind in kinds for path in of_kind[MAXIMUM_RUNS:]):
        path.unlink(missing_ok=True)
    runs = [run for of_kind in kinds for path in of_kind[:MAXIMUM_RUNS] if (run := _read(path)) is not None]

    # A job counts as a whole: its usage is that of all its programs.
    stale = {run.job for run in runs if not _is_unchanged(run, files)}
    runs = [run for run in runs if run.job not in stale]
    programs: dict[str, object] = {}
    if any(programs.setdefault(run.document["program_digest"], run.seen) != run.seen for run in runs):
        return None
    whole = [run for run in runs if run.document.get("share") == "100"]
    jobs = list(dict.fromkeys(run.job for run in whole if run.job))[:MAXIMUM_JOBS]
    if not jobs:
        return None

    try:
        timed = next(filter(None, (_step_time(run, catalogue) for run in whole)), "")
        keys = ",".join([f"first_run={'+'.join(jobs)}", *filter(None, [timed])])
        card, captured = folder / f"model{CARD_SUFFIX}", _document(folder / "captured")
        if captured.get("program_digest") in programs and card.is_file():
            comment = f"{check_record(captured).comment(str(card))},{keys}"
            parse_model(comment)
            return comment
        return f"learn=on,{keys}" if parse_first_run(f"learn=on,{keys}") else None
    except RequestError:
        return None


def _is_unchanged(run: RecordedRun, files: Mapping[str, Path]) -> bool:
    """Return whether the main file of the program of *run* is the one that ran."""
    path = Path(str(run.document.get("program") or "/"))
    try:
        content = read_bounded_file(str(files.get(path.name, path)), _MAXIMUM_PROGRAM_BYTES)
    except GraphError:
        return False
    return run.document.get("program_digest") == f"{len(content)}:{int.from_bytes(content, 'little') % _PRIME:032x}"


def _step_time(run: RecordedRun, catalogue: GpuCatalogue) -> str:
    """Return the key of the step time; empty if *run* shows none."""
    step_time_s, name = run.document.get("step_time_s"), run.document.get("gpu")
    gpu = known_gpu(catalogue, name) if isinstance(name, str) and name else None
    # A microsecond to hours: anything else is no step of a training.
    if gpu is None or not isinstance(step_time_s, float) or not 1e-6 < step_time_s < 1e4:
        return ""
    return f"step_time={1e3 * step_time_s:.4g}ms@{gpu}"


def _read(path: Path) -> RecordedRun | None:
    document = _document(path)
    is_ours = document.get("schema") == SCHEMA and {"program_digest", "command", "folder", "calls"} <= document.keys()
    return RecordedRun(path=path, document=document) if is_ours else None


def _document(path: Path) -> Mapping[str, Any]:
    with suppress(ValueError):
        document = json.loads(read_own(path, MAXIMUM_BYTES) or b"")
        return document if isinstance(document, dict) else {}
    return {}
