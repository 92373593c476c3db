"""What a folder holds that no reader takes for a model, and what to give in its place."""

from __future__ import annotations

import os
from fnmatch import fnmatch

from gpusage.graphs.guard import shown

_FOLDERS = {
    "adapter_config.json": (
        "adapters alone",
        "Give the model that they adapt, its folder or hf:NAME, with trainable= for training.",
    ),
    "model_index.json": (
        "a pipeline of several models (diffusers)",
        "Export the one that takes the time, its unet or transformer, to ONNX or .pt2.",
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
"""By a file in it, what a folder without a configuration is, and what to do."""


def folder_refusal(source: str) -> str | None:
    """Return why the folder *source* is no model, and what to do; ``None`` where it is no folder."""
    if not os.path.isdir(source):  # noqa: PTH112 - no Path for any text
        return None
    rule = f"Folder {shown(source)} must hold a model's config.json"
    try:
        names = sorted(os.listdir(source))  # noqa: PTH208 - as above
    except OSError as error:
        return f"{rule}; got none that you can read: {(error.strerror or str(error)).lower()}. Check the path."
    for pattern, (found, instead) in _FOLDERS.items():
        name = next((name for name in names if fnmatch(name, pattern)), None)
        if name is not None:
            path = os.path.join(source, name)  # noqa: PTH118 - as above
            return f"{rule}; got {found.format(shown(name))}. {instead.format(shown(path))}"
    return f"{rule}; got none. Give a folder that has one, or a model file."
