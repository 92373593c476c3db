"""Builds a Hugging Face model from its configuration on the meta device; code from a model's folder never runs."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from gpusage.graphs.model_files import check_shape, printable, quoted, read_bounded_file
from gpusage.graphs.named import cards, diffusion
from gpusage.graphs.quantization import with_quantized_weights
from gpusage.graphs.torch.libraries import build_on_meta, import_library
from gpusage.graphs.torch.module import graph_from_module
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph

MAXIMUM_BYTES = 1024 * 1024
MAXIMUM_REPEATS = 512
"""Of layers, blocks and the like; the deepest published models have fewer than 200 layers."""
MAXIMUM_NUMBER = 2**31
DEFAULT_SEQUENCE = 128
TEXT_NOTE = "Text alone is predicted: how images go in depends on values. 'gpusage capture' sees a whole step."
_SEQUENCE_RANK = 2

_REPEATS = re.compile(r"(?!.*(size|dim|channels)).*(layer|depth|block|expert|stage|stack|group)")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_SAME_SIZES = re.compile(r"(-chat|-instruct|-it|-base|-thinking)?(-v0\.\d)?(-\d{4})?(-hf|-diffusers)?$")
# Keys that would load code or weights, or that name the origin of the file.
_IGNORED_KEYS = ("auto_map", "quantization_config", "transformers_version", "_name_or_path", "_commit_hash")


def read_name(name: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph:
    """Return the graph of the model called *name*, from our card of it if there is one.

    Raises:
        GraphError: As `build_name`.
    """
    # A card spares the import of transformers, which takes many seconds.
    return read_card(name, shape) or _with_defaults(build_name(name, shape), shape)


def read_card(name: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph | None:
    """Return the graph of our card of the model called *name*, ``None`` if there is none at this *shape*."""
    of_card = find_card(name, shape)
    card = cards.find(*of_card) if of_card else None
    return _with_defaults(replace(card, name=printable(name), source=f"hf:{name}"), shape) if card else None


def find_card(name: str, shape: Mapping[str, Sequence[int]]) -> tuple[str, str] | None:
    """Return by which name and shape `cards.find` reads our card of the model, ``None`` if there is none."""
    if shape and set(shape) != {"seq"}:
        return None
    text = ",".join(f"{key}={'x'.join(map(str, sizes))}" for key, sizes in shape.items())
    sources = (f"hf:{name}", f"hf:{_canonical_name(name)}")
    return next(((source, text) for source in sources if cards.exists(source, text)), None)


def build_name(name: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph:
    """Return the graph of a well-known model, or of one whose configuration is in the local Hugging Face cache.

    Raises:
        GraphError: It is neither, or the model cannot be built.
    """
    source = f"hf:{name}"
    configuration = find_configuration(name)
    if configuration is None:
        known = known_models()
        near = difflib.get_close_matches(name[:80], known, n=3)
        hint = f"Did you mean {' or '.join('hf:' + item for item in near)}? " if near else ""
        message = (
            f"Model {quoted(source)} must be one of the {len(known)} that gpusage knows without a download; "
            f"got another name. {hint}Give the model's folder or its config.json instead."
        )
        raise GraphError(message)

    return _build_graph(configuration, name, source, shape)


def find_configuration(name: str) -> dict[str, Any] | None:
    """Return the configuration of a well-known model, or one in the local Hugging Face cache; ``None`` for neither.

    Raises:
        GraphError: The one in the local cache cannot be read.
    """
    known = known_models()
    configuration = known.get(name) or known.get(_canonical_name(name))
    cached = None if configuration else _cached(name)
    return configuration if cached is None else _read_configuration_file(cached, f"hf:{name}")


def read_configuration(path: str, source: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph:
    """Return the graph of the model that the ``config.json`` at *path* describes.

    Raises:
        GraphError: It cannot be read, describes no model that transformers defines, or the model cannot be built.
    """
    graph = _build_graph(_read_configuration_file(path, source), Path(path).absolute().parent.name, source, shape)
    return _with_defaults(graph, shape)


def known_models() -> dict[str, dict[str, Any]]:
    """Return the configurations of well-known models, by their names without an organization."""
    text = resources.files("gpusage.graphs.named").joinpath("huggingface.json").read_text(encoding="utf-8")
    known: dict[str, dict[str, Any]] = json.loads(text)["models"]
    return known


def _canonical_name(name: str) -> str:
    """Return the Hub's *name* as gpusage writes it: ``llama-2-7b`` of ``meta-llama/Llama-2-7b-hf``.

    Without the organization, capitals, ``Meta-`` and suffixes for a format, a month or a tuning, which change no size:
    ``-hf``, ``-it``, ``-Instruct-v0.2``.
    """
    short = name.rpartition("/")[2].lower().removeprefix("meta-")
    return short if short in known_models() else _SAME_SIZES.sub("", short)


def _cached(name: str) -> str | None:
    """Return the newest configuration of *name* that an earlier download left on this machine."""
    if not _NAME.fullmatch(name):
        return None
    # The layout of huggingface_hub's cache.
    home = os.environ.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or f"{home}/hub")
    paths = sorted(hub.glob(f"models--{name.replace('/', '--')}/snapshots/*/config.json"))
    return str(paths[-1]) if paths else None


def _read_configuration_file(path: str, source: str) -> dict[str, Any]:
    try:
        configuration = json.loads(read_bounded_file(path, MAXIMUM_BYTES))
    except (ValueError, RecursionError) as error:
        message = f"Configuration of model {quoted(source)} must be JSON; got something else. Check the file."
        raise GraphError(message) from error
    names = configuration if isinstance(configuration, dict) else {}
    if not isinstance(names.get("model_type"), str) and not isinstance(names.get("_class_name"), str):
        timm = names.get("architecture")
        instead = f"Write timm:{printable(timm)}." if isinstance(timm, str) else "Give that of a transformers model."
        message = f"Configuration of model {quoted(source)} must name its model_type; got none. {instead}"
        raise GraphError(message)

    return names


def _build_graph(
    configuration: dict[str, Any], name: str, source: str, shape: Mapping[str, Sequence[int]]
) -> ModelGraph:
    _check_numbers(configuration, source)
    is_denoiser = "model_type" not in configuration
    build = diffusion.build_denoiser if is_denoiser else build_model
    model = build_on_meta(lambda: build(configuration, source), source)
    if is_denoiser:
        sizes = with_shape(diffusion.input_sizes(model, source), shape, {})
        inputs, notes = diffusion.example_inputs(model, sizes), [diffusion.DENOISER_NOTE]
    else:
        inputs, notes = example_inputs(model, shape), []
        if (kind := configuration["model_type"]) not in import_library("transformers").CONFIG_MAPPING:
            notes = [
                f"transformers does not define {printable(kind)}: {type(model).__name__} is predicted in its place."
            ]
    read = partial(graph_from_module, model, (), name=printable(name), origin=source)
    try:
        graph = read(keywords=inputs)
    except GraphError:
        # How a picture's patches go into the text depends on values, or on inputs that its processor makes.
        if {"input_ids", "pixel_values"} - inputs.keys():
            raise
        notes.append(TEXT_NOTE)
        try:
            graph = read(keywords={"input_ids": inputs["input_ids"]})
        except GraphError:
            if not (text := _text_of(configuration)):
                raise
            graph = _build_graph(text, name, source, shape)
    graph = replace(graph, notes=(*graph.notes, *notes))
    return with_quantized_weights(graph, configuration.get("quantization_config"))


def _text_of(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of the text model within one of several, empty without it."""
    text = configuration.get("text_config")
    if not isinstance(text, dict) or not isinstance(text.get("model_type"), str):
        return {}
    # A part names no class: that of its type with the layer that writes words.
    heads = import_library("transformers.models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return {"architectures": [heads.get(text["model_type"])], **text}


def _with_defaults(graph: ModelGraph, shape: Mapping[str, Sequence[int]]) -> ModelGraph:
    """Return *graph* with a note on each sequence that has a default length."""
    notes = [*graph.notes]
    if any(name == "timestep" for name, _ in graph.inputs):
        return graph  # a denoiser's are widths, not lengths
    for place, (name, sizes) in enumerate(graph.inputs):
        key = "seq" if place == 0 else {"decoder_input_ids": "decoder_seq"}.get(name, name)
        keys = {name, key, *(("sequence",) if place == 0 else ()), *(("seq",) if key == "decoder_seq" else ())}
        if len(sizes) == _SEQUENCE_RANK and not keys & set(shape):
            default = f"{printable(name)} has a default length, {key}={sizes[1]}"
            notes.append(f"{default}; set yours by shape={key}=N. With generate it does not count.")
    return replace(graph, notes=tuple(notes))


def _check_numbers(configuration: object, source: str) -> None:
    """Reject a configuration of millions of layers, which would take its builder hours and all memory."""
    for key, number in _iter_integers(configuration, ""):
        limit = MAXIMUM_REPEATS if _REPEATS.match(key) else MAXIMUM_NUMBER
        if abs(number) > limit:
            message = (
                f"Configuration of model {quoted(source)} must have {quoted(key)} of at most {limit}; "
                f"got {number:.3g}. Check the file."
            )
            raise GraphError(message)


def _iter_integers(value: object, key: str) -> Iterator[tuple[str, int]]:
    """Yield every integer in a configuration with its key."""
    if isinstance(value, int):
        yield key, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _iter_integers(item, str(name))
    elif isinstance(value, list):
        for item in value:
            yield from _iter_integers(item, key)


def build_model(configuration: dict[str, Any], source: str) -> Any:  # a torch.nn.Module
    """Return the model of a configuration; call it within `build_on_meta` for one without weights.

    Raises:
        GraphError: transformers has no such type of models.
    """
    transformers = import_library("transformers")
    model_type = configuration["model_type"]
    mapping = transformers.CONFIG_MAPPING
    classes = [getattr(transformers, str(name), None) for name in configuration.get("architectures") or ()]
    architecture = next(
        (each for each in classes if isinstance(each, type) and issubclass(each, transformers.PreTrainedModel)), None
    )
    # A model of images and text that is newer than transformers may have a text model that is not.
    text = _text_of(configuration)
    if model_type not in mapping and text.get("model_type") in mapping:
        return build_model(text, source)
    # Some have a type of their own, and the class of another: kimi_k2 is a DeepseekV3ForCausalLM.
    config_class = mapping[model_type] if model_type in mapping else getattr(architecture, "config_class", None)
    if config_class is None:
        near = difflib.get_close_matches(model_type[:80], list(mapping.keys()), n=1)
        hint = f"Did you mean {near[0]}?" if near else "Export the model to ONNX instead."
        message = (
            f"Model {quoted(source)} must be of a type that transformers {transformers.__version__} defines; "
            f"got {quoted(model_type)}. {hint}"
        )
        raise GraphError(message)

    arguments = {key: value for key, value in configuration.items() if key not in _IGNORED_KEYS}
    config = config_class.from_dict({**arguments, "model_type": config_class.model_type})
    # A cache of keys and values is counted by its rule, not by the graph.
    config.use_cache = False
    if architecture is None:
        return _without_padding_warning(
            transformers.AutoModel.from_config(config, trust_remote_code=False), transformers
        )
    return _without_padding_warning(architecture(config), transformers)


def _without_padding_warning(model: Any, transformers: Any) -> Any:  # libraries without types
    """Return *model* without its padding warning, which would read the values of its inputs on the meta device."""
    for part in model.modules():
        if isinstance(part, transformers.PreTrainedModel):
            part.warn_if_padding_and_no_attention_mask = lambda *_: None
    return model


def example_inputs(model: Any, shape: Mapping[str, Sequence[int]]) -> dict[str, Any]:  # a torch.nn.Module
    """Return example inputs for two samples, on the meta device; the model's main input decides which ones."""
    torch = import_library("torch")
    main = str(model.main_input_name)
    sizes, kinds = _input_sizes(model.config, main)
    sizes = with_shape(sizes, shape, {"seq": main, "sequence": main, "decoder_seq": "decoder_input_ids"})
    if "seq" in shape and "decoder_input_ids" in sizes and not {"decoder_seq", "decoder_input_ids"} & shape.keys():
        sizes["decoder_input_ids"] = sizes[main][:1]

    _check_sizes(sizes)
    dtype = next((weight.dtype for weight in model.parameters() if weight.is_floating_point()), torch.float32)
    return {
        name: torch.empty((2, *size), dtype=torch.int64 if kinds[name] else dtype, device="meta")
        for name, size in sizes.items()
    }


def with_shape(
    sizes: Mapping[str, tuple[int, ...]], shape: Mapping[str, Sequence[int]], other_names: Mapping[str, str]
) -> dict[str, tuple[int, ...]]:
    """Return the *sizes* of inputs as the user's *shape* has them, which may use *other_names* for them.

    Raises:
        GraphError: It names another input, or has too many or too few sizes.
    """
    sizes = dict(sizes)
    for name, wanted in shape.items():
        target = other_names.get(name, name)
        if target not in sizes or len(wanted) != len(sizes[target]) or min(wanted) < 1:
            known = ", ".join(f"{item}={'x'.join(map(str, size))}" for item, size in sizes.items())
            message = (
                f"Option shape must give an input of the model, as in {known}; got "
                f"{printable(name)}={'x'.join(map(str, wanted))}. Write it so, batch left out."
            )
            raise GraphError(message)
        sizes[target] = check_shape(wanted, "Option shape")
    return sizes


def _check_sizes(sizes: Mapping[str, tuple[object, ...]]) -> None:
    """Reject a configuration whose sizes of the inputs are not positive integers."""
    for name, size in sizes.items():
        if not all(isinstance(length, int) and length >= 1 for length in size):
            message = (
                f"Configuration must give input {quoted(name)} sizes that are whole numbers of at least 1; "
                f"got {quoted(str(size))}. Check the file."
            )
            raise GraphError(message)


def _input_sizes(config: Any, main: str) -> tuple[dict[str, tuple[int, ...]], dict[str, bool]]:
    """Return each input's sizes without the batch, and whether it holds integers."""
    # A model of images and text has a configuration inside for each.
    vision = getattr(config, "vision_config", config)
    backbone = getattr(vision, "backbone_config", None)  # of SAM 2, which has its size there
    side = getattr(vision, "image_size", None) or getattr(backbone, "image_size", None) or 224
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
