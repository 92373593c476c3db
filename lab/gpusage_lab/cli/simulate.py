"""`gpusage simulate`: what each policy would do to a trace, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from gpusage.advisor import Advisor, make_advisor
from gpusage.cli import tables
from gpusage.cli.cluster_file import any_cluster, example_cluster
from gpusage.whole_file import write_whole
from gpusage_hooks.errors import RequestError
from gpusage_lab.simulator.comparison import COLUMNS, page, row
from gpusage_lab.simulator.engine import simulate
from gpusage_lab.simulator.fleet import SHARES, Fleet, as_if_installed, fleet_of
from gpusage_lab.simulator.generated import generated
from gpusage_lab.simulator.jobs import Jobs
from gpusage_lab.simulator.models import drawn_kinds, with_drawn_models
from gpusage_lab.simulator.result import Result
from gpusage_lab.simulator.scenario import POLICIES, USUAL, Scenario, scenario_of
from gpusage_lab.simulator.trace import Trace, past_rows, read_trace, trace_of

SCHEMA = "gpusage.simulation/1"
MANAGER = "simulated"


def compare(
    jobs_file: Path | None,
    accounting_file: Path | None,
    cluster_file: Path | None,
    output: Path | None,
    *,
    as_json: bool,
    **how: Any,  # noqa: ANN401 - click's
) -> None:
    """Simulate each policy on the same jobs, and show the figures side by side."""
    sources = {"--jobs": jobs_file, "--from-sacct": accounting_file, "--generate": how["generate"]}
    named = [name for name, value in sources.items() if value is not None]
    if len(named) > 1:
        message = f"Jobs must come from one of {', '.join(sources)}; got {' and '.join(named)}. Leave all but one out."
        raise click.UsageError(message)
    advisor = make_advisor()
    fleet, undivided = _fleet(cluster_file, advisor)
    trace = _trace(jobs_file, accounting_file, fleet, advisor)
    jobs, notes = _drawn(fleet, how) if trace is None else _jobs(trace, how)
    notes += undivided
    folder = (jobs_file or accounting_file or Path("-")).parent
    scenario = scenario_of(jobs, fleet, advisor, folder, how["seed"])
    results = _results(scenario, how["policies"] or USUAL, how["workers"])
    notes = [*notes, *_assumptions(scenario)]
    if output is not None:
        _write(output, page(results, notes))
    if as_json:
        tables.print_json({"schema": SCHEMA, "notes": notes, "policies": [_document(one) for one in results]})
        return
    tables.show_title(f"{len(jobs)} jobs on {fleet.gpu_count} GPUs")
    tables.show("")
    tables.show_rows(COLUMNS, [row(one) for one in results])
    tables.show("", *notes)


def _fleet(path: Path | None, advisor: Advisor) -> tuple[Fleet, list[str]]:
    """Return the GPUs, with what is to be said of how they are divided."""
    catalogue = advisor.catalogue
    cluster = example_cluster(MANAGER, catalogue) if path is None else any_cluster(path, MANAGER, advisor)
    installed, undivided = as_if_installed(cluster)
    fleet = fleet_of(installed, catalogue)
    if not fleet.types:
        message = f"Cluster file {str(path)!r} must have a pool with at least one GPU; got none. Add one."
        raise RequestError(message)
    if not undivided:
        return fleet, []
    return fleet, [f"GPUs of {', '.join(undivided)} are not divided today; here they are, into {SHARES} shares each."]


def _trace(jobs_file: Path | None, accounting_file: Path | None, fleet: Fleet, advisor: Advisor) -> Trace | None:
    """Return the jobs of the file that is named, ``None`` where none is."""
    if accounting_file is None:
        return None if jobs_file is None else read_trace(jobs_file, fleet)
    past = advisor.hooks.read_past_jobs(str(accounting_file))
    if past is None:
        rule = "a readable file that a workload manager's accounting printed, such as 'sacct --parsable2'"
        message = f"File {str(accounting_file)!r} must be {rule}; got another. Other files go with --jobs."
        raise RequestError(message)
    return trace_of(past_rows(past), str(accounting_file), fleet)


def _drawn(fleet: Fleet, how: dict[str, Any]) -> tuple[Jobs, list[str]]:
    """Return jobs drawn by chance, and says so."""
    jobs = generated(how["generate"] or 1000, drawn_kinds(), fleet, how["seed"], how["load"])
    return jobs, [f"The jobs are drawn by chance, seed {how['seed']}; --jobs FILE takes your own."]


def _jobs(trace: Trace, how: dict[str, Any]) -> tuple[Jobs, list[str]]:
    """Return the jobs of *trace*, with what is to be said of them."""
    jobs, notes = trace.jobs, []
    if trace.left_out:
        notes.append(f"{trace.left_out} jobs of the file asked for no GPU or never ran; they are left out.")
    if how["draw_models"]:
        jobs = with_drawn_models(jobs, how["seed"])
        notes.append("Jobs without a model have one drawn by chance: one for each user, GPU type and number of GPUs.")
    return jobs, notes


def _assumptions(scenario: Scenario) -> Iterator[str]:
    """Yield what the figures rest on."""
    unreadable = [*scenario.models.unreadable.values()]
    if unreadable:
        named = len(unreadable) + len(scenario.models.graphs)
        first = f"The first: {unreadable[0]}"
        yield f"{len(unreadable)} of {named} models cannot be read: their jobs count as without a model. {first}"
    without = sum(kind.model is None for kind in scenario.jobs.kinds)
    if without:
        yield "Jobs without a model run alike on all GPU types and get whole GPUs, as in production."
    yield "What happens is predicted, with errors as large as the intervals; docs/simulator.md has all assumptions."
    yield "Energy is not shown: no power was measured for these jobs."


def _results(scenario: Scenario, names: Sequence[str], workers: int) -> list[Result]:
    """Return each policy's result, in the order of *names*; each in a process of its own where there are several."""
    policies = [POLICIES[name](scenario) for name in names]
    if workers > 1:
        with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
            _SHARED[:] = [scenario, *policies]
            return [*pool.map(_in_process, range(len(policies)))]
    results = []
    for policy in policies:
        with _progress(policy.name, len(scenario.jobs)) as told:
            results.append(simulate(scenario.jobs, scenario.fleet, policy, scenario.truth, told))
    return results


_SHARED: list[Any] = []
"""What processes that are forked find there: nothing large goes through a pipe to them."""


def _in_process(number: int) -> Result:
    scenario, *policies = _SHARED
    return simulate(scenario.jobs, scenario.fleet, policies[number], scenario.truth)


@contextmanager
def _progress(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield what is told how many jobs have ended: a bar on a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bars:
        task = bars.add_task(name, total=total)
        yield lambda ended: bars.update(task, completed=ended)


def _document(result: Result) -> dict[str, Any]:
    return {"policy": result.policy, **asdict(result.figures)}


def _write(path: Path, text: str) -> None:
    try:
        write_whole(path, text)
    except OSError as error:
        message = f"Page {str(path)!r} must be writable; got: {error.strerror}. Choose another path."
        raise click.ClickException(message) from error
