"""Makes the cards of named models: ``python -m gpusage_lab.zoo.make_named``; needs the extra [torch].

Cards are added line by line to a journal, so that it can be stopped and run again; what the file holds already is kept
unless ``--anew`` is given, as after an update of the libraries.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import click

from gpusage.graphs.card.text import to_document
from gpusage.graphs.named import cards as named_cards
from gpusage.graphs.named import huggingface, image_libraries
from gpusage.graphs.named.cards import INDEX
from gpusage.graphs.torch.libraries import import_library
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph

BLOCK_CARDS = 32


class Contents(NamedTuple):
    """What the file holds.

    Attributes:
        names: Each name that a user may write, and its card's key, as `gpusage.graphs.named.cards.names` has them.
        cards: Each key's card, as JSON.
        made_with: The libraries' versions.
    """

    names: Mapping[str, str]
    cards: Mapping[str, str]
    made_with: Mapping[str, str]


def pack(contents: Contents) -> bytes:
    """Return the file's content."""
    keys = sorted(contents.cards)
    blocks = [keys[start : start + BLOCK_CARDS] for start in range(0, len(keys), BLOCK_CARDS)]
    index = {
        "made_with": dict(sorted(contents.made_with.items())),
        "names": dict(sorted(contents.names.items())),
        "blocks": {key: number for number, block in enumerate(blocks) for key in block},
    }
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        _add(archive, INDEX, json.dumps(index, separators=(",", ":")))
        for number, block in enumerate(blocks):
            _add(archive, str(number), "".join(f"{key}\t{contents.cards[key]}\n" for key in block))
    return content.getvalue()


def unpack(content: bytes) -> Contents:
    """Return what `pack` put into *content*."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        index = json.loads(archive.read(INDEX))
        count = max(index["blocks"].values(), default=-1) + 1
        lines = [line for number in range(count) for line in archive.read(str(number)).decode("ascii").splitlines()]
    cards = dict(line.partition("\t")[::2] for line in lines)
    return Contents(names=index["names"], cards=cards, made_with=index["made_with"])


def _add(archive: zipfile.ZipFile, name: str, text: str) -> None:
    archive.writestr(zipfile.ZipInfo(name), text.encode("ascii"), zipfile.ZIP_LZMA)


def read_journal(path: Path) -> dict[str, str]:
    """Return the cards by key; a line that was cut off is left out, and a journal that is not there is empty."""
    lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
    return dict(line.partition("\t")[::2] for line in lines if line.endswith("}"))


def append_card(path: Path, key: str, card: str) -> None:
    """Add one card."""
    with path.open("a", encoding="ascii") as file:
        file.write(f"{key}\t{card}\n")


TARGET = Path(named_cards.__file__).with_name(named_cards.FILE_NAME)
LIBRARIES = ("diffusers", "timm", "torchvision", "transformers")
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
    cards |= read_journal(journal)
    names: dict[str, str] = {}
    wanted = [*timm_models(), *torchvision_models(), *huggingface_models()]
    for number, (name, key, recipe) in enumerate(wanted):
        if key not in cards and (new_card := _build_card(key, recipe)):
            cards[key] = new_card
            append_card(journal, key, new_card)
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
    for name, configuration in huggingface.known_models().items():
        yield f"hf:{name}", f"hf:{name}@", partial(huggingface.build_name, name, {})
        for length in SEQUENCES if "model_type" in configuration else ():
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
