"""The built-in reader: a model is a file of a format, a name that a library gives it, or a Hugging Face configuration.

A submission reads one model of one format, so the module of a format is imported when a source is of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import PurePath

from gpusage.graphs.model_files import quoted
from gpusage_hooks import hookimpl
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph

CARD_SUFFIX, ONNX_SUFFIX, PROGRAM_SUFFIX = ".card.json", ".onnx", ".pt2"
CONFIGURATION = "config.json"
PICKLES = frozenset({".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth", ".safetensors", ".tar"})
FOREIGN = frozenset({".engine", ".gguf", ".ggml", ".h5", ".joblib", ".keras", ".mlmodel", ".pb", ".plan", ".tflite"})
"""File formats of llama.cpp, Keras, TensorFlow, TensorRT, Core ML and scikit-learn."""
LIBRARIES = ("timm", "torchvision", "hf")
_BARE_NAME, _HUB_NAME = re.compile(r"[\w.-]{1,80}"), re.compile(r"\w[\w.-]{0,80}/\w[\w.-]{0,80}")

# What a folder without a config.json is, by the first pattern that a file in it matches, and what to do instead.
_FOLDER_KINDS = {
    "adapter_config.json": (
        "adapters alone",
        "Name the model that they adapt, its folder or hf:NAME, with trainable= for training.",
    ),
    "model_index.json": (
        "a pipeline of several models (diffusers)",
        "Give the folder of the one that takes the time, its unet or transformer.",
    ),
    "modules.json": ("modules of sentence-transformers", "Give the folder of its Transformer, such as 0_Transformer."),
    "*.onnx": ("{}", "Give the file itself: {}."),
    "*.pt2": ("{}", "Give the file itself: {}."),
    "*.gguf": ("weights for llama.cpp", "Give the Hugging Face folder that they were made from, or hf:NAME."),
    "saved_model.pb": ("a SavedModel of TensorFlow", "Convert it to ONNX with tf2onnx."),
    **dict.fromkeys(
        ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pt", "*.pth", "*.ckpt"),
        ("weights alone, {}", "Put the model's config.json beside them, or name the model: hf:NAME, timm:NAME."),
    ),
}


@hookimpl(trylast=True)
def read_model(source: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph | None:
    """Read the graph of a model; *shape* gives its free dimensions beside the batch."""
    # A library's prefix counts, even where there is a file of that name.
    library, colon, name = source.partition(":")
    if colon and library in LIBRARIES:
        from gpusage.graphs.named import huggingface, image_libraries

        return huggingface.read_name(name, shape) if library == "hf" else image_libraries.read(library, name, shape)
    # Before the suffixes: a folder may be called net.onnx.
    configuration = configuration_path(source)
    if configuration is not None:
        from gpusage.graphs.named import huggingface

        return huggingface.read_configuration(configuration, source, shape)
    if source.endswith(CARD_SUFFIX):
        from gpusage.graphs.card import text

        return text.read_model(source, shape)
    if source.lower().endswith(ONNX_SUFFIX):
        from gpusage.graphs.onnx import reader

        return reader.read_model(source, shape)
    if source.lower().endswith(PROGRAM_SUFFIX):
        from gpusage.graphs.torch import pt2

        return pt2.read_model(source, shape)

    _refuse_near_miss(source)
    return None


def read_card(source: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph | None:
    """Return the graph of the model called *source*, of which gpusage has a card; ``None`` of any other.

    No file but our own is opened for it, and no library imported: gpusaged calls this with what users write.

    Raises:
        GraphError: A model of images has no such shape.
    """
    library, _, name = source.partition(":")
    if library not in LIBRARIES:
        return None
    from gpusage.graphs.named import huggingface, image_libraries

    return huggingface.read_card(name, shape) if library == "hf" else image_libraries.read_card(library, name, shape)


def _refuse_near_miss(source: str) -> None:
    """Reject a file of weights, a file of another program's format, and a model's name without its library.

    Raises:
        GraphError: *source* is one of these.
    """
    suffix = PurePath(source).suffix.lower()
    if not os.path.lexists(source):
        from gpusage.graphs.named import cards

        # The Hub's names have an organization: Qwen/Qwen3-8B.
        sources = cards.sources_of(source) if _BARE_NAME.fullmatch(source) else []
        if not sources and _HUB_NAME.fullmatch(source):
            from gpusage.graphs.named import huggingface

            sources = [f"hf:{source}"] if huggingface.find_configuration(source) else []
        if sources:
            rule = f"Model {quoted(source)} must be named with its library, or be a file; got a name alone."
            message = f"{rule} Did you mean {' or '.join(sources)}?"
            raise GraphError(message)
    elif suffix in PICKLES:
        message = (
            f"Model {quoted(source)} must hold a graph; got weights, which gpusage never loads. "
            "Give the folder of its config.json, export it (.pt2, .onnx), or run its program under 'gpusage capture'."
        )
        raise GraphError(message)
    elif suffix == ".json":
        message = f"Configuration {quoted(source)} must be called config.json; got another name. Rename it, or copy it."
        raise GraphError(message)
    elif suffix in FOREIGN:
        message = (
            f"Model {quoted(source)} must be in a format that gpusage reads; got {suffix}. "
            "Export it to ONNX, or give the Hugging Face folder that it was made from."
        )
        raise GraphError(message)


def configuration_path(source: str) -> str | None:
    """Return the path of the configuration that *source* is or, as a folder, has; ``None`` if there is none."""
    if os.path.isdir(source):  # noqa: PTH112 - no Path for any text
        path = os.path.join(source, CONFIGURATION)  # noqa: PTH118 - as above
        return path if os.path.lexists(path) else None
    return source if PurePath(source).name == CONFIGURATION else None


def folder_rejection(source: str) -> str | None:
    """Return why the folder *source* is no model and what to do, ``None`` if it is not a folder."""
    if not os.path.isdir(source):  # noqa: PTH112 - Path raises for a text that cannot be a path
        return None

    rule = f"Folder {quoted(source)} must hold a model's config.json"
    try:
        names = sorted(os.listdir(source))  # noqa: PTH208 - as above
    except OSError as error:
        return f"{rule}; got none that you can read: {(error.strerror or str(error)).lower()}. Check the path."
    # The first pattern counts: adapters, for example, lie beside weights.
    for pattern, (description, advice) in _FOLDER_KINDS.items():
        name = next((name for name in names if fnmatch(name, pattern)), None)
        if name is not None:
            path = os.path.join(source, name)  # noqa: PTH118 - as above
            return f"{rule}; got {description.format(quoted(name))}. {advice.format(quoted(path))}"
    return f"{rule}; got none. Give a folder that has one, or a model file."
