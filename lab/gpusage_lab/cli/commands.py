"""What users type of the laboratory: the signatures of `gpusage train`, `evaluate`, `profile` and `simulate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from gpusage.cli import options
from gpusage.cli.deferred import run_by
from gpusage_lab.profiling.items import KINDS, Kind
from gpusage_lab.profiling.plan import duration_s

POLICIES = (
    *("slots", "price", "price-online", "utilization", "activity", "packing", "packing-observed", "reactive", "sets"),
)
"""As in `gpusage_lab.simulator.scenario`, which needs numpy."""
FORMATS = ("philly", "yarn", "sacct", "alibaba-2020", "alibaba-2023", "gavel", "lucid", "helios", "table")
"""As in `gpusage_lab.simulator.formats`."""
ORDERS = ("fifo", "easy", "sjf", "srtf", "las", "max-min", "max-min-speeds", "multifactor")
"""As in `gpusage_lab.simulator.order_settings`."""
PREEMPTION_S = 62.0
"""As in `gpusage_lab.simulator.queue_state`."""
Function = TypeVar("Function", bound=Callable[..., Any])
TRAIN_EXAMPLE = """\b
Examples:
  gpusage train --data ../shared/data
  gpusage train --history
"""
EVALUATE_EXAMPLE = """\b
Examples:
  gpusage evaluate --data ../shared/data
  gpusage evaluate --data ../shared/data --target step_time
  gpusage evaluate --data ../shared/data --target published --json
  gpusage evaluate --data ../shared/data --sealed bench/looks.txt
"""
SIMULATE_EXAMPLE = """\b
Examples:
  gpusage simulate --generate 5000
  gpusage simulate --jobs trace.csv --cluster cluster.toml --policy slots --policy price -o page.html
  gpusage simulate --jobs trace.csv --cluster cluster.toml --draw-models --json
  gpusage simulate --last-month --draw-models
  gpusage simulate --jobs month.txt --cluster /etc/slurm/slurm.conf --draw-models
  gpusage simulate --generate 2000 --policy slots --policy price --order easy --order las
"""
PROFILE_EXAMPLE = """\b
Examples:
  gpusage profile --dry-run
  gpusage profile --budget 1500s --output h200.csv
  gpusage profile --device cpu --suite tiny --output try.csv
  gpusage profile torchvision:resnet50,batch=64 hf:gpt2,batch=8,mode=infer --only solo,pair
"""


def _common(*, required: bool) -> Callable[[Function], Function]:
    """Return what adds ``--data`` and ``--target``."""
    data = click.option(
        "--data",
        "folder",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        required=required,
        help="Folder of the public measurements; its SOURCES.md describes them.",
    )
    chosen = click.option("--target", "names", metavar="NAME", multiple=True, help="Only this target; may be repeated.")
    return lambda function: data(chosen(function))


def _duration(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    try:
        return None if value is None else duration_s(value)
    except ValueError as error:
        message = f"must be a time such as 1500s or 25m; got {value!r}."
        raise click.BadParameter(message) from error


def _kinds(_: click.Context, __: click.Parameter, value: str | None) -> Sequence[Kind]:
    by_name = {name: kind for kind in KINDS for name in (kind, f"{kind}s")}
    names = [name.strip() for name in (value or "").split(",") if name.strip()]
    for name in names:
        if name not in by_name:
            message = f"must be of {', '.join(KINDS)}, separated by commas; got {name!r}."
            raise click.BadParameter(message)
    return tuple(by_name[name] for name in names)


@click.command(epilog=TRAIN_EXAMPLE, short_help="Refit the predictors on public measurements, or on this site's jobs.")
@_common(required=False)
@click.option("--history", is_flag=True, help="Fit what this site's own runs tell of jobs that name no model.")
@click.option(
    "--store", "store_url", metavar="URL", help="With --history: the store to fit.  [default: the site's own]"
)
@options.json_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Folder for the artifacts, or with --history a file.  [default: where gpusage reads them]",
)
@run_by("gpusage_lab.cli.learning:train")
def train() -> None:
    """Fit every artifact that gpusage ships. This takes minutes, and the same folder gives the same bytes.

    It needs --data and the extra [train], but neither torch nor a GPU. With --history, it fits the
    history of jobs that name no model from this host's store, reports its accuracy, and needs no extra.
    """


@click.command(epilog=EVALUATE_EXAMPLE, short_help="Score the predictors on splits that do not leak.")
@_common(required=True)
@options.json_option
@click.option(
    "--sealed",
    "counter",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Score the sealed families as well, and count this look in FILE.",
)
@run_by("gpusage_lab.cli.learning:evaluate")
def evaluate() -> None:
    """Score the predictors on models and GPUs that they were not fitted on, beside baselines.

    Each predictor is fitted again without the rows that test it.
    One family in four is sealed: it is left out, so that nobody chooses by its score, unless --sealed counts the look.
    --target published compares figures that vendors and authors published with predictions of the same runs.
    This needs the extra [train], but neither torch nor a GPU.
    """


@click.command(name="profile", epilog=PROFILE_EXAMPLE, short_help="Measure workloads on this machine's GPU.")
@click.argument("workloads", metavar="[WORKLOAD]...", nargs=-1)
@click.option("--suite", type=click.Choice(["session", "tiny"]), help="[default: session; tiny on the CPU]")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option(
    "--gpu", type=click.IntRange(0), default=0, show_default=True, help="Number of the GPU, as nvidia-smi counts."
)
@click.option("--only", callback=_kinds, metavar="KINDS", help="Only these kinds of measurement, such as solo,pair.")
@click.option(
    "--budget",
    "budget_s",
    metavar="TIME",
    callback=_duration,
    help="Stop within this time, such as 1500s or 25m.  [default: no limit]",
)
@click.option("--retry", is_flag=True, help="Repeat measurements that failed, except those that did not fit.")
@click.option("--dry-run", is_flag=True, help="Show what would be measured, and how long it takes.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("profile.csv"),
    show_default=True,
    help="Table to append to; its rows are not measured again.",
)
@run_by("gpusage_lab.cli.profile:measure")
def profile() -> None:
    """Measure WORKLOADs, or a suite of them, alone and together on one GPU of this machine.

    A workload is a named model (timm:, torchvision:, hf:, builtin:) with random weights, as in
    torchvision:resnet50,batch=64,mode=train,precision=bf16. You can stop the command at any time: its results are in
    the table, and the next run continues from there. It needs the extra [profile].
    """


@click.command(epilog=SIMULATE_EXAMPLE, short_help="What policies would do to a trace of jobs, side by side.")
@click.option(
    "--jobs",
    "jobs_file",
    type=click.Path(path_type=Path),
    help="A trace, such as Philly's or what 'sacct --parsable2' printed.  [default: jobs drawn by chance]",
)
@click.option(
    "--format",
    "format_name",
    type=click.Choice(FORMATS),
    help="Of --jobs; docs/simulator.md describes each.  [default: the one by which the file is recognised]",
)
@click.option(
    "--last-month",
    is_flag=True,
    help="In place of --jobs: the last 30 days of this host's workload manager, on its own cluster.",
)
@click.option(
    "--cluster",
    "cluster_file",
    type=click.Path(path_type=Path),
    help="slurm.conf, or JSON or TOML as for 'gpusage validate'.  [default: an example, or --last-month's]",
)
@click.option(
    "--gpus-per-node",
    type=click.IntRange(min=1),
    help="Of types of whose nodes the cluster's file says nothing.  [default: all GPUs in one node]",
)
@click.option("--spread", is_flag=True, help="Let a job's GPUs be on as many nodes as can be.  [default: on as few]")
@click.option(
    "--pairs",
    "pairs_file",
    type=click.Path(path_type=Path),
    help="CSV or Parquet file of pairs that were measured (model, beside, slowdown), or a table of 'gpusage profile'.",
)
@click.option("--policy", "policies", type=click.Choice(POLICIES), multiple=True, help="[default: four of them]")
@click.option(
    "--order", "orders", type=click.Choice(ORDERS), multiple=True, help="Which job goes first.  [default: the policy's]"
)
@click.option(
    "--duration-error",
    type=options.NumberRange(0, 10),
    help="For sjf and srtf: predict run times with such a deviation of the logarithm.  [default: by time limits]",
)
@click.option(
    "--preemption-s",
    type=options.NumberRange(0, 86400),
    default=PREEMPTION_S,
    show_default=True,
    help="Seconds that a suspended job's next start takes.",
)
@click.option(
    "--round-s",
    type=options.NumberRange(1, 86400),
    help="From one choice of the jobs that run to the next.  [default: 60 for las, 360 for max-min]",
)
@click.option("--generate", type=click.IntRange(1, 10_000_000), help="How many jobs to draw.  [default: 1000]")
@click.option(
    "--load",
    type=options.NumberRange(0.01, 100),
    default=1.0,
    show_default=True,
    help="GPU time that drawn jobs ask for.",
)
@click.option("--draw-models", is_flag=True, help="Draw a model for jobs of which the file names none.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The same one gives the same result."
)
@click.option(
    "--repetitions", type=click.IntRange(1, 1000), default=5, show_default=True, help="Seeds, from --seed on."
)
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes side by side.")
@click.option(
    "--dask",
    "dask_address",
    metavar="ADDRESS",
    help="Scheduler of a Dask cluster that simulates in place of processes here; it must see the same files.",
)
@options.json_option
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write an HTML page with plots.")
@run_by("gpusage_lab.cli.simulate:compare")
def simulate() -> None:
    """Simulate each policy on the same jobs, and show makespan, waits, utilization and broken promises side by side.

    Policies: 'slots', whole GPUs; 'price', 'utilization' and 'activity', what gpusage decides by these rules;
    'price-online', where each job also prefers a GPU type when it comes; 'packing', first fit decreasing on predicted
    utilization, 'packing-observed' on true ones, 'reactive' after a minute of profiling; 'sets', where a job
    joins those to whose throughput it adds most. The formats of --jobs are in docs/simulator.md.

    Orders: 'fifo', the oldest job; 'easy', where others overtake that do not delay it; 'sjf', the shortest; 'srtf',
    the one with the least left; 'las', Tiresias' two queues; 'max-min', fair shares by user, 'max-min-speeds' of
    throughput; 'multifactor', Slurm's. 'srtf', 'las' and 'max-min' suspend running jobs.
    """
