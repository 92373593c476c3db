"""The table of keys that a job's user may write, a row for each.

The parser of comments, the options of commands, the tables of docs/jobs.md and the JSON schema are made from it. A new
key is a row here, its field of `Workload`, and its use; one of the group ``run`` is an argument of the Python API, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, get_args

from gpusage_hooks.job_values import (
    SWITCH,
    Bandwidth,
    Count,
    Duration,
    JobId,
    Names,
    Number,
    Rate,
    Sizes,
    StepTime,
    Switch,
    Text,
    Tokens,
    Utilization,
    Words,
)
from gpusage_hooks.types import Engine, Layout, Mode, Optimizer, Precision, Slo, SoloRun, Strategy, Workload
from gpusage_hooks.types.workloads import Quantised

Affects = Literal["step", "decision", "nothing"]
"""What the value changes: the work of a step; only the decision; or neither, but for which model is read."""
Group = Literal["model", "run", "known", "accepted"]
"""What a key is about: the model, how it is run, what its user knows of the job, what its user accepts."""
MODES: tuple[Mode, ...] = get_args(Mode)
TRAINING: tuple[Mode, ...] = ("train",)
INFERENCE: tuple[Mode, ...] = ("infer",)
QUANTISED: tuple[Precision, ...] = get_args(Quantised)
"""Precisions of weights, in inference and below adapters that are trained; what passes has two bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKey:
    """One key.

    Attributes:
        name: As it is written in a comment; its option is ``--name``, with ``-`` in place of ``_``.
        kind: Reads its value.
        affects: What the value changes; a prediction of a step rests on no other key.
        targets: The fields of `Workload` that it sets, in the order of the value's parts; none where it sets another.
        form: What stands for the value in ``--help``; empty for the words of `kind`.
        unit: Of the value as it is written; empty where it has none.
        default: What counts where the key is left out, for people.
        modes: Those that it belongs to.
        requires: The key without which it means nothing; empty for none.
        help: What it means, in a sentence or two.
        details: What docs/jobs.md says as well.
        example: A value.
    """

    name: str
    group: Group
    kind: Text
    affects: Affects
    targets: tuple[str, ...] = ()
    form: str = ""
    unit: str = ""
    default: str
    modes: tuple[Mode, ...] = MODES
    requires: str = ""
    help: str
    details: str = ""
    example: str

    @property
    def workload_default(self) -> Any:  # that of any field
        """Return the default of the field that it sets; ``None`` where it sets several, or a part of a value."""
        return getattr(_DEFAULT, self.targets[0], None) if len(self.targets) == 1 else None


_DEFAULT = Workload()


def _row(kind: Text, /, **columns: Any) -> Mapping[str, Any]:
    return {"kind": kind, **columns}


_TABLE: Mapping[Group, Mapping[str, Mapping[str, Any]]] = {
    "model": {
        "model": _row(
            Text(),
            affects="nothing",
            form="MODEL",
            default="required",
            example="resnet50.onnx",
            help="An .onnx or .pt2 file, a Hugging Face folder or its config.json, a saved .card.json, or a name "
            "such as timm:resnet50, torchvision:vgg16 or hf:bert-base-uncased.",
        ),
        "batch": _row(Count("64"), targets=("batch_size",), unit="samples", help="Samples per step on one GPU."),
        "mode": _row(Words(MODES), example="infer", help="Whether the job trains the model or runs it."),
        "precision": _row(
            Words(get_args(Precision)),
            example="bf16",
            help="fp16, bf16: automatic mixed precision in training; fp16-pure, bf16-pure: two bytes for everything; "
            "fp8-mixed: as bf16, linear layers in fp8; the others: quantised weights, in inference and below adapters.",
        ),
        "optimizer": _row(
            Words(get_args(Optimizer)), example="adam", help="Optimizer in training; none: forward and backward only."
        ),
        "shape": _row(
            Sizes(),
            affects="nothing",
            form="NAME=SIZES",
            default="the file's own",
            example="seq=128",
            help="Size of a free dimension or of a whole input: seq=128 or input=3x224x224; may be repeated.",
            details="Only free dimensions need one.",
        ),
        "steps": _row(
            Count("100000"),
            affects="decision",
            unit="steps",
            default="unknown",
            help="Steps that the job runs; adds the run time and its price.",
        ),
        "gpusage": _row(Switch(), affects="nothing", default="on", example="off", help="Off leaves this job alone."),
        "learn": _row(
            Switch(),
            affects="nothing",
            default="off, or as the site says",
            help="On lets gpusage observe this job's own run, so that the next job of the same script need not name a "
            "model.",
            details="Write it in place of a model: `#GPUSAGE learn=on` ([capture.md](capture.md)).",
        ),
    },
    "run": {
        "accumulate": _row(
            Count("8"), unit="steps", modes=TRAINING, help="Training: gradient accumulation steps per update."
        ),
        "trainable": _row(
            Number("a share of the parameters, above 0 and at most 1", "0.02", most=1.0),
            form="SHARE",
            unit="share of 1",
            modes=TRAINING,
            help="Training: trained share of the parameters, such as 0.02; the others are frozen.",
        ),
        "lora": _row(
            Count("16"),
            form="RANK",
            default="no adapters",
            modes=TRAINING,
            help="Training: rank of the LoRA adapters beside all linear layers; only they are trained.",
            details="With precision=nf4 this is QLoRA; fp16, bf16 mean -pure. For some layers write `trainable=SHARE`.",
        ),
        "checkpointing": _row(
            Switch(), modes=TRAINING, help="Training: recompute activations of repeated blocks instead of keeping them."
        ),
        "gpus": _row(
            Count("4"),
            unit="GPUs",
            help="Training: GPUs that train together, each with a batch of its own unless tensor, context or "
            "pipeline divide it; figures are per GPU. With generate: GPUs that divide each layer (tensor "
            "parallelism), or the layers (`strategy=pipeline`); memory is per GPU, times and rates are of all.",
        ),
        "tensor": _row(
            Count("2"),
            unit="GPUs",
            modes=TRAINING,
            requires="gpus",
            help="Training: GPUs among which each layer is divided (tensor parallelism).",
            details="Megatron's `--tensor-model-parallel-size`. `gpus` counts the GPUs of every copy of the model.",
        ),
        "sequence_parallel": _row(
            Switch(),
            modes=TRAINING,
            requires="tensor",
            help="Training: the GPUs of tensor also divide norms, dropouts and residuals, by their tokens.",
            details="Megatron's `--sequence-parallel`, which NeMo's recipes set; fsdp and zero3 imply it.",
        ),
        "context": _row(
            Count("2"),
            unit="GPUs",
            modes=TRAINING,
            requires="gpus",
            help="Training: GPUs among which each sequence is divided (context parallelism).",
            details="Megatron's `--context-parallel-size`, torchtitan's `context_parallel_degree`.",
        ),
        "expert": _row(
            Count("8"),
            unit="GPUs",
            modes=TRAINING,
            requires="gpus",
            help="Training: GPUs among which the experts of a mixture are divided, each with a batch of its own.",
            details="Megatron's `--expert-model-parallel-size`. They are some of those that train the same weights.",
        ),
        "pipeline": _row(
            Count("2"),
            unit="stages",
            modes=TRAINING,
            requires="gpus",
            help="Training: stages of a pipeline, each with some of the layers; accumulate=M are its micro-batches.",
            details="Megatron's `--pipeline-model-parallel-size`. Stages compute in the order 1F1B.",
        ),
        "virtual_pipeline": _row(
            Count("2"),
            unit="pieces",
            modes=TRAINING,
            requires="pipeline",
            help="Training: pieces of each stage (interleaved), which waits less and keeps more activations.",
            details="Megatron's `virtual_pipeline_model_parallel_size`.",
        ),
        "strategy": _row(
            Words(get_args(Strategy)),
            requires="gpus",
            example="fsdp",
            help="How several GPUs divide the model: in training any but pipeline; with generate pipeline alone.",
            details="With pipeline, each GPU holds some of the layers and they compute one after the other, as with "
            "transformers' `device_map`; without it, they divide each layer.",
        ),
        "network": _row(
            Bandwidth(),
            targets=("network_bytes_per_s",),
            form="GBIT",
            unit="Gb/s",
            default="the site's, or what such hosts commonly have",
            modes=TRAINING,
            requires="gpus",
            help="Training on more than 8 GPUs: Gb/s that the network between hosts carries for each GPU, one way.",
            details="200 for a host of 8 GPUs with 8 cards of 200 Gb/s; 12.5 for one with one card of 100.",
        ),
        "generate": _row(
            Tokens(),
            form="PROMPT+NEW",
            unit="tokens",
            default="one pass",
            modes=INFERENCE,
            example="512+128",
            help="Inference of a language model: prompt tokens and new tokens, such as 512+128.",
            details="It implies `mode=infer`.",
        ),
        "compile": _row(
            Switch(),
            help="The model is compiled (torch.compile): half precision is faster, and the need is not familiar.",
            details="Memory and fp32 are predicted as if not compiled. Such a job keeps the GPU that it requests.",
        ),
        "layout": _row(
            Words(get_args(Layout)),
            example="channels_last",
            help="Memory layout of images: channels_last as PyTorch's torch.channels_last, faster in half precision.",
            details="Convolutions in half precision then need no reordering; nothing else changes.",
        ),
        "engine": _row(
            Words(get_args(Engine)),
            modes=INFERENCE,
            example="vllm",
            help="Inference: what runs the model; compile is compile=on; vllm and tensorrt-llm serve language models.",
            details="All but eager replay CUDA graphs when they generate, tensorrt always.",
        ),
        "memory_share": _row(
            Number("a share of the GPU's memory, above 0 and at most 1", "0.47", most=1.0),
            form="SHARE",
            unit="share of 1",
            default="the engine's own, 0.9",
            modes=INFERENCE,
            requires="engine",
            help="Inference: share of the GPU's memory that the engine is told to take.",
            details="vLLM's `--gpu-memory-utilization`.",
        ),
        "processes": _row(
            Count("4"),
            unit="processes",
            help="Processes with the model that run on the GPU at a time, such as Spark's tasks in an executor.",
            details="A share must hold the memory of all; each is predicted on its part of it.",
        ),
    },
    "known": {
        "utilization": _row(
            Utilization(),
            affects="decision",
            targets=("alone.utilization", "alone.batch_size"),
            form="PERCENT[@BATCH]",
            unit="percent",
            default="unknown",
            example="60",
            help="GPU utilization in nvidia-smi when the job ran alone on the whole GPU; 60@32 is for batch 32.",
        ),
        "step_time": _row(
            StepTime(),
            affects="decision",
            targets=("alone.step_time_s", "alone.gpu", "alone.step_batch_size"),
            form="TIME@GPU[@BATCH]",
            unit="us, ms or s",
            default="unknown",
            example="30ms@a100",
            help="Step time of a run alone on the named whole GPU, such as 30ms@a100; 30ms@a100@32 is for batch 32.",
        ),
        "first_run": _row(
            JobId(),
            affects="decision",
            form="JOB",
            default="none",
            example="1234",
            help="The jobs whose own runs showed this. gpusage writes this key; you need not.",
        ),
    },
    "accepted": {
        "slowdown": _row(
            Number("a number from 1 to 100", "1.25", least=1.0, most=100.0),
            affects="decision",
            form="TIMES",
            default="the site's limit, 1.25",
            example="1.1",
            help="Largest step time on a share over that on the whole GPU, such as 1.1; 1 means never share.",
        ),
        "slo": _row(
            Duration(),
            affects="decision",
            targets=("slo.latency_s",),
            form="TIME",
            unit="us, ms or s",
            default="none",
            modes=INFERENCE,
            help="Inference: the latency that 95 of 100 requests must keep.",
            details="A site's prolog sees it only in the comment.",
        ),
        "rate": _row(
            Rate("requests per second above 0", "100"),
            affects="decision",
            targets=("slo.rate_per_s",),
            form="PER_SECOND",
            unit="requests/s",
            default="none",
            modes=INFERENCE,
            requires="slo",
            help="Inference: requests per second at which the latency must hold.",
        ),
        "forbid": _row(
            Names(),
            affects="decision",
            targets=("forbidden_gpus",),
            form="NAME[+NAME]",
            default="none",
            example="t4+v100",
            help="GPU types that the job must not get, joined by +, such as t4+v100.",
            details="`a100` means every kind of A100, and every slice of one.",
        ),
        "slices": _row(
            Switch(), affects="decision", default="if untyped", help="Whether a MIG slice of the requested GPU will do."
        ),
    },
}


def _job_key(group: Group, name: str, columns: Mapping[str, Any]) -> JobKey:
    """Return one key; what its row leaves out follows from the field of `Workload` with its name, and from its kind."""
    kind, targets = columns["kind"], columns.get("targets", (name,) if hasattr(_DEFAULT, name) else ())
    usual = getattr(_DEFAULT, targets[0], None) if len(targets) == 1 else None
    usual_word = SWITCH[not usual] if isinstance(usual, bool) else str(usual).removesuffix(".0")
    by_kind = {"form": "N" if isinstance(kind, Count) else "", "example": getattr(kind, "example", SWITCH[0])}
    row = {"affects": "step", "targets": targets, "default": usual_word, **by_kind, **columns}
    return JobKey(name=name, group=group, **row)


_ROWS = tuple(_job_key(group, name, row) for group, rows in _TABLE.items() for name, row in rows.items())
JOB_KEYS: Mapping[str, JobKey] = MappingProxyType({row.name: row for row in _ROWS})  # in the order of docs/jobs.md
STEP_SETTINGS: tuple[JobKey, ...] = tuple(row for row in _ROWS if row.group == "run")
"""The keys that change what a step is, beside batch, mode, precision and optimizer."""


def make_workload(values: Mapping[str, Any]) -> Workload:
    """Return the workload that *values* describe: parsed values by the names of their keys."""
    # A target such as slo.latency_s is a field of a value within the workload.
    tables: dict[str, dict[str, Any]] = {"": {}, "slo": {}, "alone": {}}
    for name, value in values.items():
        targets = JOB_KEYS[name].targets
        for target, part in zip(targets, value if len(targets) > 1 else (value,), strict=True):
            table, _, field = target.rpartition(".")
            tables[table][field] = part

    slo = Slo(**tables["slo"]) if tables["slo"] else None
    return Workload(**tables[""], slo=slo, alone=SoloRun(**tables["alone"]))


def step_settings_of(workload: Workload) -> Workload:
    """Return *workload* with the defaults for all that changes no step, so that equal steps are equal values."""
    return replace(workload, **_NO_STEP_DEFAULTS)


_NO_STEP_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        field: getattr(_DEFAULT, field)
        for row in _ROWS
        if row.affects != "step"
        for field in (target.partition(".")[0] for target in row.targets)
    }
)
