"""`gpusage plan slices`: the MIG layout that would have served the jobs best, beside today's, shares and whole GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpusage.cli import tables
from gpusage.cli.documents import rounded
from gpusage.policies.share_price import limits
from gpusage_hooks.types import GpuPool
from gpusage_planning.simulator.command import progress_bar, source_of
from gpusage_planning.simulator.contract import Policy
from gpusage_planning.simulator.fleet import Fleet, as_if_installed
from gpusage_planning.simulator.policies import TypesOf, production
from gpusage_planning.simulator.report import job_notes, model_notes
from gpusage_planning.simulator.scenario import Scenario, scenario_of
from gpusage_planning.simulator.source import files_of, jobs_of
from gpusage_planning.slices.layouts import WHOLE, Board, Division, board_of, boards_of, profile_of
from gpusage_planning.slices.search import best_layout, month_of

SCHEMA = "gpusage.slices/1"
COLUMNS = tables.columns("GPUs", "mean wait", "jobs that fit nothing")
Node = tuple[Board, tuple[Division, ...], int]
"""Nodes that are alike: what is made of each of their GPUs, and how many such nodes there are."""


def plan_slices(*, seed: int, tries: int, as_json: bool, **how: Any) -> None:  # click's
    """Search the layout, and print it, and how long jobs wait under it and under others."""
    source = source_of({"generate": None, "load": 1.0, "pairs_file": None, "spread": False, **how})
    files = files_of(source)
    boards = boards_of(files.fleet, files.advisor.catalogue)

    # Everything is predicted once, on every GPU and slice that there could be.
    every = [each for one in boards for each in (one.whole, *one.slices.values())]
    fleet = replace(files.fleet, types=tuple(every))
    folder = (source.jobs_file or Path("-")).parent
    scenario = scenario_of(jobs_of(source, files, seed), fleet, files.advisor, folder, seed)
    month = month_of(scenario, boards, limits(files.advisor.rules.sharing, None))

    with progress_bar(tries, "layouts") as progress:
        best, tried = best_layout(month, tries, progress)
    whole = month.types({(one.whole.name, WHOLE): one.whole.gpu_count for one in boards})
    today = {one.name: one for one in files.fleet.types}
    waits = {
        "this layout": month.wait(month.types(best)),
        "today's": month.wait([today.get(one.name, replace(one, gpu_count=0)) for one in whole]),
        "shares of whole GPUs": month.wait(whole, lambda fleet: _shares(scenario, fleet, month.types_of)),
        "whole GPUs": month.wait(whole),
    }
    nodes: list[Node] = []
    for one in boards:
        gpus = [gpu for name, gpu in sorted(best) if name == one.whole.name for _ in range(best[name, gpu])]
        size = one.whole.node_gpu_count
        alike = Counter(tuple(gpus[at : at + size]) for at in range(0, len(gpus), size))
        nodes += [(one, gpus_of_node, count) for gpus_of_node, count in alike.items()]

    if as_json:
        mean = {name: {"mean_wait_s": rounded(wait_s), "fit_nothing": jobs} for name, (wait_s, jobs) in waits.items()}
        rows = [{"gpu": one.whole.name, "nodes": count, "divisions": gpus} for one, gpus, count in nodes]
        tables.print_json({"schema": SCHEMA, "waits": mean, "nodes": rows})
        return
    tables.show_title(f"{len(scenario.jobs)} jobs, {tried} layouts")
    tables.show("")
    tables.show_rows(COLUMNS, [[name, tables.seconds_text(wait), str(jobs)] for name, (wait, jobs) in waits.items()])
    tables.show("", *_configuration(nodes), "", *job_notes(source, files, seed), *model_notes(source, scenario))


def _shares(scenario: Scenario, fleet: Fleet, types_of: TypesOf) -> Policy:
    """Return what gpusage decides where all GPUs are whole and can be shared."""
    whole = {board_of(one): one for one in fleet.types if not profile_of(one)}
    rows = [(one, one.gpu.name if one.gpu else None) for one in whole.values()]
    counts = [(one.name, name, one.gpu_count) for one, name in rows]
    pools = tuple(GpuPool(gpu=gpu, site_type=name, gpu_count=n, free_gpu_count=n) for name, gpu, n in counts)
    cluster, _ = as_if_installed(replace(fleet.cluster, pools=pools), scenario.advisor.catalogue)

    # A job that had a slice may have a share of its board.
    names = {one.name: whole[board_of(one)].name for one in fleet.types}
    kinds = tuple(replace(kind, gpu_type=names.get(kind.gpu_type or "")) for kind in scenario.jobs.kinds)
    places = {kind: tuple(each for each in own if not profile_of(fleet.types[each])) for kind, own in types_of.items()}
    policy = production(replace(fleet, cluster=cluster), kinds, scenario.models, scenario.advisor)
    return replace(policy, types_of=places)


def _configuration(nodes: Sequence[Node]) -> Iterator[str]:
    """Yield mig-parted's configuration, one for each kind of nodes, and the lines of gres.conf and slurm.conf."""
    yield from ("version: v1", "mig-configs:")
    lines = []
    for number, (board, gpus, count) in enumerate(nodes, start=1):
        name = f"{board.whole.name}-{number}"
        yield f"  {name}:  # {count} node{'s' * (count > 1)}"
        for division in dict.fromkeys(gpus):
            yield f"    - devices: [{', '.join(str(at) for at, each in enumerate(gpus) if each == division)}]"
            yield f"      mig-enabled: {str(bool(division)).lower()}"
            yield from ["      mig-devices:"] * bool(division)
            yield from (f'        "{profile}": {number}' for profile, number in Counter(division).items())
        types = Counter(board.gres_type(each) for gpu in gpus for each in gpu or ("",))
        gres = ",".join(f"gpu:{type_}:{number}" for type_, number in types.items())
        # A profile alone names no GPU.
        feature = f" Features={board_of(board.whole)}" if types.keys() & board.slices.keys() else ""
        lines.append(f"# {name}: Gres={gres}{feature}")
    yield from ("", "# gres.conf of these nodes: Name=gpu AutoDetect=nvml; slurm.conf:", *lines)
