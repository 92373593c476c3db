"""The rows of the two published tables, with their columns under one set of names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from gpusage_lab.measurements.tables import DataFolder

VISION, LANGUAGE = "published_vision.csv.gz", "published_language_models.csv.gz"


class PublishedRow(NamedTuple):
    """One figure as it was published.

    Attributes:
        source: Its repository.
        model: The model as the publisher names it.
        hint: What is known of its architecture.
        task: As the publisher calls it.
        mode: ``train``, ``finetune``, ``infer`` or ``generate``.
        method: Of fine-tuning or quantization; empty for none.
        gpu: As published.
        gpus: How many.
        parallelism: As published; empty for image models.
        framework: With its version where that is known.
        precision: As published.
        attention: As published; empty for image models.
        engine: Whether and by what the model was compiled.
        checkpointing: As published.
        layout: ``yes`` for channels last, ``no``, ``unknown``; empty for language models.
        batch: Samples per GPU; ``None`` where that is unknown.
        global_batch: Samples per update; ``None`` where that is unknown.
        prompt: Tokens that are read, or the sequence length; ``None`` where that is unknown.
        new_tokens: Tokens that are written; ``None`` where that is unknown.
        image: Sides of an image; empty for none.
        metric: The figure's unit.
        value: The figure.
        note: What its reader remarked.
    """

    source: str
    model: str
    hint: str
    task: str
    mode: str
    method: str
    gpu: str
    gpus: int
    parallelism: str
    framework: str
    precision: str
    attention: str
    engine: str
    checkpointing: str
    layout: str
    batch: int | None
    global_batch: int | None
    prompt: int | None
    new_tokens: int | None
    image: tuple[int, ...]
    metric: str
    value: float
    note: str


def published_rows(data: DataFolder) -> list[PublishedRow]:
    """Return all rows of both tables, in their order.

    Raises:
        RequestError: A table is missing, or not whole.
    """
    return [*_vision_rows(data), *_language_rows(data)]


def _vision_rows(data: DataFolder) -> Iterator[PublishedRow]:
    for row in data.read(VISION).astype(object).fillna("").to_dict("records"):
        length = re.match(r"seq (\d+)", str(row["input"]))
        side = re.match(r"(\d+)x(\d+)\b(?!x)", str(row["input"]))
        yield PublishedRow(
            source=str(row["source"]).split(" ")[0],
            **{name: str(row[name]) for name in ("model", "task", "mode", "gpu", "precision", "metric", "layout")},
            hint=str(row["architecture_hint"]),
            method="",
            gpus=int(row["gpu_count"]),
            parallelism="",
            framework=str(row["framework_and_version"]),
            attention="",
            engine=str(row["compiled_or_engine"]),
            checkpointing="no",
            batch=_count(row["batch_per_gpu"]),
            global_batch=None,
            prompt=int(length[1]) if length else None,
            new_tokens=None,
            image=(int(side[1]), int(side[2])) if side else (),
            value=float(row["value"]),
            note=str(row["note"]),
        )


def _language_rows(data: DataFolder) -> Iterator[PublishedRow]:
    same = ("source", "model", "task", "mode", "parallelism", "framework", "precision", "attention", "metric")
    for row in data.read(LANGUAGE).astype(object).fillna("").to_dict("records"):
        yield PublishedRow(
            **{name: str(row[name]) for name in same},
            hint=str(row["architecture_hint"]),
            method=str(row["method"]),
            gpu=str(row["gpu"]),
            gpus=int(row["gpu_count"]),
            engine=str(row["compile"]),
            checkpointing=str(row["activation_checkpointing"]),
            layout="",
            batch=_count(row["micro_batch_per_gpu"]),
            global_batch=_count(row["global_batch"]),
            prompt=_count(row["sequence_length_in"]),
            new_tokens=_count(row["sequence_length_out"]),
            image=(),
            value=float(row["value"]),
            note=str(row["note"]),
        )


def _count(value: Any) -> int | None:  # pandas has no types
    """Return the whole number that *value* is, ``None`` where it is none."""
    return int(float(value)) if re.fullmatch(r"\d+(\.0)?", str(value)) else None
