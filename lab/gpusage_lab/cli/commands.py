"""What users type of the laboratory: the signatures of `gpusage train`, `evaluate` and `profile`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from gpusage.cli import options
from gpusage.cli.program import run_by
from gpusage_lab.profiling.items import KINDS, Kind

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
    type=options.TIME,
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
