"""Export the example models as ONNX graphs without weights: ``python examples/export.py [-o FOLDER] [NAME...]``.

Needs the extra ``[torch]`` and ``onnxscript``. Each model is built from its library's own definition on random weights
(nothing is downloaded), exported with a dynamic batch axis, and written with every weight replaced by a reference to a
file that does not exist: shapes stay, values go.
"""

from __future__ import annotations

import argparse
import io
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import timm
import torch
import torchvision
import transformers
from example_modules import Dlrm, LanguageModel, UNet
from torch import Tensor, nn

WEIGHTS_FILE = "weights-are-not-part-of-this-file"
LARGEST_INLINE_ELEMENTS = 128
"""Smaller initializers are axes, shapes and constants, which shape inference needs."""
OPSET = 20

Inputs = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """How to build one model, and what it is called with at a batch of two."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]


def image(name: str = "x", size: int = 224) -> Callable[[], Inputs]:
    """Return a maker of two RGB images."""
    return lambda: {name: torch.randn(2, 3, size, size)}


def tokens(*names: str, length: int) -> Callable[[], Inputs]:
    """Return a maker of two sequences of *length* tokens for each of *names*."""
    return lambda: {name: torch.randint(0, 100, (2, length)) for name in names}


def clicks() -> Inputs:
    """Return two samples of 13 numbers and 26 categories, as in the Criteo data set."""
    return {"dense": torch.randn(2, 13), "categories": torch.randint(0, 1000, (2, 26))}


def from_config(
    kind: type[Any],
    config: Any,  # each model has its own class
    attention: str = "sdpa",
) -> Callable[[], nn.Module]:
    """Return a maker of a transformers model that keeps no cache."""
    config.use_cache = False
    config._attn_implementation = attention  # noqa: SLF001 - the documented way is a keyword of from_pretrained alone
    return lambda: kind(config)


EXAMPLES = {
    "resnet18": Example(build=torchvision.models.resnet18, inputs=image()),
    "resnet50": Example(build=torchvision.models.resnet50, inputs=image()),
    "vgg16": Example(build=torchvision.models.vgg16, inputs=image()),
    "mobilenet_v3_large": Example(build=torchvision.models.mobilenet_v3_large, inputs=image()),
    "efficientnet_b0": Example(build=lambda: timm.create_model("efficientnet_b0"), inputs=image()),
    "densenet121": Example(build=torchvision.models.densenet121, inputs=image()),
    "vit_b_16": Example(build=lambda: timm.create_model("vit_base_patch16_224"), inputs=image()),
    "swin_t": Example(build=torchvision.models.swin_t, inputs=image()),
    "convnext_tiny": Example(build=torchvision.models.convnext_tiny, inputs=image()),
    "unet": Example(build=UNet, inputs=image(size=256)),
    "bert_base": Example(
        build=from_config(transformers.BertForMaskedLM, transformers.BertConfig()),
        inputs=tokens("input_ids", length=128),
    ),
    "distilbert_base": Example(
        build=from_config(transformers.DistilBertForMaskedLM, transformers.DistilBertConfig()),
        inputs=tokens("input_ids", length=128),
    ),
    "gpt2": Example(
        build=from_config(transformers.GPT2LMHeadModel, transformers.GPT2Config()),
        inputs=tokens("input_ids", length=512),
    ),
    "t5_small": Example(
        build=from_config(transformers.T5ForConditionalGeneration, transformers.T5Config(), attention="eager"),
        inputs=tokens("input_ids", "decoder_input_ids", length=128),
    ),
    "lstm_lm": Example(build=LanguageModel, inputs=tokens("tokens", length=64)),
    "dlrm": Example(build=Dlrm, inputs=clicks),
}


def export(example: Example) -> onnx.ModelProto:
    """Return the graph of *example*, whose first axis is the batch."""
    model = example.build().eval()
    make_weights_differ(model)
    inputs = example.inputs()
    batch = torch.export.Dim("batch", min=1, max=1 << 16)
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        program = torch.export.export(
            model,
            (),
            kwargs=inputs,
            dynamic_shapes={name: {0: batch} for name in inputs},
            strict=False,
        )
        exported = torch.onnx.export(program, dynamo=True, opset_version=OPSET)
    if exported is None:
        message = "torch.onnx.export returned no program"
        raise RuntimeError(message)
    return exported.model_proto


def make_weights_differ(model: nn.Module) -> None:
    """Give every weight values of its own: the exporter would make one of two equal ones, such as biases of zeros."""
    with torch.no_grad():
        for weight in (*model.parameters(), *model.buffers()):
            if weight.is_floating_point():
                weight.uniform_(0.5, 1.5)


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return *model* with each weight replaced by a reference to a file that does not exist."""
    for weight in model.graph.initializer:
        elements = 1
        for size in weight.dims:
            elements *= size
        if elements > LARGEST_INLINE_ELEMENTS or (weight.data_type == onnx.TensorProto.FLOAT and elements > 1):
            _drop_values(weight)
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    for value in model.graph.value_info:
        del value.metadata_props[:]
    del model.metadata_props[:]
    del model.functions[:]
    return model


def _drop_values(weight: onnx.TensorProto) -> None:
    tensor = onnx.TensorProto(name=weight.name, data_type=weight.data_type, dims=weight.dims)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=WEIGHTS_FILE)
    weight.CopyFrom(tensor)


def main() -> None:
    """Export the models named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of: {', '.join(EXAMPLES)}")
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parent / "models")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - EXAMPLES.keys())
    if unknown:
        parser.error(f"no such example: {', '.join(unknown)}; choose from {', '.join(EXAMPLES)}")
    torch.manual_seed(0)
    options.output.mkdir(parents=True, exist_ok=True)
    for name in options.names or EXAMPLES:
        start_s = time.perf_counter()
        model = without_weights(export(EXAMPLES[name]))
        path = options.output / f"{name}.onnx"
        path.write_bytes(model.SerializeToString(deterministic=True))
        print(f"{path}  {path.stat().st_size / 1024:.0f} KiB  {time.perf_counter() - start_s:.1f} s", flush=True)


if __name__ == "__main__":
    main()
