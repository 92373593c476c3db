"""Builds a Hugging Face model from its configuration on the meta device; code from a model's folder never runs."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from gpusage.graphs.guard import check_shape, printable, read_whole, shown
from gpusage.graphs.named import cards
from gpusage.graphs.quantisation import with_quantised_weights
from gpusage.graphs.torch.libraries import build_on_meta, import_library
from gpusage.graphs.torch.module import graph_from_module
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph

MAXIMUM_BYTES = 1024 * 1024
MAXIMUM_REPEATS = 512
"""Of anything that a model has many of, such as layers; the deepest published ones have fewer than 200."""
MAXIMUM_NUMBER = 2**31
DEFAULT_SEQUENCE = 128
_SEQUENCE_RANK = 2

_REPEATS = re.compile(r"layer|depth|block|expert|stage|stack|group")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_LEFT_OUT = ("auto_map", "quantization_config", "transformers_version", "_name_or_path", "_commit_hash")
"""What would fetch code or weights, or says where the file came from."""


def read_name(name: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph:
    """Return the graph of the model called *name*, from our own card of it where there is one.

    Raises:
        GraphError: As `build_name`.
    """
    card = None
    if not shape or set(shape) == {"seq"}:
        text = ",".join(f"{key}={'x'.join(map(str, sizes))}" for key, sizes in shape.items())
        card = cards.find(f"hf:{name}", text) or cards.find(f"hf:{name.rpartition('/')[2]}", text)
    graph = replace(card, name=printable(name), source=f"hf:{name}") if card else build_name(name, shape)
    return _with_defaults(graph, shape)


def build_name(name: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph:
    """Return the graph of a well-known model, or of one whose configuration is in the local Hugging Face cache.

    Raises:
        GraphError: Neither is so, or the model cannot be built.
    """
    known = known_models()
    source = f"hf:{name}"
    configuration = known.get(name) or known.get(name.rpartition("/")[2])
    cached = None if configuration else _cached(name)
    if cached is not None:
        configuration = _read(cached, source)
    if configuration is None:
        near = difflib.get_close_matches(name[:80], known, n=3)
        hint = f"Did you mean {' or '.join('hf:' + item for item in near)}? " if near else ""
        message = (
            f"Model {shown(source)} must be one of the {len(known)} that gpusage knows without a download; "
            f"got another name. {hint}Give the model's folder or its config.json instead."
        )
        raise GraphError(message)
    return _graph(configuration, name, source, shape)


def read_configuration(path: str, source: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph:
    """Return the graph of the model that the ``config.json`` at *path* describes.

    Raises:
        GraphError: It cannot be read, describes no model that transformers defines, or the model cannot be built.
    """
    graph = _graph(_read(path, source), Path(path).absolute().parent.name, source, shape)
    return _with_defaults(graph, shape)


def known_models() -> dict[str, dict[str, Any]]:
    """Return the configurations of well-known models, by their names without an organization."""
    text = resources.files("gpusage.graphs.named").joinpath("huggingface.json").read_text(encoding="utf-8")
    known: dict[str, dict[str, Any]] = json.loads(text)["models"]
    return known


def _cached(name: str) -> str | None:
    """Return the newest configuration of *name* that an earlier download left on this machine."""
    if not _NAME.fullmatch(name):
        return None
    home = os.environ.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or f"{home}/hub")
    paths = sorted(hub.glob(f"models--{name.replace('/', '--')}/snapshots/*/config.json"))
    return str(paths[-1]) if paths else None


def _read(path: str, source: str) -> dict[str, Any]:
    try:
        configuration = json.loads(read_whole(path, MAXIMUM_BYTES))
    except (ValueError, RecursionError) as error:
        message = f"Configuration of model {shown(source)} must be JSON; got something else. Check the file."
        raise GraphError(message) from error
    if not isinstance(configuration, dict) or not isinstance(configuration.get("model_type"), str):
        timm = configuration.get("architecture") if isinstance(configuration, dict) else None
        instead = f"Write timm:{printable(timm)}." if isinstance(timm, str) else "Give that of a transformers model."
        message = f"Configuration of model {shown(source)} must name its model_type; got none. {instead}"
        raise GraphError(message)
    return configuration


def _graph(configuration: dict[str, Any], name: str, source: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph:
    _check_figures(configuration, source)
    model = build_on_meta(lambda: _model(configuration, source), source)
    inputs = _inputs(model, shape)
    graph = graph_from_module(model, (), keywords=inputs, name=printable(name), origin=source)
    return with_quantised_weights(graph, configuration.get("quantization_config"))


def _with_defaults(graph: ModelGraph, shape: Mapping[str, Sequence[int]]) -> ModelGraph:
    return replace(graph, notes=(*graph.notes, *_default_notes(graph, shape)))


def _default_notes(graph: ModelGraph, shape: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Yield what is to be said of each sequence whose length nobody gave."""
    for place, (name, sizes) in enumerate(graph.inputs):
        key = "seq" if place == 0 else {"decoder_input_ids": "decoder_seq"}.get(name, name)
        given = {name, key, *(("sequence",) if place == 0 else ()), *(("seq",) if key == "decoder_seq" else ())}
        if len(sizes) == _SEQUENCE_RANK and not given & set(shape):
            default = f"{printable(name)} has a default length, {key}={sizes[1]}"
            yield f"{default}; set yours by shape={key}=N. With generate it does not count."


def _check_figures(configuration: object, source: str) -> None:
    for key, number in _figures(configuration, ""):
        limit = MAXIMUM_REPEATS if _REPEATS.search(key) and "size" not in key and "dim" not in key else MAXIMUM_NUMBER
        if abs(number) > limit:
            message = (
                f"Configuration of model {shown(source)} must have {shown(key)} of at most {limit}; got {number:.3g}. "
                "Check the file."
            )
            raise GraphError(message)


def _figures(value: object, key: str) -> Iterator[tuple[str, int]]:
    """Return every whole number of a configuration with the key that it stands under."""
    if isinstance(value, int):
        yield key, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _figures(item, str(name))
    elif isinstance(value, list):
        for item in value:
            yield from _figures(item, key)


def _model(configuration: dict[str, Any], source: str) -> Any:  # noqa: ANN401 - a torch.nn.Module
    transformers = import_library("transformers")
    model_type = configuration["model_type"]
    mapping = transformers.CONFIG_MAPPING
    if model_type not in mapping:
        near = difflib.get_close_matches(model_type[:80], list(mapping.keys()), n=1)
        hint = f"Did you mean {near[0]}?" if near else "Export the model to ONNX instead."
        message = (
            f"Model {shown(source)} must be of a type that transformers {transformers.__version__} defines; "
            f"got {shown(model_type)}. {hint}"
        )
        raise GraphError(message)
    arguments = {key: value for key, value in configuration.items() if key not in _LEFT_OUT}
    config = mapping[model_type].from_dict(arguments)
    config.use_cache = False
    for name in configuration.get("architectures") or ():
        kind = getattr(transformers, str(name), None)
        if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel):
            return _silenced(kind(config), transformers)
    return _silenced(transformers.AutoModel.from_config(config, trust_remote_code=False), transformers)


def _silenced(model: Any, transformers: Any) -> Any:  # noqa: ANN401 - libraries without types
    """Return *model* without its padding warning: to warn, it would read its inputs, which have no values."""
    for part in model.modules():
        if isinstance(part, transformers.PreTrainedModel):
            part.warn_if_padding_and_no_attention_mask = lambda *_: None
    return model


def _inputs(model: Any, shape: Mapping[str, Sequence[int]]) -> dict[str, Any]:  # noqa: ANN401 - a torch.nn.Module
    """Return example inputs for two samples, on the meta device: what the model's main input is decides."""
    torch = import_library("torch")
    main = str(model.main_input_name)
    sizes, kinds = _sizes(model.config, main)
    for name, given in shape.items():
        target = {"seq": main, "sequence": main, "decoder_seq": "decoder_input_ids"}.get(name, name)
        if target not in sizes or len(given) != len(sizes[target]) or min(given) < 1:
            known = ", ".join(f"{item}={'x'.join(map(str, size))}" for item, size in sizes.items())
            message = (
                f"Option shape must give an input of the model, as in {known}; got "
                f"{printable(name)}={'x'.join(map(str, given))}. Write it so, batch left out."
            )
            raise GraphError(message)
        sizes[target] = check_shape(given, "Option shape")
        if name == "seq" and "decoder_input_ids" in sizes and "decoder_seq" not in shape:
            sizes["decoder_input_ids"] = sizes[target][:1]
    _check_sizes(sizes)
    dtype = next((weight.dtype for weight in model.parameters() if weight.is_floating_point()), torch.float32)
    return {
        name: torch.empty((2, *size), dtype=torch.int64 if kinds[name] else dtype, device="meta")
        for name, size in sizes.items()
    }


def _check_sizes(sizes: Mapping[str, tuple[object, ...]]) -> None:
    """See that the configuration's own sizes of the inputs are some."""
    for name, size in sizes.items():
        if not all(isinstance(length, int) and length >= 1 for length in size):
            message = (
                f"Configuration must give input {shown(name)} sizes that are whole numbers of at least 1; "
                f"got {shown(str(size))}. Check the file."
            )
            raise GraphError(message)


def _sizes(config: Any, main: str) -> tuple[dict[str, tuple[int, ...]], dict[str, bool]]:  # noqa: ANN401
    """Return each input's sizes without the batch, and whether it holds whole numbers."""
    vision = getattr(config, "vision_config", config)
    side = getattr(vision, "image_size", None) or 224
    height, width = (side[0], side[-1]) if isinstance(side, (list, tuple)) else (side, side)
    channels = getattr(vision, "num_channels", None) or 3
    limits = [getattr(one, "max_position_embeddings", None) for one in (config, getattr(config, "text_config", config))]
    limit = limits[0] or limits[1] or DEFAULT_SEQUENCE
    sequence = (min(DEFAULT_SEQUENCE, int(limit)),)
    known: dict[str, tuple[tuple[int, ...], bool]] = {
        "pixel_values": ((channels, height, width), False),
        "input_values": ((16_000,), False),
        "input_features": (
            (getattr(config, "num_mel_bins", 80), 2 * int(getattr(config, "max_source_positions", 1500))),
            False,
        ),
    }
    sizes, whole = known.get(main, (sequence, True))
    inputs = {main: sizes}
    kinds = {main: whole}
    if hasattr(config, "vision_config") and main != "pixel_values":
        inputs["pixel_values"], kinds["pixel_values"] = known["pixel_values"]
    if hasattr(config, "vision_config") and hasattr(config, "text_config") and main == "pixel_values":
        inputs["input_ids"], kinds["input_ids"] = (16,), True
    if getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"], kinds["decoder_input_ids"] = sequence, True
    return inputs, kinds
