"""Reads models that are written as the widths of their layers, and shares no H100."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from gpusage_hooks import hookimpl
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import Decision, ModelGraph, Node, PolicyInput, Stage


@hookimpl
def read_model(source: str) -> ModelGraph | None:
    """Read a file such as ``784 512 10``, a stack of fully connected layers."""
    if not source.endswith(".widths"):
        return None
    try:
        widths = [int(word) for word in Path(source).read_text(encoding="utf-8").split()]
    except (OSError, ValueError) as error:
        message = f"Model {source!r} must be a text of whole numbers; got: {error}. Write '784 512 10'."
        raise GraphError(message) from error
    layers = list(pairwise(widths))
    if not layers or min(widths) < 1:
        message = f"Model {source!r} must give two widths of at least 1; got {widths}. Write '784 512 10'."
        raise GraphError(message)
    return ModelGraph(
        name=Path(source).stem,
        source=source,
        nodes=tuple(
            Node(op_type="Gemm", inputs=((-1, a),), outputs=((-1, b),), parameters=((a, b), (b,))) for a, b in layers
        ),
        producers=tuple((index - 1,) for index in range(len(layers))),
        inputs=(("input", (-1, widths[0])),),
        parameter_count=sum(a * b + b for a, b in layers),
    )


@hookimpl
def describe_model_names() -> list[str]:
    """Let a job's comment begin with such a file, as in ``mlp.widths,batch=64``."""
    return ["*.widths"]


@hookimpl
def decide(stage: Stage, policy_input: PolicyInput, draft: Decision) -> Decision | None:
    """Keep a whole GPU for whoever asks for an H100 by name; leave all else to the built-in policies."""
    if stage != "sharing" or policy_input.request.gpu_type != "h100":
        return None
    return replace(draft, reasons=(*draft.reasons, "this site shares no H100"), plugin=__name__)
