"""Takayama et al.'s assignment of jobs to GPU generations, scored by the share of the attainable gain over chance.

Needs no data: the graphs are in gpusage's zoo, the paper's measured times in the module.

Example: python bench/cluster_takayama.py --json
"""

import click

from gpusage.cli import tables
from gpusage_lab.cli.scores import show_scores
from gpusage_lab.seeds import takayama_cluster, takayama_online


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(*, as_json: bool) -> None:
    """Score every ranking."""
    if as_json:
        tables.print_json(takayama_cluster.document())
    else:
        show_scores([takayama_cluster.table(), takayama_online.table()])


if __name__ == "__main__":
    main()
