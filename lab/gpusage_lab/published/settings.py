"""What a publisher's words for GPU, precision, strategy and engine mean in gpusage's, where they mean anything."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from gpusage.devices.catalogue import builtin_catalogue
from gpusage_hooks.types import Gpu
from gpusage_lab.published.rows import PublishedRow

_GPUS: tuple[tuple[str, str], ...] = (
    (r"a100.*80 ?gb|a100_80gb|a100 80gb|dgx-a100_a100-sxm-80gb", "a100-sxm4-80gb"),
    (r"a100-pcie-80gbx1", "a100-pcie-80gb"),
    (r"a100-pciex1", "a100-pcie-40gb"),
    (r"a100.*60 gib", "a100-sxm4-80gb"),
    (r"a100", "a100-sxm4-40gb"),
    (r"v100-16gb|v100 \(16gb\)|p3\.2xlarge", "v100-sxm2-16gb"),
    (r"v100", "v100-sxm2-32gb"),
    (r"h100 80gb|h100_80gb|h100 sxm|dgx-h100|nvidia h100$", "h100-sxm5-80gb"),
    (r"h100 96gb", "h100-96gb"),
    (r"h200", "h200-sxm5-141gb"),
    (r"b200 180gb|dgx b200|dgx-b200|nvidia b200", "b200-sxm6-180gb"),
    (r"h20\b", "h20-sxm5-96gb"),
    (r"rtx 4090", "rtx-4090"),
    (r"rtx 4080$", "rtx-4080"),
    (r"rtx 4070 ti", "rtx-4070-ti"),
    (r"rtx 3090", "rtx-3090"),
    (r"rtx 3080$", "rtx-3080"),
    (r"rtx 3070$", "rtx-3070"),
    (r"a6000 ada", "rtx-6000-ada"),
    (r"rtx a6000", "rtx-a6000"),
    (r"a5000", "rtx-a5000"),
    (r"pro blackwell server|rtx 6000 pro", "rtx-pro-6000-server"),
    (r"l40s", "l40s"),
    (r"\bl4$", "l4"),
    (r"\bt4\b|t4-|t4x1", "t4"),
    (r"a10g", "a10g"),
    (r"\ba10\b|a10x1", "a10"),
    (r"a30x1|\ba30$", "a30"),
    (r"\ba2x1", "a2"),
    (r"1080 ti", "gtx-1080-ti"),
    (r"titan xp", "titan-xp"),
)
"""The first pattern that an entry has decides; an A100 without its memory is the one of 40 GB, a V100 that of 32 GB."""


def gpu_of(published: str) -> Gpu | None:
    """Return the GPU that *published* names, ``None`` where the catalogue has none like it."""
    text = published.lower()
    if "mig" in text:
        return None
    name = next((name for pattern, name in _GPUS if re.search(pattern, text)), None)
    catalogue = builtin_catalogue()
    if name == "h100-96gb":  # a part of one cloud: 2.4 TB/s of HBM2e
        return replace(catalogue.find("h100-sxm5-80gb"), memory_bytes=95_830 * 2**20, bandwidth_bytes_per_s=2.4e12)
    return catalogue.find(name) if name else None


def precision_of(row: PublishedRow) -> str | None:
    """Return the precision as a job names it, ``None`` for one that gpusage has not."""
    text = row.precision.lower()
    if row.mode == "generate" and re.search(r"fp8|nf4|bnb\.fp4", text):
        return "fp8" if "fp8" in text else "nf4"
    if row.mode == "finetune" and re.search(r"nf4|int4|int8", text):
        return _base_weights(text)
    if row.mode == "train" and re.search(r"fp8|float8", text):
        return "fp8-mixed"
    if "spars" in text or re.search(r"fp8|fp4|float8|mxfp|nf4", text):
        return None
    if re.search(r"int8|int4|awq|gptq|uint4", text):
        return _quantized(row, text)
    # "fp32/tf32" heads TensorRT's DeBERTa alone, which runs at 13 TFLOP/s on an A100: fp32's rate, a twelfth of TF32's
    kind = "bf16" if "bf" in text else "fp16" if "16" in text or "half" in text else "tf32" if text == "tf32" else ""
    if not kind:
        return "fp32" if re.search(r"fp32|32-true", text) else None
    is_autocast = bool(re.search(r"amp|mixed|mp_policy|class", text)) or not row.parallelism
    is_pure = bool(re.search(r"true|weights|model\.half|bfloat16$", text)) or row.method.startswith("lora")
    is_pure = is_pure or row.source in PURE_SOURCES
    if row.mode in ("train", "finetune") and is_pure and not is_autocast:
        return f"{kind}-pure"
    return kind


PURE_SOURCES = ("pytorch/torchtune", "modelscope/ms-swift", "AnswerDotAI/fsdp_qlora")
"""Whose weights, gradients and state have two bytes where the table says bf16."""


def _base_weights(text: str) -> str:
    """Return the precision of weights below adapters: of bitsandbytes, or of GPTQ."""
    return "nf4" if re.search(r"nf4|bnb", text) else "int8" if "int8" in text else "int4"


def _quantized(row: PublishedRow, text: str) -> str | None:
    if row.mode in ("train", "finetune"):
        return None
    return "bnb-int8" if "bnb.int8" in text else "int8" if "int8" in text else "int4"


def divides_layers(row: PublishedRow) -> bool:
    """Return whether each layer is divided among the row's GPUs, and nothing else is."""
    return row.mode == "generate" and bool(re.fullmatch(rf"TP ?{row.gpus}", row.parallelism))


def is_pipeline(row: PublishedRow) -> bool:
    """Return whether each of the row's GPUs has some of the layers, and they compute one after the other."""
    return row.mode == "generate" and "layer split" in row.parallelism


COPY_KEYS = {"tensor": "TP", "context": "CP", "expert": "EP", "pipeline": "PP", "virtual_pipeline": "VP"}
"""How the work on a model is divided among GPUs, by the letters that tables have for it."""


def copy_sizes(row: PublishedRow) -> dict[str, int]:
    """Return among how many GPUs, or pieces of their stages, training is divided, by the keys of a job."""
    if row.mode in ("infer", "generate"):
        return dict.fromkeys(COPY_KEYS, 1)
    sizes = {key: re.search(rf"{short} ?(\d+)", row.parallelism) for key, short in COPY_KEYS.items()}
    return {key: int(size[1]) if size else 1 for key, size in sizes.items()}


def strategy_of(row: PublishedRow) -> str | None:
    """Return how the model is divided between the row's GPUs; ``None`` for a way that gpusage has not."""
    text = row.parallelism
    if row.gpus == 1 or not text:
        return "ddp"
    if is_pipeline(row):
        return "pipeline"
    if divides_layers(row):
        return "ddp"  # no word of ours says it: on several GPUs, a model that generates has its layers divided
    if row.mode in ("infer", "generate") or re.search(r"split|offload", text):
        return None
    names = (
        ("ZeRO-0", "ddp"),
        ("SHARD_GRAD_OP", "zero2"),
        ("no shard", "ddp"),
        ("README script", "zero3"),
        ("ZeRO-3", "zero3"),
    )
    # Megatron keeps weights and gradients in two bytes beside a copy, as ZeRO does; of one copy nothing is sharded
    more = (
        ("DP1 ", "zero1"),
        ("ZeRO-2", "zero2"),
        ("ZeRO-1", "zero1"),
        ("FSDP", "fsdp"),
        (" PP", "zero1"),
        ("DDP", "ddp"),
    )
    if "FSDP" in text and "ZeRO-3" in text:
        return "fsdp"
    if "README script" in text and row.method != "full":
        return "zero2"
    return next((strategy for word, strategy in (*names, *more) if word in text), None)


MEGATRON_BRIDGE = "NVIDIA-NeMo/Megatron-Bridge"
FUSED_BY_HAND = ("karpathy/llm.c", "Dao-AILab/flash-attention", "bigscience-workshop/bigscience", MEGATRON_BRIDGE)
"""Sources whose programs have kernels of their own for what stands between two products."""


def engine_of(row: PublishedRow) -> str:
    """Return ``eager``, ``compile`` or the engine's name."""
    text = f"{row.engine} {row.framework}".lower()
    if re.search(r"tensorrt", row.engine.lower()) or "tensorrt-llm" in text:
        return "tensorrt-llm" if row.mode == "generate" else "tensorrt"
    if re.search(r"fastertransformer", row.engine.lower()):
        return "tensorrt"  # NVIDIA's own fused kernels, too
    if "vllm" in text or "sglang" in text:
        return "vllm"
    if row.attention == "fused" or row.source in FUSED_BY_HAND:
        return "compile"  # kernels as few as a compiler's
    return "compile" if re.search(r"^(yes|xla|torch\.compile|cuda graphs)", row.engine.lower()) else "eager"


def engine_settings(row: PublishedRow) -> dict[str, Any]:
    """Return the fields of a workload that say by what it is run."""
    engine = engine_of(row)
    if row.mode == "generate":
        return {"engine": engine}
    return {"engine": engine} if engine == "tensorrt" else {"compile": engine != "eager"}
