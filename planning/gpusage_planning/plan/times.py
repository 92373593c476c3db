"""How long each job takes on each type of node: as its file says, or as the advisor predicts from its model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpusage.cli import options
from gpusage.cli.cards.graph_cache import read_graph
from gpusage.decisions.prediction import with_model_settings
from gpusage.policies.candidates import why_unlimited
from gpusage.policies.share_price import partners_of
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Gpu, GpuNeed, Price
from gpusage_hooks.units import HOUR_S
from gpusage_planning.capacity.problem import (
    LONGEST_DAYS,
    LONGEST_S,
    NodeGroup,
    NodeType,
    PlannedJob,
    node_types,
    stays,
)
from gpusage_planning.capacity.problem import options as ways
from gpusage_planning.plan.files import MOST_GPUS, Line

if TYPE_CHECKING:
    from gpusage.decisions.advisor import Advisor

DAY_S = 24 * HOUR_S
_SHARE = re.compile(r"(.+):(.*)%")
_PERCENT = re.compile(r"[1-9][0-9]?")
Times = Mapping[tuple[str, int], float]


def planned(lines: Sequence[Line], groups: Sequence[NodeGroup], advisor: Advisor, folder: Path) -> list[PlannedJob]:
    """Return the jobs with their run times on the nodes of *groups*; paths of models count from *folder*.

    Raises:
        GpuUsageError: A model cannot be read, a GPU is not known, MPS cannot give a share, or a job can run on none of
            the nodes.
    """
    types = node_types(groups)
    names = dict.fromkeys(kind.gpu for kind in types)
    shares = {match[0]: _share(match, advisor) for match in map(_SHARE.fullmatch, names) if match}
    memory: dict[str, tuple[dict[tuple[str, int], float], int | None]] = {}
    jobs = []
    for line in lines:
        if line.model and line.model not in memory:
            memory[line.model] = _step_times_s(line.model, names, shares, advisor, folder)
        jobs.append(replace(line.job, times_s=_times(line, *memory.get(line.model, ({}, None)))))
        if not any(map(stays, ways(jobs[-1], types))):
            _refuse(line, types, is_draining=bool(ways(jobs[-1], types)))

        (gpu, count), time_s = min(jobs[-1].times_s.items(), key=lambda item: item[1])
        if time_s > LONGEST_S:
            column = f"{gpu}:{count}" if (gpu, count) in line.step_times_s else "steps"
            message = (
                f"Column {column!r} on {line.where} must be such that the job ends within {LONGEST_DAYS} days; got "
                f"{time_s / DAY_S:,.0f} days. Step times are in seconds: divide milliseconds by 1,000."
            )
            raise RequestError(message)
    return jobs


def _refuse(line: Line, types: Sequence[NodeType], *, is_draining: bool) -> None:
    if is_draining:
        message = (
            f"Job {line.job.name!r} on {line.where} must be able to run on a node that stays; got only nodes that have "
            "'until'. Add a type of node without it, or leave the job out."
        )
        raise RequestError(message)

    most: dict[str, int] = {}
    for kind in types:
        most[kind.gpu] = max(most.get(kind.gpu, 0), kind.gpu_count)
    measured = [f"{gpu}:{count}" for gpu, count in line.step_times_s if gpu in most]
    if not line.model and measured:
        message = (
            f"Job {line.job.name!r} on {line.where} must have a step time for no more GPUs than a node has; got "
            f"{', '.join(measured)}, and nodes of at most "
            f"{', '.join(f'{gpu}:{count}' for gpu, count in most.items())}. Add a step time or a larger node, or leave "
            "the job out."
        )
        raise RequestError(message)

    got = "none that it fits on" if line.model else f"step times of {', '.join(name for name, _ in line.step_times_s)}"
    message = (
        f"Job {line.job.name!r} on {line.where} must be able to run on a GPU of the cluster ({', '.join(most)}); got "
        f"{got}. Add a type of node, or leave the job out."
    )
    raise RequestError(message)


def _times(line: Line, predicted_s: Times, model_steps: int | None) -> Times:
    """Return run times; measured ones go before predicted ones.

    On several GPUs a step is taken to last as long as on one, so that n GPUs need an n-th of the steps: by the public
    runs this plain rule is nearer than our own prediction (lab/docs/experiments.md).
    """
    steps = line.steps or model_steps or 1.0
    counts = [count for count in (1, 2, 4, 8, 16, 32, 64) if count <= line.max_gpus]
    predicted = {
        (gpu, count): steps * step_s / count
        for (gpu, most), step_s in predicted_s.items()
        for count in counts
        if count <= most
    }
    measured = {key: steps * step_s for key, step_s in line.step_times_s.items()}

    return {**predicted, **measured}


def _share(match: re.Match[str], advisor: Advisor) -> tuple[Gpu, int]:
    """Return the GPU of a share such as ``v100:50%``, and the percentage."""
    gpu, percent = advisor.catalogue.find(match[1]), match[2]
    why = "a slice" if gpu.parent_gpu else why_unlimited(gpu)
    if why or not _PERCENT.fullmatch(percent):
        got = f"{gpu.name}, which is {why}" if why else f"{percent!r}"
        message = (
            f"Share {match[0]!r} of the cluster must be 1 to 99 % of a whole GPU whose threads MPS can divide, which "
            f"are Nvidia's since Volta; got {got}. Change it."
        )
        raise RequestError(message)

    return gpu, int(percent)


def _step_times_s(
    model: str, names: Iterable[str], shares: Mapping[str, tuple[Gpu, int]], advisor: Advisor, folder: Path
) -> tuple[dict[tuple[str, int], float], int | None]:
    """Return the predicted step time on one of each of *names* on which the model fits, and the steps that it names.

    Each name stands beside how many of its GPUs a job may have: no job has several parts.
    """
    request = options.read_request(model, {})
    graph = read_graph(advisor, options.resolve_model_path(folder, request.model), dict(request.workload.shape))
    run = with_model_settings(request.workload, request.named, graph)
    gpus = {name: advisor.catalogue.find(name) for name in names if name not in shares}
    needs = advisor.predict(graph, run, list(gpus.values())) if gpus else ()
    fitting = {
        (name, 1 if gpu.parent_gpu else MOST_GPUS): need.step_time_s.value
        for (name, gpu), need in zip(gpus.items(), needs, strict=True)
        if need.fits
    }

    for name, (gpu, percent) in shares.items():
        (need,) = advisor.predict_shares(graph, run, [gpu], [percent])
        ((price,),) = advisor.price(graph, run, [gpu], [percent])
        if need.fits:
            fitting[name, 1] = _with_partners_s(need, price)

    return fitting, run.steps


def _with_partners_s(need: GpuNeed, price: Price) -> float:
    """Return the step time on a share whose GPU is full of others: the plan fills it."""
    from gpusage.predictors.sharing.colocation import (
        slowdown_with_partners,  # numpy, which a plan of step times does not need
    )

    partners = partners_of(price.share_percent)
    among = slowdown_with_partners(price.slowdown_under_contention, partners, price.partner_powers)
    return need.step_time_s.value * among.value / price.slowdown.value
