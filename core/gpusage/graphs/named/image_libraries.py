"""Reads the image models of timm and torchvision by name: from our card, else from the library's definition."""

from __future__ import annotations

import difflib
import importlib.util
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpusage.graphs.model_files import check_shape, printable, quoted
from gpusage.graphs.named import cards
from gpusage.graphs.torch.libraries import build_on_meta, import_library
from gpusage.graphs.torch.module import graph_from_module
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph

_NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?")
# Of a clip in torchvision's accuracy tables of video models.
_VIDEO_FRAMES = 16
Size = tuple[int, ...]


def read(library: str, name: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph:
    """Return the graph of the model that *library* calls *name*, from our card of it if there is one.

    Raises:
        GraphError: As `build`.
    """
    card, source = read_card(library, name, shape), f"{library}:{name}"
    if card is not None:
        return card
    if cards.default_shape(source) is None and not _is_in_sources(library, name):
        _refuse_unknown(source, library)
    return build(library, name, shape)


def read_card(library: str, name: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph | None:
    """Return the graph of our card of the model that *library* calls *name*, ``None`` if there is none at this *shape*.

    Raises:
        GraphError: No image has such a shape.
    """
    source = f"{library}:{name}"
    default = cards.default_shape(source)
    if default is None:
        return None
    return cards.find(source, "x".join(map(str, _image_size(tuple(map(int, default.split("x"))), shape))))


def _is_in_sources(library: str, name: str) -> bool:
    """Return whether *library* may define the model *name*: a text search takes 0.2 s, importing the library ten."""
    spec = importlib.util.find_spec(library)
    if spec is None or spec.origin is None:
        return False
    word = re.compile(rf"\b{re.escape(name.partition('.')[0])}\b")
    sources = (Path(spec.origin).parent / "models").rglob("*.py")
    return any(word.search(path.read_text(encoding="utf-8", errors="replace")) for path in sources)


def _refuse_unknown(source: str, library: str) -> None:
    """Raise with the models that *source* resembles, if any of our cards has such a name.

    Raises:
        GraphError: There are such models.
    """
    near = difflib.get_close_matches(source[:80], cards.names(), n=3)
    if not near:
        return

    rule = f"one that {library} defines; got an unknown name"
    if importlib.util.find_spec(library) is None:
        rule = f"one that gpusage has a card of, or {library} must be installed; got neither"
    message = f"Model {quoted(source)} must be {rule}. Did you mean {' or '.join(near)}?"
    raise GraphError(message)


def build(library: str, name: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph:
    """Return the graph of the model as *library* defines it.

    Raises:
        GraphError: The library is not installed, has no such model, or the model does not take this shape.
    """
    if library == "timm":
        # A tag after the model's name says which weights: not every model has every tag.
        timm = import_library("timm")
        known, size, make = timm.list_models() + timm.list_models(pretrained=True), timm_size, _timm_model
    else:
        known, size, make = import_library("torchvision").models.list_models(), torchvision_size, _torchvision_model
    source = f"{library}:{name}"
    if not _NAME.fullmatch(name) or name not in known:
        near = difflib.get_close_matches(name[:80], known, n=3)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"See {library}.list_models()."
        message = f"Model {quoted(source)} must be one that {library} defines; got an unknown name. {hint}"
        raise GraphError(message)

    default = size(name)
    wanted = _image_size(default, shape)
    module = build_on_meta(lambda: make(name, wanted, default), source)
    images = import_library("torch").empty((2, *wanted), device="meta")
    return graph_from_module(module, (images,), name=name, origin=source)


def _image_size(default: Size, shape: Mapping[str, Sequence[int]]) -> Size:
    """Return the size of one image: from *shape*, else *default*."""
    unknown = sorted(shape.keys() - {"input", "x", "size"})
    if unknown:
        message = (
            f"Option shape of an image model must name 'input' or 'size'; got {quoted(unknown[0])}. "
            f"Write input={'x'.join(map(str, default))}."
        )
        raise GraphError(message)

    for name, sizes in shape.items():
        if name == "size" and len(sizes) == 1:
            sizes = (*default[:-2], sizes[0], sizes[0])  # noqa: PLW2901 - the same request, in full
        if len(sizes) != len(default) or min(sizes) < 1:
            actual = "x".join(map(str, sizes))
            message = (
                f"Option shape {name} must have {len(default)} positive sizes, batch left out; "
                f"got {printable(actual)}. Write input={'x'.join(map(str, default))}."
            )
            raise GraphError(message)
        return check_shape(sizes, "Option shape")

    return default


def timm_size(name: str) -> Size:
    """Return the image size in timm's configuration of the model."""
    configuration = import_library("timm").get_pretrained_cfg(name, allow_unregistered=True)
    return tuple(configuration.input_size) if configuration is not None else (3, 224, 224)


def _timm_model(name: str, wanted: Size, default: Size) -> Any:  # a torch.nn.Module
    """Return the model for images of size *wanted*; only some, such as vision transformers, take ``img_size``."""
    timm = import_library("timm")
    options = {} if wanted[0] == default[0] else {"in_chans": wanted[0]}
    if wanted[1:] != default[1:]:
        try:
            return timm.create_model(name, pretrained=False, img_size=wanted[1:], **options)
        except TypeError:
            pass

    return timm.create_model(name, pretrained=False, **options)


def torchvision_size(name: str) -> Size:
    """Return the image size of the model's first published weights."""
    models = import_library("torchvision").models
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        published = list(models.get_model_weights(name))
        if not published:
            return (3, 224, 224)
        # The preparation of the published weights has the size of their images.
        preparation = published[0].transforms()

    sides = getattr(preparation, "crop_size", None) or getattr(preparation, "resize_size", None) or [224]
    if "Detection" in type(preparation).__name__:
        # A detector resizes its pictures itself, and most of COCO's are of 4:3.
        own = build_on_meta(lambda: _torchvision_model(name, (), ()), name).transform
        sides = own.fixed_size or (own.min_size[-1], own.min_size[-1] * 4 // 3)
    height, width = (sides[0], sides[-1])
    frames = (_VIDEO_FRAMES,) if "Video" in type(preparation).__name__ else ()
    return (3, *frames, height, width)


def _torchvision_model(name: str, wanted: Size, default: Size) -> Any:  # a torch.nn.Module
    models = import_library("torchvision").models
    # No download of weights, of the backbone either.
    options: dict[str, Any] = {"weights": None}
    builder = models.get_model_builder(name)
    if "weights_backbone" in builder.__annotations__:
        options["weights_backbone"] = None
    if name.startswith("vit_") and wanted != default:
        options["image_size"] = wanted[-1]

    return builder(**options)
