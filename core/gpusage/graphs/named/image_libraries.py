"""Reads the image models of timm and torchvision by name: from a card of ours, else built on the meta device."""

from __future__ import annotations

import difflib
import importlib.util
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from gpusage.graphs.guard import check_shape, printable, shown
from gpusage.graphs.named import cards
from gpusage.graphs.torch.libraries import build_on_meta, import_library
from gpusage.graphs.torch.module import graph_from_module
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph

_NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?")
_VIDEO_FRAMES = 16
"""As torchvision's own accuracy tables use for its video models."""
Size = tuple[int, ...]


def read(library: str, name: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph:
    """Return the graph of the model that *library* calls *name*, from our own card of it where there is one.

    Raises:
        GraphError: As `build`.
    """
    source = f"{library}:{name}"
    default = cards.default_shape(source)
    if default is not None:
        wanted = _wanted(tuple(map(int, default.split("x"))), shape)
        card = cards.find(source, "x".join(map(str, wanted)))
        if card is not None:
            return card
    elif importlib.util.find_spec(library) is None:
        _refuse_unknown(source)
    return build(library, name, shape)


def _refuse_unknown(source: str) -> None:
    """Say what *source* may have been meant to be, where the names of our cards are all that is known here.

    Raises:
        GraphError: Some of them are like it.
    """
    near = difflib.get_close_matches(source[:80], cards.names(), n=3)
    if near:
        message = (
            f"Model {shown(source)} must be one that gpusage has a card of, or its library must be installed; "
            f"got neither. Did you mean {' or '.join(near)}?"
        )
        raise GraphError(message)


def build(library: str, name: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph:
    """Return the graph of the model as *library* defines it.

    Raises:
        GraphError: The library is not installed, has no such model, or the model does not take this shape.
    """
    known = _timm_names if library == "timm" else _torchvision_names
    _check_name(library, name, known())
    default = timm_size(name) if library == "timm" else torchvision_size(name)
    wanted = _wanted(default, shape)
    make = _timm_model if library == "timm" else _torchvision_model
    source = f"{library}:{name}"
    module = build_on_meta(lambda: make(name, wanted, default), source)
    return graph_from_module(module, (_pixels(wanted),), name=name, origin=source)


def _check_name(library: str, name: str, known: Sequence[str]) -> None:
    if _NAME.fullmatch(name) and name.partition(".")[0] in known:
        return
    near = difflib.get_close_matches(name[:80], known, n=3)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"See {library}.list_models()."
    message = f"Model {shown(f'{library}:{name}')} must be one that {library} defines; got an unknown name. {hint}"
    raise GraphError(message)


def _wanted(default: Size, shape: Mapping[str, Sequence[int]]) -> Size:
    """Return the size of one image: as *shape* says, else *default*."""
    unknown = sorted(shape.keys() - {"input", "x", "size"})
    if unknown:
        message = (
            f"Option shape of an image model must name 'input' or 'size'; got {shown(unknown[0])}. "
            f"Write input={'x'.join(map(str, default))}."
        )
        raise GraphError(message)
    for name, sizes in shape.items():
        if name == "size" and len(sizes) == 1:
            sizes = (*default[:-2], sizes[0], sizes[0])  # noqa: PLW2901 - the same wish, spelt out
        if len(sizes) != len(default) or min(sizes) < 1:
            given = "x".join(map(str, sizes))
            message = (
                f"Option shape {name} must have {len(default)} positive sizes, batch left out; got {printable(given)}. "
                f"Write input={'x'.join(map(str, default))}."
            )
            raise GraphError(message)
        return check_shape(sizes, "Option shape")
    return default


def _pixels(size: Size) -> Any:  # noqa: ANN401 - a torch.Tensor
    torch = import_library("torch")
    return torch.empty((2, *size), device="meta")


def _timm_names() -> list[str]:
    names: list[str] = import_library("timm").list_models()
    return names


def timm_size(name: str) -> Size:
    """Return the size that timm gives the model's images."""
    configuration = import_library("timm").get_pretrained_cfg(name, allow_unregistered=True)
    return tuple(configuration.input_size) if configuration is not None else (3, 224, 224)


def _timm_model(name: str, wanted: Size, default: Size) -> Any:  # noqa: ANN401 - a torch.nn.Module
    """Return the model; transformers have their image size built in, most others know no such option."""
    timm = import_library("timm")
    options = {} if wanted[0] == default[0] else {"in_chans": wanted[0]}
    if wanted[1:] != default[1:]:
        try:
            return timm.create_model(name, pretrained=False, img_size=wanted[1:], **options)
        except TypeError:
            pass
    return timm.create_model(name, pretrained=False, **options)


def _torchvision_names() -> list[str]:
    names: list[str] = import_library("torchvision").models.list_models()
    return names


def torchvision_size(name: str) -> Size:
    """Return the size that the model's first published weights were trained for."""
    models = import_library("torchvision").models
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        published = list(models.get_model_weights(name))
        if not published:
            return (3, 224, 224)
        preparation = published[0].transforms()
    sides = getattr(preparation, "crop_size", None) or getattr(preparation, "resize_size", None) or [224]
    height, width = (sides[0], sides[-1])
    frames = (_VIDEO_FRAMES,) if "Video" in type(preparation).__name__ else ()
    return (3, *frames, height, width)


def _torchvision_model(name: str, wanted: Size, default: Size) -> Any:  # noqa: ANN401 - a torch.nn.Module
    models = import_library("torchvision").models
    options: dict[str, Any] = {"weights": None}
    builder = models.get_model_builder(name)
    if "weights_backbone" in builder.__annotations__:
        options["weights_backbone"] = None
    if name.startswith("vit_") and wanted != default:
        options["image_size"] = wanted[-1]
    return builder(**options)
