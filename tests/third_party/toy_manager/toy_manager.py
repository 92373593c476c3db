"""Adapts Toy, a workload manager that keeps its state in one JSON file, ``{"v100": {"count": 8, "free": 3}}``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from gpusage_hooks import hookimpl
from gpusage_hooks.comment import parse_comment
from gpusage_hooks.errors import DeviceError, RequestError
from gpusage_hooks.managers import Context, GpuCatalogue, Manager, ManagerSettings
from gpusage_hooks.types import (
    Cluster,
    Code,
    Decision,
    DecisionRequest,
    GpuPool,
    GpuRequest,
    Job,
    Range,
    RenderedDecision,
)

DIRECTIVE = "#TOY"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToySettings(ManagerSettings):
    """The section ``[toy]`` of gpusage.toml.

    Attributes:
        state: The file in which Toy keeps its state.
        limit_ms: How long Toy waits for gpusaged.
    """

    state: str = "/var/lib/toy/state.json"
    limit_ms: Annotated[float, Range(low=1, high=5000)] = 100.0

    @property
    def answer_limit_s(self) -> float:
        """How long Toy waits, in seconds."""
        return self.limit_ms / 1000


TOY = Manager(name="toy", title="Toy", settings=ToySettings, directive=DIRECTIVE)


@hookimpl
def describe_manager() -> Manager:
    """Return Toy."""
    return TOY


@hookimpl
def observe_cluster(manager: str, context: Context) -> Cluster | None:
    """Read the state; where the file is not there, Toy is not on this host."""
    path = Path(context.settings_of(ToySettings).state)
    if manager != TOY.name or not path.exists():
        return None
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        pools = tuple(_pool(kind, row, context.catalogue) for kind, row in state.items())
    except (OSError, ValueError, LookupError) as error:
        message = f"Toy's state {str(path)!r} must be a JSON file of counts; got: {error}. Restart Toy."
        raise RequestError(message) from error
    return Cluster(manager=TOY.name, version="1.0", pools=pools)


@hookimpl
def parse_submission(submission: DecisionRequest, context: Context) -> Job | None:
    """Understand ``#TOY gpus=1`` and ``#TOY comment=model=resnet50.onnx,batch=64`` in a script, or Toy's own fields."""
    if submission.manager != TOY.name:
        return None
    fields = {**_directives(submission.script or ""), **submission.fields}
    count = fields.get("gpus", "0")
    if not count.isdecimal():
        message = f"Field 'gpus' of {submission.origin} must be a whole number; got {count!r}. Write 'gpus=1'."
        raise RequestError(message)
    return Job(
        submission=replace(submission, fields=fields),
        request=GpuRequest(gpu_count=int(count), gpu_type=fields.get("type")),
        request_text=f"gpus={count}",
        model_request=parse_comment(fields.get("comment", ""), context.model_names),
        card=fields.get("card"),
    )


@hookimpl
def render_decision(job: Job, decision: Decision) -> RenderedDecision | None:
    """Put a share into Toy's words; it has none for a preferred GPU type, and can hold no job to a required one."""
    if job.submission.manager != TOY.name:
        return None
    before, percent = job.request_text, decision.request.mps_thread_percent
    if decision.request.bound_types:
        return RenderedDecision(before=before, after=before, fields={}, trouble="Toy holds no job to a GPU type")
    if decision.code is not Code.REWRITE or percent is None:
        return RenderedDecision(before=before, after=before, fields={})
    return RenderedDecision(before=before, after=f"share={percent}", fields={"set.share": str(percent)})


def _pool(kind: str, row: Mapping[str, int], catalogue: GpuCatalogue) -> GpuPool:
    return GpuPool(
        gpu=_catalogue_name(kind, catalogue),
        site_type=kind,
        gpu_count=row["count"],
        free_gpu_count=row["free"],
        mps_per_gpu=100,
    )


def _catalogue_name(kind: str, catalogue: GpuCatalogue) -> str | None:
    try:
        return catalogue.find(kind).name
    except DeviceError:
        return None


def _directives(script: str) -> dict[str, str]:
    """Return the fields that the lines of *script* set."""
    lines = (line.removeprefix(DIRECTIVE).strip() for line in script.splitlines() if line.startswith(f"{DIRECTIVE} "))
    return {name: value for name, _, value in (line.partition("=") for line in lines)}
