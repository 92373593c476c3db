"""Ardagna et al.'s cluster, remade: mixed-integer programs against plain rules, and the cost that was predicted.

With ``--split``: what the error of the predicted cost is of, by the jobs that are drawn (2 minutes).

Example: python bench/cluster_ardagna.py --data ../shared/data
"""

from pathlib import Path

import click

from gpusage.cli import tables
from gpusage_lab.cli.scores import show_scores
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.seeds import ardagna_cluster

USUAL = Path(__file__).resolve().parents[2] / "shared" / "data"


@click.command()
@click.option("--data", "folder", type=click.Path(path_type=Path), default=USUAL, help="Folder of the measurements.")
@click.option("--split", is_flag=True, help="Tell the error of the predicted cost apart, in place of all else.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(folder: Path, *, split: bool, as_json: bool) -> None:
    """Plan every instance and every scenario."""
    data = DataFolder(folder)
    if any(file not in data for file in ardagna_cluster.FILES):
        message = f"Folder '{folder}' must have {', '.join(ardagna_cluster.FILES)}; got none. Name it with --data."
        click.echo(message, err=True)
        return
    if split:
        show_scores([ardagna_cluster.split(data)])
        return
    instances, scenarios = ardagna_cluster.results(data)
    if as_json:
        tables.print_json(ardagna_cluster.document(instances, scenarios))
    else:
        show_scores(ardagna_cluster.tables(instances, scenarios))


if __name__ == "__main__":
    main()
