"""The table of keys that a job's user may write: one row each.

The parser of comments, the options of commands, the arguments of the Python API and the
tables of docs/jobs.md are made from it. A new key is a row here and its use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

from gpusage_hooks.job_values import (
    Bandwidth,
    Count,
    Duration,
    JobId,
    Names,
    Number,
    Sizes,
    StepTime,
    Switch,
    Text,
    Tokens,
    Utilization,
    Words,
)
from gpusage_hooks.types import Engine, Layout, Mode, Optimizer, Precision, Slo, SoloRun, Strategy, Workload

Group = Literal["model", "run", "known", "accepted"]
"""What a key is about: the model, how it is run, what its user knows of the job, what its user accepts."""
MODES: tuple[Mode, ...] = get_args(Mode)
TRAINING: tuple[Mode, ...] = ("train",)
INFERENCE: tuple[Mode, ...] = ("infer",)
QUANTISED: tuple[Precision, ...] = ("int8", "int4", "fp8", "nf4")
"""Precisions of weights, in inference and below adapters that are trained; what passes has two bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKey:
    """One key.

    Attributes:
        name: As it is written in a comment; its option is ``--name``, with ``-`` in place of ``_``.
        kind: Reads its value.
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
        """Return what the field has that it sets; ``None`` where it sets several, or a part of one."""
        return getattr(_DEFAULT, self.targets[0], None) if len(self.targets) == 1 else None


_DEFAULT = Workload()
_ROWS = (
    JobKey(
        name="model",
        group="model",
        kind=Text(),
        form="MODEL",
        default="required",
        help="An .onnx or .pt2 file, a Hugging Face folder or its config.json, a saved .card.json, or a name such as "
        "timm:resnet50, torchvision:vgg16 or hf:bert-base-uncased.",
        example="resnet50.onnx",
    ),
    JobKey(
        name="batch",
        group="model",
        kind=Count("64"),
        targets=("batch_size",),
        form="N",
        unit="samples",
        default="1",
        help="Samples per step on one GPU.",
        example="64",
    ),
    JobKey(
        name="mode",
        group="model",
        kind=Words(MODES),
        targets=("mode",),
        default="train",
        help="Whether the job trains the model or runs it.",
        example="infer",
    ),
    JobKey(
        name="precision",
        group="model",
        kind=Words(get_args(Precision)),
        targets=("precision",),
        default="fp32",
        help="fp16 and bf16: automatic mixed precision in training; fp16-pure and bf16-pure: two bytes for everything; "
        "fp8-mixed: training as bf16 with the products of linear layers in fp8; int8, int4, fp8 and nf4: quantised "
        "weights, in inference and below adapters.",
        example="bf16",
    ),
    JobKey(
        name="optimizer",
        group="model",
        kind=Words(get_args(Optimizer)),
        targets=("optimizer",),
        default="momentum",
        help="Optimizer in training; none: forward and backward only.",
        example="adam",
    ),
    JobKey(
        name="shape",
        group="model",
        kind=Sizes(),
        targets=("shape",),
        form="NAME=SIZES",
        default="the file's own",
        help="Size of a free dimension or of a whole input: seq=128 or input=3x224x224; may be repeated.",
        details="Only free dimensions need one.",
        example="seq=128",
    ),
    JobKey(
        name="steps",
        group="model",
        kind=Count("100000"),
        targets=("steps",),
        form="N",
        unit="steps",
        default="unknown",
        help="Steps that the job runs; adds the run time and its price.",
        example="100000",
    ),
    JobKey(
        name="gpusage",
        group="model",
        kind=Switch(),
        default="on",
        help="Off leaves this job alone.",
        example="off",
    ),
    JobKey(
        name="learn",
        group="model",
        kind=Switch(),
        default="off, or as the site says",
        help="On lets this job's own run show its model, so that the next job of the same script need not name one.",
        details="Write it in place of a model: `#GPUSAGE learn=on` ([capture.md](capture.md)).",
        example="on",
    ),
    JobKey(
        name="accumulate",
        group="run",
        kind=Count("8"),
        targets=("accumulate",),
        form="N",
        unit="steps",
        default="1",
        modes=TRAINING,
        help="Training: gradient accumulation steps per update.",
        example="8",
    ),
    JobKey(
        name="trainable",
        group="run",
        kind=Number("a share of the parameters, above 0 and at most 1", "0.02", most=1.0),
        targets=("trainable",),
        form="SHARE",
        unit="share of 1",
        default="1",
        modes=TRAINING,
        help="Training: trained share of the parameters, such as 0.02; the others are frozen.",
        example="0.02",
    ),
    JobKey(
        name="lora",
        group="run",
        kind=Count("16"),
        targets=("lora",),
        form="RANK",
        default="no adapters",
        modes=TRAINING,
        help="Training: rank of the LoRA adapters beside all linear layers; only they are trained.",
        details="With precision=nf4 this is QLoRA. If only some layers have them, write `trainable=SHARE`.",
        example="16",
    ),
    JobKey(
        name="checkpointing",
        group="run",
        kind=Switch(),
        targets=("checkpointing",),
        default="off",
        modes=TRAINING,
        help="Training: recompute the activations of repeated blocks instead of keeping them.",
        example="on",
    ),
    JobKey(
        name="gpus",
        group="run",
        kind=Count("4"),
        targets=("gpus",),
        form="N",
        unit="GPUs",
        default="1",
        help="Training: GPUs that train together, each with a batch of its own unless tensor, context or pipeline "
        "divide it; figures are per GPU. With generate: GPUs that divide each layer (tensor parallelism), or the "
        "layers (`strategy=pipeline`); memory is per GPU, times and rates are of all.",
        details="The request stays as it is.",
        example="4",
    ),
    JobKey(
        name="tensor",
        group="run",
        kind=Count("2"),
        targets=("tensor",),
        form="N",
        unit="GPUs",
        default="1",
        modes=TRAINING,
        requires="gpus",
        help="Training: GPUs among which each layer is divided (tensor parallelism).",
        details="Megatron's `--tensor-model-parallel-size`. `gpus` counts all GPUs, those of every copy of the model.",
        example="2",
    ),
    JobKey(
        name="sequence_parallel",
        group="run",
        kind=Switch(),
        targets=("sequence_parallel",),
        default="off",
        modes=TRAINING,
        requires="tensor",
        help="Training: the GPUs of tensor also divide norms, dropouts and residuals, by their tokens.",
        details="Megatron's `--sequence-parallel`, which NeMo's recipes set; fsdp and zero3 imply it.",
        example="on",
    ),
    JobKey(
        name="context",
        group="run",
        kind=Count("2"),
        targets=("context",),
        form="N",
        unit="GPUs",
        default="1",
        modes=TRAINING,
        requires="gpus",
        help="Training: GPUs among which each sequence is divided (context parallelism).",
        details="Megatron's `--context-parallel-size`, torchtitan's `context_parallel_degree`.",
        example="2",
    ),
    JobKey(
        name="expert",
        group="run",
        kind=Count("8"),
        targets=("expert",),
        form="N",
        unit="GPUs",
        default="1",
        modes=TRAINING,
        requires="gpus",
        help="Training: GPUs among which the experts of a mixture are divided, each with a batch of its own.",
        details="Megatron's `--expert-model-parallel-size`. They are some of those that train the same weights.",
        example="8",
    ),
    JobKey(
        name="pipeline",
        group="run",
        kind=Count("2"),
        targets=("pipeline",),
        form="N",
        unit="stages",
        default="1",
        modes=TRAINING,
        requires="gpus",
        help="Training: stages of a pipeline, each with some of the layers; accumulate=M are its micro-batches.",
        details="Megatron's `--pipeline-model-parallel-size`. Stages compute in the order 1F1B.",
        example="2",
    ),
    JobKey(
        name="virtual_pipeline",
        group="run",
        kind=Count("2"),
        targets=("virtual_pipeline",),
        form="N",
        unit="pieces",
        default="1",
        modes=TRAINING,
        requires="pipeline",
        help="Training: pieces of each stage of an interleaved pipeline, which waits less and keeps more activations.",
        details="Megatron's `virtual_pipeline_model_parallel_size`: the layers of a stage divided by "
        "`--num-layers-per-virtual-pipeline-stage`.",
        example="2",
    ),
    JobKey(
        name="strategy",
        group="run",
        kind=Words(get_args(Strategy)),
        targets=("strategy",),
        default="ddp",
        requires="gpus",
        help="How several GPUs divide the model: in training any but pipeline; with generate pipeline alone.",
        details="With pipeline, each GPU holds some of the layers and they compute one after the other, as with "
        "transformers' `device_map`; without it, they divide each layer.",
        example="fsdp",
    ),
    JobKey(
        name="network",
        group="run",
        kind=Bandwidth(),
        targets=("network_bytes_per_s",),
        form="GBIT",
        unit="Gb/s",
        default="the site's, or what such hosts commonly have",
        modes=TRAINING,
        requires="gpus",
        help="Training on more than 8 GPUs: Gb/s that the network between hosts carries for each GPU, one way.",
        details="200 for a host of 8 GPUs with 8 cards of 200 Gb/s; 12.5 for one with one card of 100.",
        example="200",
    ),
    JobKey(
        name="generate",
        group="run",
        kind=Tokens(),
        targets=("generate",),
        form="PROMPT+NEW",
        unit="tokens",
        default="one pass",
        modes=INFERENCE,
        help="Inference of a language model: prompt tokens and new tokens, such as 512+128.",
        details="It implies `mode=infer`.",
        example="512+128",
    ),
    JobKey(
        name="compile",
        group="run",
        kind=Switch(),
        targets=("compile",),
        default="off",
        help="The model is compiled (torch.compile): half precision is faster, and the need is not familiar.",
        details="Memory and fp32 are predicted as if not compiled. Such a job keeps the GPU that it requests.",
        example="on",
    ),
    JobKey(
        name="layout",
        group="run",
        kind=Words(get_args(Layout)),
        targets=("layout",),
        default="channels_first",
        help="Memory layout of images: channels_last as PyTorch's torch.channels_last, faster in half precision.",
        details="Convolutions in half precision then need no reordering; nothing else changes.",
        example="channels_last",
    ),
    JobKey(
        name="engine",
        group="run",
        kind=Words(get_args(Engine)),
        targets=("engine",),
        default="eager",
        modes=INFERENCE,
        help="Inference: what runs the model; compile is compile=on; vllm and tensorrt-llm serve language models.",
        details="All but eager replay CUDA graphs when they generate, tensorrt always. Such a job keeps its GPU.",
        example="vllm",
    ),
    JobKey(
        name="utilization",
        group="known",
        kind=Utilization(),
        targets=("alone.utilization", "alone.batch_size"),
        form="PERCENT[@BATCH]",
        unit="percent",
        default="unknown",
        help="GPU utilization that nvidia-smi showed when the job ran alone on the whole GPU; 60@32 is for batch 32.",
        example="60",
    ),
    JobKey(
        name="step_time",
        group="known",
        kind=StepTime(),
        targets=("alone.step_time_s", "alone.gpu"),
        form="TIME@GPU",
        unit="us, ms or s",
        default="unknown",
        help="Step time when the job ran alone on the named whole GPU, such as 30ms@a100.",
        example="30ms@a100",
    ),
    JobKey(
        name="first_run",
        group="known",
        kind=JobId(),
        form="JOB",
        default="none",
        help="The job whose own run showed this model. gpusage writes this key; you need not.",
        example="1234",
    ),
    JobKey(
        name="slowdown",
        group="accepted",
        kind=Number("a number from 1 to 100", "1.25", least=1.0, most=100.0),
        targets=("slowdown",),
        form="TIMES",
        default="the site's limit, 1.25",
        help="Largest step time on a share over that on the whole GPU, such as 1.1; 1 means never share.",
        example="1.1",
    ),
    JobKey(
        name="slo",
        group="accepted",
        kind=Duration(),
        targets=("slo.latency_s",),
        form="TIME",
        unit="us, ms or s",
        default="none",
        modes=INFERENCE,
        help="Inference: the latency that 95 of 100 requests must keep.",
        details="A site's prolog sees it only in the comment.",
        example="50ms",
    ),
    JobKey(
        name="rate",
        group="accepted",
        kind=Number("requests per second above 0", "100"),
        targets=("slo.rate_per_s",),
        form="PER_SECOND",
        unit="requests/s",
        default="none",
        modes=INFERENCE,
        requires="slo",
        help="Inference: requests per second at which the latency must hold.",
        example="100",
    ),
    JobKey(
        name="forbid",
        group="accepted",
        kind=Names(),
        targets=("forbidden_gpus",),
        form="NAME[+NAME]",
        default="none",
        help="GPU types that the job must not get, joined by +, such as t4+v100.",
        details="`a100` means every kind of A100, and every slice of one.",
        example="t4+v100",
    ),
)
JOB_KEYS: Mapping[str, JobKey] = MappingProxyType({row.name: row for row in _ROWS})
"""Each key by its name, in the order of docs/jobs.md."""
STEP_SETTINGS: tuple[JobKey, ...] = tuple(row for row in _ROWS if row.group == "run")
"""The keys that change what a step is, beside batch, mode, precision and optimizer."""


def make_workload(values: Mapping[str, Any]) -> Workload:
    """Return the workload that *values* describe: parsed values by the names of their keys."""
    tables: dict[str, dict[str, Any]] = {"": {}, "slo": {}, "alone": {}}
    for name, value in values.items():
        targets = JOB_KEYS[name].targets
        for target, part in zip(targets, value if len(targets) > 1 else (value,), strict=True):
            table, _, field = target.rpartition(".")
            tables[table][field] = part
    slo = Slo(**tables["slo"]) if tables["slo"] else None
    return Workload(**tables[""], slo=slo, alone=SoloRun(**tables["alone"]))
