"""From a published row to what gpusage predicts: the graph's key, the workload, the GPU and the figure; or a reason."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from gpusage_hooks.types import Decoding, Gpu, Workload
from gpusage_lab.published import models
from gpusage_lab.published.rows import PublishedRow
from gpusage_lab.published.settings import (
    MEGATRON_BRIDGE,
    copy_sizes,
    divides_layers,
    engine_of,
    engine_settings,
    gpu_of,
    is_pipeline,
    precision_of,
    strategy_of,
)

Kind = Literal["allocated", "reserved", "process"]
"""Of memory: what tensors have, what the allocator holds, or what nvidia-smi shows."""
RATES = ("images/s", "sequences/s", "samples/s", "tokens/s", "tokens/s/GPU")
TIMES = ("latency_ms", "ms/step")
GENERATED_BY_DEFAULT = {"pytorch-labs/gpt-fast": (5, 200), "pytorch/ao": (5, 200), "Lightning-AI/litgpt": (5, 256)}
"""Tokens of the prompt and new ones where a row leaves them out: what the sources' own scripts do."""
BYTES_PER_GB: dict[str, float] = {
    **dict.fromkeys(("Lightning-AI/litgpt", "huggingface/peft", "yeatscircle/myTransformers"), 1e9)
}
"""By the note of each source; all others mean 2**30."""
MEMORY_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("huggingface/peft", "pytorch/torchtitan", "AnswerDotAI/fsdp_qlora", "pytorch/ao"), "reserved"),
    **dict.fromkeys(("modelscope/ms-swift",), "reserved"),
    **dict.fromkeys(("bigscience-workshop/bigscience", "casper-hansen/AutoAWQ", "QwenLM/Qwen"), "process"),
}
"""By the note of each source; all others count what tensors have."""
SUMMED_MEMORY = ("QwenLM/Qwen", "QwenLM/Qwen2.5", "casper-hansen/AutoAWQ")
"""Sources whose memory is that of all GPUs together."""
WITHOUT_UPDATE = ("yeatscircle/myTransformers",)
"""Sources that time and measure the forward and the backward pass: with 128 tokens there is room for no state."""
TRAINED_SHARE = ((r"r=64", 0.02), (r"r=32", 0.01), (r"lora|ia3|prefix|prompt|adapter|adaption", 0.002))
"""Of the weights, by the method, where its source does not count them."""
ALL_LINEAR_SOURCES, RANK_BY_DEFAULT = ("QwenLM/Qwen", "AnswerDotAI/fsdp_qlora"), 64
"""Whose scripts put adapters beside all linear layers, and their rank."""
_WRITTEN_OUT = re.compile(r"tensorflow|torch 1\.|ngc 2[0-2]", re.IGNORECASE)
"""Frameworks from before attention was one kernel."""


class Left(NamedTuple):
    """A row that is not predicted, and why."""

    row: PublishedRow
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A row that is predicted.

    Attributes:
        key: Of the zoo.
        units_per_step: What the figure counts in a step, where it is a rate; else steps of one figure.
        without_prompt: Whether the rate leaves out the time of the prompt.
        memory: The kind of memory, where the figure is one.
        counted_bytes: Those that the published figure stands for, where it is memory.
        group: Of which kind of rows it is.
    """

    row: PublishedRow
    key: str
    workload: Workload
    gpu: Gpu
    units_per_step: float = 1.0
    without_prompt: bool = False
    memory: Kind | None = None
    counted_bytes: float = 0.0
    group: str


def run_of(row: PublishedRow) -> Run | Left:
    """Return how *row* is predicted, or why it is not."""
    key = _key(row)
    gpu, precision, strategy = gpu_of(row.gpu), precision_of(row), strategy_of(row)
    reason = (
        _unusable(row)
        or ("no library that gpusage reads has the model, or the row has no sizes" if key is None else "")
        or ("the GPU is not in the catalogue, or is a slice" if gpu is None else "")
        or ("a precision that gpusage does not predict there" if precision is None else "")
        or ("layers on several GPUs, or offloading" if strategy is None else "")
        or ("each expert on several GPUs (tensor parallelism)" if _divides_experts(row) else "")
    )
    if reason or key is None or gpu is None:
        return Left(row, reason)
    workload = _workload(row, str(precision), str(strategy))
    if row.metric == "memory_gb":
        scale = BYTES_PER_GB.get(row.source, float(2**30))
        kind = MEMORY_KINDS.get(row.source, "allocated")
        counted = row.value * scale / (row.gpus if row.source in SUMMED_MEMORY else 1)
        return Run(row=row, key=key, workload=workload, gpu=gpu, memory=kind, counted_bytes=counted, group=_group(row))
    return Run(
        row=row,
        key=key,
        workload=workload,
        gpu=gpu,
        units_per_step=_units(row, workload),
        without_prompt="DECODE" in row.note,
        group=_group(row),
    )


def _divides_experts(row: PublishedRow) -> bool:
    sizes = copy_sizes(row)
    return sizes["tensor"] > 1 and sizes["expert"] > 1


def _key(row: PublishedRow) -> str | None:
    is_old = not row.attention and bool(_WRITTEN_OUT.search(row.framework))
    image = models.image_model(row.model)
    if image is not None:
        is_eager = is_old and engine_of(row) == "eager"
        return models.image_key(image, row.image, is_eager=is_eager) if row.image else None
    text = models.text_model(row.model) or models.megatron_model(row.model, row.hint)
    if text is None:
        return None
    is_eager = row.attention.startswith("eager") or is_old
    if row.mode == "generate":
        return models.text_key(text, models.DECODER_LENGTH, is_eager=is_eager)
    length = row.prompt if row.prompt is not None else row.new_tokens if row.mode == "train" else None
    return models.text_key(text, length, is_eager=is_eager) if length else None


def _unusable(row: PublishedRow) -> str:
    """Return why *row* cannot be held beside any prediction; nothing where it can."""
    is_time = row.metric != "memory_gb"
    cases = (
        (row.metric not in (*RATES, *TIMES, "memory_gb"), "the figure is no time, rate or memory of a step"),
        (row.batch is None, "the row has no batch size"),
        ("CHECK" in row.note and "TensorFlow" not in row.framework, "its source marks the row as doubtful"),
        ("inconsistent" in row.note or "looks inc" in row.note, "its source marks the row as doubtful"),
        (row.source.startswith("UKPLab"), "lengths and batch are unknown"),
        (row.mode == "infer" and row.source.endswith("myTransformers"), "time per token of an unclear count"),
        ("biogpt" in row.model, "the source's measurement is in doubt"),
        (_is_copied(row), "its source gives the same figures for another GPU or length"),
        (is_time and bool(_VARYING.search(row.note)), "samples differ in length, and the mean is unknown"),
        (row.mode == "generate" and _lengths(row) is None, "the row has no lengths of prompt and answer"),
        ("int8 KV cache" in row.method, "a quantized cache"),
        (_is_replaced(row), "a prompt through kernels that their library has replaced, or keeps for one token"),
        (row.source == "pytorch/torchtune", "checkpointing and optimizer are in its recipes alone"),
        (not is_time and row.checkpointing.startswith("selective"), "checkpoints of some operators"),
        (row.mode == "finetune" and row.source == "huggingface/peft" and "lora" not in row.method, "another adapter"),
        (_is_between_steps(row), "the mean memory between two steps"),
        (_is_of_loading(row), "the memory while a model was loaded, before FSDP divided it"),
    )
    return next((reason for is_case, reason in cases if is_case), "")


def _is_replaced(row: PublishedRow) -> bool:
    """Return whether AutoAWQ has replaced the kernel that a prompt was measured with, or advises against it.

    The figures are of November 2023; since January 2024 (its pull request 316) 1,024 tokens and more are multiplied by
    widened weights. GEMV is for one token.
    """
    is_prompt = row.source == "casper-hansen/AutoAWQ" and row.mode == "infer"
    return is_prompt and ("GEMV" in row.method or (row.batch or 0) * (row.prompt or 0) >= AWQ_WIDENED_TOKENS)


def _is_between_steps(row: PublishedRow) -> bool:
    """Return whether the memory is PEFT's ``mem allocated avg``, read after each step: the weights and hardly more.

    The table has it beside the peak of each run and does not say which is which: 6.8 to 7.1 GB, and 20 or more.
    """
    weights = re.search(r"params=(\d+)", row.hint)
    is_memory = row.metric == "memory_gb" and row.source == "huggingface/peft" and row.task.endswith("MetaMathQA")
    return is_memory and weights is not None and row.value * 1e9 < 1.25 * 2 * float(weights[1])


def _is_of_loading(row: PublishedRow) -> bool:
    """Return whether the memory is litgpt's of FSDP on n GPUs: 1 + 1/n times the weights and a little, at any batch.

    Its blocks have checkpoints there, so that a step takes less.
    """
    return row.source == "Lightning-AI/litgpt" and row.metric == "memory_gb" and row.parallelism == "FSDP"


def _is_copied(row: PublishedRow) -> bool:
    """Return whether the source has the row's figures twice, to the last digit.

    TensorRT's table of BERT on the A30 is its older one of the L4, all 60 rows; OPT's rows of 4 and 8 sequences of
    2,048 tokens are those of 1,024.
    """
    is_a30 = row.source == "NVIDIA/TensorRT" and row.gpu == "A30"
    is_opt = row.source.startswith("yeatscircle") and "opt" in row.model and row.attention == "sdpa"
    return is_a30 or (is_opt and row.prompt == 2048 and (row.batch or 0) >= 4)


AWQ_WIDENED_TOKENS = 1024
_VARYING = re.compile(r"LONGEST|shorter|texts of 3234|bucketed|mean length")


def _lengths(row: PublishedRow) -> tuple[int, int] | None:
    prompt, new = GENERATED_BY_DEFAULT.get(row.source, (None, None))
    prompt, new = row.prompt or prompt, row.new_tokens or new
    return (prompt, new) if prompt and new else None


def _workload(row: PublishedRow, precision: str, strategy: str) -> Workload:
    settings: dict[str, Any] = {"batch_size": row.batch, "precision": precision, **engine_settings(row)}
    # XLA has channels last wherever tensor cores compute a convolution; of inference the compiler's factors know it
    if row.layout == "yes" or (row.layout == "unknown" and row.mode == "train" and engine_of(row) == "compile"):
        settings["layout"] = "channels_last"
    if row.mode in ("infer", "generate"):
        lengths = _lengths(row) if row.mode == "generate" else None
        generation = Decoding(prompt_tokens=lengths[0], new_tokens=lengths[1]) if lengths else None
        if _is_divided(row):
            settings |= {"gpus": row.gpus, "strategy": strategy}
        return Workload(mode="infer", generate=generation, **settings)
    sizes, accumulate = copy_sizes(row), 1
    settings |= {**sizes, "sequence_parallel": row.source == MEGATRON_BRIDGE}  # as its recipes have it
    if row.global_batch and row.batch:
        together = sizes["tensor"] * sizes["context"] * sizes["pipeline"]
        accumulate = max(round(row.global_batch / row.batch / row.gpus * together), 1)
    return Workload(
        optimizer="none" if row.source in WITHOUT_UPDATE else "adamw" if row.layout == "" else "momentum",
        accumulate=accumulate,
        **_trained_part(row),
        checkpointing=row.checkpointing in ("yes", "full"),
        gpus=row.gpus,
        strategy=strategy,  # type: ignore[arg-type] # one of its words
        **settings,
    )


def _trained_part(row: PublishedRow) -> dict[str, Any]:
    """Return the rank of adapters beside all linear layers, or the trained share of the weights."""
    rank = re.search(r"r=(\d+)", row.method)
    if "lora" in row.method and "trained embedding" not in row.method and _has_adapters_everywhere(row):
        return {"lora": int(rank[1]) if rank else RANK_BY_DEFAULT}
    return {"trainable": _trained_share(row)}


def _has_adapters_everywhere(row: PublishedRow) -> bool:
    return row.source in ALL_LINEAR_SOURCES or bool(re.search(r"all linear|query\+key\+value\+projection", row.method))


def _trained_share(row: PublishedRow) -> float:
    counted = re.search(r"trainable=(\d+)", f"{row.method} {row.hint}")
    whole = re.search(r"params=(\d+)", row.hint)
    if counted and whole:
        return min(float(counted[1]) / float(whole[1]), 1.0)
    if row.method in ("", "full", "none"):
        return 1.0
    if "trained embedding" in row.method:
        return models.embedding_share(str(models.text_model(row.model)))
    return next((share for pattern, share in TRAINED_SHARE if re.search(pattern, row.method)), 1.0)


def _units(row: PublishedRow, workload: Workload) -> float:
    """Return what the row's figure counts in one step on one GPU, or how many steps its time has."""
    batch = float(workload.batch_size)
    if row.metric in TIMES:
        return workload.accumulate if row.metric == "ms/step" else 1.0
    tokens = 1.0
    if row.metric.startswith("tokens/s"):
        generation = workload.generate
        if generation is None:
            tokens = float(row.prompt or row.new_tokens or 0)
        else:
            has_prompt = "prompt + generated" in row.note
            tokens = generation.new_tokens + (generation.prompt_tokens if has_prompt else 0)
    copies = 1 if _is_divided(row) else workload.replica_count
    return batch * tokens * (copies / row.gpus if row.metric.endswith("/GPU") else copies)


def _is_divided(row: PublishedRow) -> bool:
    return divides_layers(row) or is_pipeline(row)


def _group(row: PublishedRow) -> str:
    """Return which kind of rows *row* belongs to."""
    is_quantized = precision_of(row) in ("int8", "int4", "fp8", "nf4")
    sizes = copy_sizes(row)
    kind = "expert" if sizes["expert"] > 1 else "tensor, context and pipeline"
    of_copy = f", {kind} parallelism" if max(sizes.values()) > 1 else ""
    if row.metric == "memory_gb":
        is_trained = row.mode in ("train", "finetune")
        return "memory, inference" if not is_trained else f"memory, training{', QLoRA' * is_quantized}{of_copy}"
    if row.layout:
        return _group_of_vision(row)
    if row.mode == "generate":
        quantized = "quantized" if is_quantized else "half"
        several = ", several GPUs" if row.gpus > 1 else ""
        return f"generation, {engine_of(row)}, {quantized}{several}"
    if row.mode == "infer":
        return "language model, prompt alone"
    if is_quantized:
        return "language model, training, QLoRA"
    gpus = f", {'1 to 8' if row.gpus <= 8 else 'more than 8'} GPUs"  # a host
    return f"language model, training{of_copy or gpus}"


def _group_of_vision(row: PublishedRow) -> str:
    what = "encoder" if row.prompt else "transformer" if re.search(r"Swin|ViT", row.model) else "convolutions"
    precision = precision_of(row)
    number = {"fp32": "fp32", "tf32": "tf32", "int8": "int8"}.get(str(precision), "half")
    how = "training" if row.mode == "train" else "inference"
    engine = engine_of(row)
    if engine != "eager":
        number = f"{number}, {'XLA or compiled' if engine == 'compile' else 'engine'}"
    return f"{what}, {how}, {number}"
