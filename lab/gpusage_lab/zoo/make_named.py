"""Makes the cards of named models: ``python -m gpusage_lab.zoo.make_named``; needs the extra [torch].

Cards are added line by line to a journal, so that it can be stopped and run again; what the file holds already is kept
unless ``--anew`` is given, as after an update of the libraries.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from gpusage.graphs.card.text import to_document
from gpusage.graphs.named import cards as named_cards
from gpusage.graphs.named import huggingface, image_libraries
from gpusage.graphs.torch.libraries import import_library
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph
from gpusage_lab.zoo.journal import add, read
from gpusage_lab.zoo.named_cards import Contents, pack, unpack

TARGET = Path(named_cards.__file__).with_name(named_cards.FILE_NAME)
LIBRARIES = ("timm", "torchvision", "transformers")
SEQUENCES = (256, 512, 1024)
"""Lengths of text beside the default that users ask for most."""

Recipe = Callable[[], ModelGraph]
Named = tuple[str, str, Recipe]
"""A name that a user may write, its card's key, and how the card is made."""


@click.command()
@click.option("--journal", type=click.Path(path_type=Path), default=Path("build/named.tsv"), show_default=True)
@click.option("--anew", is_flag=True, help="Make every card again.")
def main(*, journal: Path, anew: bool) -> None:
    """Make every card that is missing, and write the file."""
    journal.parent.mkdir(parents=True, exist_ok=True)
    cards = {} if anew or not TARGET.exists() else dict(unpack(TARGET.read_bytes()).cards)
    cards |= read(journal)
    names: dict[str, str] = {}
    wanted = [*timm_models(), *torchvision_models(), *huggingface_models()]
    for number, (name, key, recipe) in enumerate(wanted):
        if key not in cards and (new_card := _build_card(key, recipe)):
            cards[key] = new_card
            add(journal, key, new_card)
            click.echo(f"{number} of {len(wanted)}: {key}")
        if key in cards:
            names.setdefault(name, key)
    keys = {key for _, key, _ in wanted}
    made_with = {library: version(library) for library in LIBRARIES}
    cards_by_key = {key: card for key, card in cards.items() if key in keys}
    content = pack(Contents(names=names, cards=cards_by_key, made_with=made_with))
    TARGET.write_bytes(content)
    click.echo(f"{len(names)} names, {len(cards_by_key)} cards, {len(content)} bytes")


def timm_models() -> Iterator[Named]:
    """Yield timm's architectures, and its weights' names; most weights of one architecture share its card."""
    timm = import_library("timm")
    for name in (*timm.list_models(), *timm.list_pretrained()):
        architecture = name.partition(".")[0]
        size, plain = image_libraries.timm_size(name), _class_count(name) == _class_count(architecture)
        base = architecture if plain else name
        yield f"timm:{name}", f"timm:{base}@{_text(size)}", partial(image_libraries.build, "timm", base, _input(size))


def torchvision_models() -> Iterator[Named]:
    """Yield torchvision's models."""
    for name in import_library("torchvision").models.list_models():
        size = image_libraries.torchvision_size(name)
        key = f"torchvision:{name}@{_text(size)}"
        yield f"torchvision:{name}", key, partial(image_libraries.build, "torchvision", name, {})


def huggingface_models() -> Iterator[Named]:
    """Yield the models of huggingface.json, those of text at several lengths."""
    for name in huggingface.known_models():
        yield f"hf:{name}", f"hf:{name}@", partial(huggingface.build_name, name, {})
        for length in SEQUENCES:
            recipe = partial(huggingface.build_name, name, {"seq": (length,)})
            yield f"hf:{name}", f"hf:{name}@seq={length}", recipe


def _class_count(name: str) -> int | None:
    configuration = import_library("timm").get_pretrained_cfg(name, allow_unregistered=True)
    return None if configuration is None else int(configuration.num_classes)


def _text(size: tuple[int, ...]) -> str:
    return "x".join(map(str, size))


def _input(size: tuple[int, ...]) -> dict[str, Any]:
    return {"input": size}


def _build_card(key: str, recipe: Recipe) -> str | None:
    """Return a card as one line of JSON, ``None`` where the library cannot build the model so."""
    try:
        return json.dumps(to_document(recipe()), separators=(",", ":"), ensure_ascii=True)
    except GraphError as error:
        click.echo(f"{key}: {error}", err=True)
    except Exception as error:  # a library's model may fail in its own way
        click.echo(f"{key}: {type(error).__name__}: {error}"[:300], err=True)
    return None


if __name__ == "__main__":
    main()
