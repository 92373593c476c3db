"""Yeung et al., HotCloud 2020, the cluster experiment: 12 GPUs, 100 jobs, five repetitions, simulated on two truths.

Example: python bench/cluster_yeung.py --data ../shared/data
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from gpusage_lab.cli.scores import show_scores
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.seeds import yeung_cluster

USUAL = Path(__file__).resolve().parents[2] / "shared" / "data"


@click.command()
@click.option("--data", "folder", type=click.Path(path_type=Path), default=USUAL, help="Public measurements.")
@click.option("--truth", "names", type=click.Choice([*yeung_cluster.TRUTHS]), multiple=True, help="[default: both]")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: one document per truth, in a list.")
def main(folder: Path, names: tuple[str, ...], seed: int, *, as_json: bool) -> None:
    """Remake Yeung's cluster experiment on measured pairs."""
    data = DataFolder(folder)
    missing = [file for file in yeung_cluster.FILES if file not in data]
    if missing:
        click.echo(f"Folder '{folder}' must have {', '.join(missing)}; got none. Name it with --data.", err=True)
        return
    outcomes = {name: yeung_cluster.experiment(data, name, seed) for name in names or yeung_cluster.TRUTHS}
    if as_json:
        click.echo(json.dumps([yeung_cluster.document(name, of) for name, of in outcomes.items()], indent=2))
    else:
        show_scores([yeung_cluster.table(name, of) for name, of in outcomes.items()])


if __name__ == "__main__":
    main()
