"""Makes the zoo: ``python -m gpusage_lab.zoo.make --data FOLDER``; what is there already is kept.

Cards are added line by line to a file beside the zoo, so that it can be stopped and run again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import click

import gpusage_planning
from gpusage.graphs.card.text import to_document
from gpusage_hooks.errors import GraphError
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.progress import track
from gpusage_lab.zoo.make_named import append_card, read_journal
from gpusage_lab.zoo.recipes import RECIPES, Recipe
from gpusage_planning.zoo import FILE_NAME, MAXIMUM_FILE_BYTES, dump_card, pack, unpack

TARGET = Path(gpusage_planning.__file__).with_name(FILE_NAME)


@click.command()
@click.option(
    "--data", type=click.Path(exists=True, file_okay=False), required=True, help="Folder of the measurements."
)
@click.option("--journal", type=click.Path(path_type=Path), default=Path("build/zoo.tsv"), show_default=True)
@click.option("--source", "sources", multiple=True, help="Only keys that begin with this text; may be repeated.")
@click.option("--pack-only", is_flag=True, help="Make no card; only join those in the journal.")
def main(*, data: str, journal: Path, sources: tuple[str, ...], pack_only: bool) -> None:
    """Make every card that is missing, and write the zoo."""
    journal.parent.mkdir(parents=True, exist_ok=True)
    cards = dict(unpack(TARGET.read_bytes()).cards) if TARGET.exists() else {}
    cards |= read_journal(journal)
    if not pack_only:
        recipes = {key: recipe for recipes_of in RECIPES for key, recipe in recipes_of(DataFolder(data)).items()}
        wanted = [key for key in recipes if key not in cards and key.startswith(sources or ("",))]
        cards |= _build_cards({key: recipes[key] for key in sorted(wanted, key=_shuffled)}, journal)
    content = pack(cards)
    if len(content) > MAXIMUM_FILE_BYTES:
        message = f"Zoo must be at most {MAXIMUM_FILE_BYTES} bytes; got {len(content)}. Leave models out."
        raise click.ClickException(message)
    TARGET.write_bytes(content)
    click.echo(f"{len(cards)} cards, {len(content)} bytes")


def _shuffled(key: str) -> str:
    """Order models as chance would, so that an unfinished zoo is a fair sample; the small sources first."""
    return f"{key.startswith('timm')}{hashlib.sha256(key.encode()).hexdigest()}"


def _build_cards(recipes: Mapping[str, Recipe], journal: Path) -> dict[str, str]:
    cards: dict[str, str] = {}
    for key in track(recipes, description="cards"):
        try:
            text = dump_card(to_document(recipes[key]()))
        except GraphError as error:
            click.echo(f"{key}: {error}", err=True)
            continue
        except Exception as error:  # a library's model may fail in its own way
            click.echo(f"{key}: {type(error).__name__}: {error}"[:300], err=True)
            continue
        cards[key] = text
        append_card(journal, key, text)
    return cards


if __name__ == "__main__":
    main()
