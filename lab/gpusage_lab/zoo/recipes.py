"""How each card of the zoo is made: a library's or a paper's own definition, on the meta device.

One function a source of measurements; each returns ``key -> recipe`` and is listed in `RECIPES`. A recipe is called
only where the card is not there yet, imports torch only then, and may raise: such a model is skipped and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gpusage.graphs.named import huggingface
from gpusage.graphs.named.image_libraries import build as read
from gpusage.graphs.torch.libraries import build_on_meta, import_library
from gpusage.graphs.torch.module import graph_from_module
from gpusage_hooks.types import ModelGraph
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.networks.mlperf import mlperf_models
from gpusage_lab.networks.workloads import gavel_models, lucid_models
from gpusage_lab.profiling import suites
from gpusage_lab.profiling.models import build
from gpusage_lab.profiling.plan import shape_text
from gpusage_lab.published import models as published
from gpusage_lab.published.rows import published_rows
from gpusage_lab.published.runs import Run, run_of
from gpusage_planning.zoo import key_of_profiled

Recipe = Callable[[], ModelGraph]
Sizes = tuple[tuple[str, tuple[int, ...]], ...]

RAPP = "rapp_mps_percent.csv.gz"
_GPT = {"model_type": "gpt2"}
NEUSIGHT: Mapping[str, tuple[str, Mapping[str, Any], tuple[int, ...]]] = {
    "bert_large": (
        "BertLMHeadModel",
        {"model_type": "bert", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
        | {"intermediate_size": 4096, "max_position_embeddings": 512},
        (512,),
    ),
    "gpt2_large": (
        "GPT2LMHeadModel",
        _GPT | {"n_embd": 1280, "n_head": 20, "n_layer": 36, "n_positions": 1024},
        (1024,),
    ),
    "gpt3_xl": ("GPT2LMHeadModel", _GPT | {"n_embd": 3072, "n_head": 24, "n_layer": 24, "n_positions": 2048}, (2048,)),
    "gpt3_27": ("GPT2LMHeadModel", _GPT | {"n_embd": 2560, "n_head": 32, "n_layer": 32, "n_positions": 2048}, (2048,)),
    "opt_13": (
        "OPTForCausalLM",
        {"model_type": "opt", "hidden_size": 2048, "ffn_dim": 8192, "num_hidden_layers": 24}
        | {"num_attention_heads": 32, "max_position_embeddings": 2048, "word_embed_proj_dim": 2048},
        (2048,),
    ),
}
"""The models of NeuSight's rows: transformers' class, what its configuration sets, the sequence lengths measured.

Source:
    scripts/asplos/data/DLmodel_configs of sitar-lab/NeuSight; the sizes alone, as in the papers of these models.
"""


def timm_models(data: DataFolder) -> dict[str, Recipe]:
    """Return the models of timm's own benchmark at each image size, and those whose memory GPUMemNet measured."""
    pairs: set[tuple[str, int]] = set()
    for file in ("timm_benchmark.csv", "timm_static_features.csv"):
        rows = data.read(file)
        pairs |= set(zip(rows["model"], rows["img_size_px"].astype(int), strict=True))
    return {f"timm:{name}@{side}": partial(_timm, name, side) for name, side in sorted(pairs)}


FUSED_MODULES = ("efficientvit_msra", "fastvit", "levit", "nextvit", "repghost", "repvit", "tiny_vit")
"""Modules of timm whose models join their branches and normalizations before inference."""


def timm_fused_models(data: DataFolder) -> dict[str, Recipe]:
    """Return those models of timm's benchmark that change when they are made ready for inference."""
    rows = data.read("timm_benchmark.csv")
    rows = rows[rows["timm_module"].isin(FUSED_MODULES)]
    pairs = set(zip(rows["model"], rows["img_size_px"].astype(int), strict=True))
    return {f"timm-fused:{name}@{side}": partial(_timm_fused, name, side) for name, side in sorted(pairs)}


def torchvision_models(data: DataFolder) -> dict[str, Recipe]:
    """Return the models of pytorch-gpu-benchmark and of RaPP, all of which ran on images of 224 x 224."""
    names = sorted({name for file in ("torchvision_gpu_bench.csv", RAPP) for name in data.read(file)["model"]})
    return {f"torchvision:{name}@224": partial(_torchvision, name) for name in names}


def neusight_models(_: DataFolder) -> dict[str, Recipe]:
    """Return the language models of NeuSight's rows, with the attention written out as transformers 4.35 had it."""
    return {
        f"neusight:{name}@{length}": partial(_neusight, name, length)
        for name, (_, _, lengths) in NEUSIGHT.items()
        for length in lengths
    }


def profile_models(_: DataFolder) -> dict[str, Recipe]:
    """Return the models of the suites of ``gpusage profile``, each at the sizes that it is measured with."""
    sides = {side for item in (*suites.session(), *suites.tiny()) for side in item.sides}
    return {
        key_of_profiled(side.job.model, shape_text(side)): partial(_profile, side.job.model, side.job.workload.shape)
        for side in sides
    }


def published_models(data: DataFolder) -> dict[str, Recipe]:
    """Return the models of the published tables that can be built, at the sizes of their rows."""
    keys = {run.key for run in map(run_of, published_rows(data)) if isinstance(run, Run)}
    return {key: partial(published.build, key) for key in sorted(keys)}


RECIPES: tuple[Callable[[DataFolder], dict[str, Recipe]], ...] = (
    neusight_models,
    torchvision_models,
    timm_models,
    timm_fused_models,
    gavel_models,
    lucid_models,
    mlperf_models,
    profile_models,
    published_models,
)
"""Every source's recipes; add yours here."""


def _timm(name: str, side: int) -> ModelGraph:
    registry = import_library("timm.models._registry")
    today = registry._deprecated_models.get(name) or name  # noqa: SLF001 - timm names no public way to ask
    return read("timm", today.partition(".")[0], {"input": (3, side, side)})


def _timm_fused(name: str, side: int) -> ModelGraph:
    timm = import_library("timm")

    def build() -> Any:  # a torch.nn.Module
        return timm.utils.reparameterize_model(timm.create_model(name, pretrained=False).eval())

    pixels = import_library("torch").empty((2, 3, side, side), device="meta")
    return graph_from_module(build_on_meta(build, f"timm:{name}"), (pixels,), name=name, origin=f"timm:{name}")


def _torchvision(name: str) -> ModelGraph:
    return read("torchvision", name, {"input": (3, 224, 224)})


def _neusight(name: str, length: int) -> ModelGraph:
    transformers, torch = import_library("transformers"), import_library("torch")
    class_name, settings, _ = NEUSIGHT[name]
    settings = dict(settings)
    config = transformers.CONFIG_MAPPING[settings.pop("model_type")](**settings, attn_implementation="eager")
    config.use_cache = False
    model = build_on_meta(lambda: getattr(transformers, class_name)(config), f"neusight:{name}")
    model.warn_if_padding_and_no_attention_mask = lambda *_: None
    tokens = torch.empty((2, length), dtype=torch.int64, device="meta")
    return graph_from_module(model, (), keywords={"input_ids": tokens}, name=name, origin=f"neusight:{name}")


def _profile(name: str, shape: Sizes) -> ModelGraph:
    library, _, model = name.partition(":")
    if library == "hf":
        return huggingface.build_name(model, dict(shape))
    if library != "builtin":
        return read(library, model, dict(shape))
    built = build_on_meta(lambda: build(name, shape, "meta"), name)
    arguments, words = built.batch(2, "meta", import_library("torch").float32)
    return graph_from_module(built.module, arguments, keywords=words, name=model, origin=name)
