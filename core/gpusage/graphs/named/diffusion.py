"""Builds one pass of a denoiser from a configuration of diffusers: a UNet, or a transformer as SD3 and Flux have it.

The class is diffusers' own; the sizes of its inputs follow from the configuration's numbers, by the names of `forward`.
"""

from __future__ import annotations

import inspect
from typing import Any

from gpusage.graphs.model_files import printable, quoted
from gpusage.graphs.torch.libraries import import_library
from gpusage_hooks.errors import GraphError

DENOISER_NOTE = (
    "One pass of the denoiser: a picture takes as many as its sampler has steps, of twice the batch with guidance by "
    "a second prompt; the text encoder and the decoder of pictures come on top."
)
# Tokens of a prompt: CLIP's, which a UNet reads; CLIP's and T5's in SD3's pipeline; T5's in Flux's.
_CLIP_TOKENS, _SD3_TOKENS, _FLUX_TOKENS = 77, 333, 512
# A picture of 1024 x 1024 in patches of 16 x 16, each at a place of three numbers.
_PATCHES, _PLACE = 4096, 3
# Of SDXL: the sizes of the original and of the target, and where it was cut.
_TIME_IDS = 6
REFUSAL = "Model {} must {}; got {}. Run its program under 'gpusage capture', or export it to ONNX or .pt2."
Sizes = dict[str, tuple[int, ...]]


def build_denoiser(configuration: dict[str, Any], source: str) -> Any:  # a torch.nn.Module
    """Return the denoiser of a configuration; call it within `build_on_meta` for one without weights.

    Raises:
        GraphError: diffusers has no such class of models.
    """
    diffusers, name = import_library("diffusers"), str(configuration["_class_name"])
    kind: Any = getattr(diffusers, name, None)
    is_model = isinstance(kind, type) and issubclass(kind, diffusers.ModelMixin)
    if not is_model:
        rule = f"be of a class that diffusers {diffusers.__version__} defines"
        raise GraphError(REFUSAL.format(quoted(source), rule, quoted(name)))
    return kind.from_config({key: value for key, value in configuration.items() if key != "auto_map"})


def input_sizes(model: Any, source: str) -> Sizes:  # a torch.nn.Module
    """Return the sizes of the inputs of a denoiser, batch left out.

    Raises:
        GraphError: It takes others than those of a UNet, SD3 or Flux.
    """
    config, parameters = model.config, inspect.signature(model.forward).parameters
    side, is_flux = config.get("sample_size"), "img_ids" in parameters
    height, width = side if isinstance(side, (list, tuple)) else (side, side)
    picture = (_PATCHES, config.in_channels) if is_flux else (config.in_channels, height, width)
    text = config.get("joint_attention_dim")
    tokens = _FLUX_TOKENS if is_flux else _SD3_TOKENS if text else _CLIP_TOKENS
    known: dict[str, tuple[Any, ...]] = {
        "sample": picture,
        "hidden_states": picture,
        "timestep": (),
        "encoder_hidden_states": (tokens, text or config.get("cross_attention_dim")),
        "pooled_projections": (config.get("pooled_projection_dim"),),
        "guidance": (),
    }
    sizes = {
        name: known[name] for name in parameters if name in known and (name != "guidance" or config.guidance_embeds)
    }
    if config.get("addition_embed_type") == "text_time":
        width = config.projection_class_embeddings_input_dim - _TIME_IDS * config.addition_time_embed_dim
        sizes |= {"text_embeds": (width,), "time_ids": (_TIME_IDS,)}
    if "timestep" in sizes and all(isinstance(size, int) and size > 0 for each in sizes.values() for size in each):
        return sizes
    rule = "take a picture, its time and a text as a UNet, SD3 or Flux does"
    raise GraphError(REFUSAL.format(quoted(source), rule, printable(type(model).__name__)))


def example_inputs(model: Any, sizes: Sizes) -> dict[str, Any]:  # a torch.nn.Module
    """Return inputs of *sizes* for two samples, on the meta device, and what follows from them."""
    torch = import_library("torch")
    inputs = {name: torch.empty((2, *size), device="meta") for name, size in sizes.items()}
    if "time_ids" in inputs:
        inputs["added_cond_kwargs"] = {name: inputs.pop(name) for name in ("text_embeds", "time_ids")}
    if "img_ids" in inspect.signature(model.forward).parameters:
        # Places of patches and of words are the same for all samples.
        for name, of in (("img_ids", "hidden_states"), ("txt_ids", "encoder_hidden_states")):
            inputs[name] = torch.empty((sizes[of][0], _PLACE), device="meta")
    return inputs
