"""What is measured: the session suite for a GPU that is lent for half an hour, a tiny one for machines without."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement, product

from gpusage_hooks.comment import parse_model
from gpusage_hooks.types import Mode, Precision, Workload
from gpusage_lab.profiling.items import Item, ProfiledJob, Side

Ladder = tuple[int, ...]
"""Batch sizes from small to large, as far as they fit; the middle one is measured first."""

IMAGES: Ladder = (1, 8, 32, 128, 512)
LARGE_IMAGES: Ladder = (1, 4, 16, 64, 256)
TEXT: Ladder = (1, 4, 16, 64, 256)
LARGE_TEXT: Ladder = (1, 4, 16)
SAMPLES: Ladder = (16, 128, 1024, 8192, 65_536)
LADDERS: dict[Ladder, tuple[str, ...]] = {
    IMAGES: (
        *(f"torchvision:{name}" for name in ("resnet18", "resnet50", "resnet152", "vgg16", "densenet121")),
        *(f"torchvision:{name}" for name in ("mobilenet_v2", "shufflenet_v2_x1_0", "efficientnet_b0", "regnet_y_8gf")),
        *(f"timm:{name}" for name in ("convnext_tiny", "convnext_base", "vit_tiny_patch16_224", "mixer_b16_224")),
        *(f"timm:{name}" for name in ("vit_base_patch16_224", "swin_tiny_patch4_window7_224", "tf_efficientnetv2_s")),
        *("builtin:resnet18-cifar", "builtin:dcgan", "builtin:pointnet"),
    ),
    LARGE_IMAGES: ("timm:vit_large_patch16_224", "builtin:unet", "builtin:gcn", "builtin:a3c", "hf:wav2vec2-base"),
    TEXT: (
        *(f"hf:{name}" for name in ("bert-base-uncased", "bert-large-uncased", "distilbert-base-uncased")),
        *(f"hf:{name}" for name in ("roberta-base", "albert-base-v2", "electra-base-discriminator")),
        *(f"hf:{name}" for name in ("gpt2", "gpt2-medium", "opt-125m", "pythia-160m", "bloom-560m")),
        *(f"hf:{name}" for name in ("t5-small", "t5-base", "bart-base")),
        *("builtin:lstm-lm", "builtin:lstm-large", "builtin:transformer"),
    ),
    LARGE_TEXT: ("hf:gpt2-large", "hf:opt-1.3b", "hf:whisper-tiny", "builtin:cyclegan"),
    SAMPLES: ("builtin:mlp", "builtin:autoencoder", "builtin:neumf", "builtin:click-model"),
}
FIRST: tuple[tuple[Mode, Precision], ...] = (("train", "tf32"), ("infer", "bf16"))
"""What is measured of every model before anything else is; the rest follows where time is left."""
REST: tuple[tuple[Mode, Precision], ...] = (("train", "fp32"), ("train", "bf16"), ("infer", "fp32"), ("infer", "tf32"))
LONG_TEXT = ("hf:bert-base-uncased", "hf:gpt2")
"""Measured with 512 words as well as with 128."""

PARTNERS = (
    "torchvision:resnet50,batch=64,mode=train,precision=tf32",
    "torchvision:resnet18,batch=128,mode=train,precision=tf32",
    "torchvision:mobilenet_v2,batch=64,mode=train,precision=tf32",
    "torchvision:vgg16,batch=32,mode=train,precision=tf32",
    "timm:vit_base_patch16_224,batch=64,mode=train,precision=bf16",
    "timm:vit_base_patch16_224,batch=8,mode=infer,precision=bf16",
    "hf:bert-base-uncased,batch=32,mode=train,precision=bf16",
    "hf:bert-base-uncased,batch=8,mode=infer,precision=bf16",
    "hf:gpt2,batch=8,mode=train,precision=bf16",
    "hf:gpt2-medium,batch=1,mode=infer,precision=bf16",
    "hf:t5-small,batch=16,mode=train,precision=tf32",
    "builtin:lstm-lm,batch=64,mode=train,precision=tf32",
    "builtin:neumf,batch=8192,mode=train,precision=tf32",
    "builtin:click-model,batch=4096,mode=train,precision=tf32",
    "builtin:dcgan,batch=128,mode=train,precision=tf32",
    "builtin:gcn,batch=32,mode=train,precision=tf32",
)
PAIR_S = 1.5
STALLS = (0.5, 2.0)

TINY = (
    "builtin:tiny-mlp,batch=4,mode=train,precision=fp32",
    "builtin:tiny-cnn,batch=2,mode=infer,precision=fp32",
    "builtin:tiny-lstm,batch=2,mode=train,precision=fp32",
)
TINY_S = 0.2


def job(text: str) -> ProfiledJob:
    """Return the job that *text*, as in a job's comment, describes.

    Raises:
        RequestError: It is malformed.
    """
    request = parse_model(text)
    return ProfiledJob(model=request.model, workload=request.workload)


def session() -> tuple[Item, ...]:
    """Return what gpu-session.md lists: hours of it, in tiers, so that any budget is well spent."""
    partners = tuple(map(job, PARTNERS))
    return (
        *_solos(),
        *_shares(partners, (100,), tier=0),
        *_pairs(partners, PAIR_S),
        *_shares(partners, (25, 50, 75), tier=2),
    )


def tiny() -> tuple[Item, ...]:
    """Return one item of each kind, on networks that a CPU runs in milliseconds: to try the machinery."""
    return _of_jobs(tuple(map(job, TINY)), TINY_S)


def named(texts: Iterable[str], seconds: float = 2.0) -> tuple[Item, ...]:
    """Return every kind of item for the jobs that *texts* describe.

    Raises:
        RequestError: One is malformed.
    """
    return _of_jobs(tuple(map(job, texts)), seconds)


def _of_jobs(jobs: Sequence[ProfiledJob], seconds: float) -> tuple[Item, ...]:
    solos = [Item(kind="solo", sides=(Side(job=item),), seconds=seconds) for item in jobs]
    rest = (*_shares(jobs, (100, 50), tier=1), *_pairs(jobs, seconds))
    return (*solos, *(replace(item, seconds=seconds) for item in rest))


def _solos() -> Iterator[Item]:
    for ladder, models in LADDERS.items():
        middle = ladder[len(ladder) // 2]
        for model, (mode, precision), batch in product(models, (*FIRST, *REST), ladder):
            shapes: list[tuple[tuple[str, tuple[int, ...]], ...]] = [()]
            if model in LONG_TEXT:
                shapes.append((("seq", (512,)),))
            for shape in shapes:
                workload = Workload(batch_size=batch, mode=mode, precision=precision, shape=shape)
                is_first = (mode, precision) in FIRST
                tier = (0 if is_first else 4) if batch == middle else (3 if is_first else 5)
                yield Item(kind="solo", sides=(Side(job=ProfiledJob(model=model, workload=workload)),), tier=tier)
    for item, stall in product(map(job, PARTNERS[:4]), STALLS):
        yield Item(kind="solo", sides=(Side(job=replace(item, stall_ratio=stall)),), tier=4)


def _shares(jobs: Iterable[ProfiledJob], percents: Iterable[int], *, tier: int) -> Iterator[Item]:
    for item, percent in product(jobs, percents):
        yield Item(kind="share", sides=(Side(job=item, percent=percent),), tier=tier)


def _pairs(jobs: Sequence[ProfiledJob], seconds: float) -> Iterator[Item]:
    """Yield all pairs, a job beside itself too, every other one first: a budget that ends early has seen each job."""
    places = combinations_with_replacement(range(len(jobs)), 2)
    for first, second in places:
        sides = (Side(job=jobs[first]), Side(job=jobs[second]))
        yield Item(kind="pair", sides=sides, tier=1 + (first + second) % 2, seconds=seconds)
