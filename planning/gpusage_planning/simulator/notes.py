"""What the figures of a simulation rest on, as sentences for people."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpusage_hooks.units import HOUR_S, WHOLE_PERCENT
from gpusage_planning.capacity.problem import LONGEST_DAYS
from gpusage_planning.simulator.fleet import SHARES
from gpusage_planning.simulator.formats import OWN
from gpusage_planning.simulator.scenario import Scenario
from gpusage_planning.simulator.site_pairs import Measured
from gpusage_planning.simulator.source import Files, Source, files_of, scenario

UNUSUAL_DAYS = 7
"""In public traces half of the jobs run for minutes or hours; milliseconds that are read as seconds make it days."""


def notes(source: Source, seed: int) -> Iterator[str]:
    """Yield what the figures of *source* rest on."""
    files, drawn = files_of(source), scenario(source, seed)
    yield from _job_notes(source, files, seed)
    yield from _cluster_notes(source, files)
    yield from _model_notes(source, drawn)
    yield "What happens is predicted, with errors as large as the intervals; docs/simulator.md has all assumptions."
    unmeasured = [one.name for one in files.fleet.types if one.power_w is None]
    if unmeasured:
        yield f"No energy: the cluster file has no measured power_w and idle_power_w of {', '.join(unmeasured)}."


def _job_notes(source: Source, files: Files, seed: int) -> Iterator[str]:
    trace = files.trace
    if trace is None:
        yield f"The jobs are drawn by chance, seed {seed}; --jobs FILE takes your own."
        return
    if source.month is not None:
        yield source.month.note
    if trace.left_out:
        why = f"asked for no GPU, never ran to an end or ran for more than {LONGEST_DAYS} days"
        yield f"Jobs that {why} are left out: {trace.left_out}."
    if trace.elsewhere:
        gpus = ", ".join(f"{count} on {gpus}" for gpus, count in trace.elsewhere.most_common())
        yield f"Jobs on GPUs that the cluster does not have are left out: {gpus}."
    if files.format is not None and files.format.name != OWN:
        yield " ".join(filter(None, (f"The jobs are read as of format {files.format.name}.", files.format.note)))
    if len(trace.jobs) and np.median(trace.jobs.work_s) > UNUSUAL_DAYS * 24 * HOUR_S:
        yield f"Half of the jobs run for more than {UNUSUAL_DAYS} days. Are run times in milliseconds? Write seconds."
    if any(kind.share_percent < WHOLE_PERCENT for kind in trace.jobs.kinds):
        yield "Jobs that ask for a part of a GPU have that part under every policy, and the time that they took on it."


def _cluster_notes(source: Source, files: Files) -> Iterator[str]:
    if source.gpus_per_node is not None and all(one.node_gpu_counts for one in files.fleet.types):
        yield "Option --gpus-per-node changes nothing: the cluster's file has the nodes of all types."
    if files.undivided:
        yield f"GPUs of {', '.join(files.undivided)} are not divided today; here they are, into {SHARES} shares each."
    for one in files.fleet.types:
        if len(one.node_gpu_counts) > 1:
            counts = " or ".join(map(str, one.node_gpu_counts))
            size = f"each has {one.gpus_per_node}" if one.gpus_per_node else "all GPUs are in one node"
            yield f"Nodes of {one.name} have {counts} GPUs; here {size}."


def _model_notes(source: Source, drawn: Scenario) -> Iterator[str]:
    if source.draws_models and (source.jobs_file or source.month):
        yield "Jobs without a model have one drawn by chance: one for each user, GPU type and number of GPUs."
    unreadable = [*drawn.models.unreadable.values()]
    if unreadable:
        named = len(unreadable) + len(drawn.models.graphs)
        first = f"The first: {unreadable[0]}"
        yield f"{len(unreadable)} of {named} models cannot be read: their jobs count as without a model. {first}"
    if any(kind.model is None for kind in drawn.jobs.kinds):
        yield "Jobs without a model run alike on all GPU types and get what they ask for, as in production."
    if all(kind.model is None for kind in drawn.jobs.kinds):
        yield "No job has a model, so policies have nothing to decide; --draw-models draws models by chance."
    if drawn.measured_pairs is not None:
        yield _pairs_note(drawn.measured_pairs)


def _pairs_note(measured: Measured) -> str:
    """Return how many of a file's pairs are of the jobs; a model that is written otherwise is none of them."""
    if not measured.used_count:
        return (
            f"None of the {measured.pair_count} measured pairs is of these jobs: 'model' and 'beside' must name their "
            "models with the same options, and 'gpu_type' a type of this cluster."
        )
    count = f"{measured.used_count} of {measured.pair_count} measured pairs"
    return f"{count} are of these jobs, which are as slow beside each other as measured. Policies do not see this."
