"""The papers' experiments remade, and what a part of a GPU costs, on public measurements.

``yeung``, ``ardagna``, ``kace`` and ``takayama`` are predictions; what ends in ``-cluster`` is a simulated cluster, and
takes minutes. ``share-price`` has RaPP's MPS percentages and ParvaGPU's and MISO's slices. Without a name, all are run.

Example: python bench/experiment.py kace --data ../shared/data
"""

import click

from gpusage_lab.learning import slowdown
from gpusage_lab.learning.slowdown_rows import FILES
from gpusage_lab.seeds import ardagna, ardagna_cluster, kace, takayama, takayama_cluster, yeung, yeung_cluster
from gpusage_lab.seeds.command import command_of

SEEDS = {
    "yeung": yeung,
    "yeung-cluster": yeung_cluster,
    "ardagna": ardagna,
    "ardagna-cluster": ardagna_cluster,
    "kace": kace,
    "takayama": takayama,
    "takayama-cluster": takayama_cluster,
}


@click.group(help=__doc__, invoke_without_command=True)
@click.pass_context
def main(context: click.Context) -> None:
    """Run every experiment where none is named."""
    if context.invoked_subcommand is None:
        for command in main.commands.values():
            command.main([], standalone_mode=False)


for name, seed in SEEDS.items():
    main.add_command(command_of(name, seed.tables, seed.FILES))
main.add_command(command_of("share-price", slowdown.evaluate, FILES))

if __name__ == "__main__":
    main()
