"""The learned values, with types: the files of ``pretrained/``, each decoded once, with its card.

The laboratory writes these values (`gpusage_lab.learning.artifacts`) and the predictors read them; their fields are the
names in the JSON.

Invariants:

1. Nothing but the standard library reads them; nothing is ever unpickled. msgspec takes twice as long to import as
   Python takes to start, and numpy is not for every command.
2. A value is equal only to itself, so that what is made of it can be cached by it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from gpusage.predictors.arrays import FloatArray

T = TypeVar("T")
PRETRAINED_FOLDER = Path(__file__).with_name("pretrained")
"""The artifacts that gpusage comes with; a path, as a package of resources would be one more module to import."""
Vector = Sequence[float]
Matrix = Sequence[Sequence[float]]
Span = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Card:
    """What a reader must know of an artifact.

    Attributes:
        fitted_on: One line per source: file, rows used, what was left out and why.
        licences: Of the sources.
        ranges: What the fitted rows span, by quantity: least and greatest.
        known: What occurs in the fitted rows, by kind.
        errors: What evaluation gave, by split.
        notes: Anything else.
    """

    purpose: str
    fitted_on: Sequence[str]
    licences: Sequence[str]
    ranges: Mapping[str, Span] = field(default_factory=dict)
    known: Mapping[str, Sequence[str]] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTimeDeviations:
    """How far 90 % of the truths lie from a predicted step time, on the logarithmic scale.

    They are conformal quantiles: of the misses on families and GPUs that a fit did not see, each campaign alike.

    Attributes:
        known: On a measured GPU, of known models.
        unseen_gpu: What a GPU that was not measured adds.
        short: What kernels add that are so short that what starts them decides.
        of_settings: In place of `known`, by kind of workload (`gpusage.predictors.times.step_time.kind_of`).
        of_kinds: In place of all three, by kind: misses of published runs, whatever the GPU and its host. Training on
            several GPUs has the wider of this and of what one GPU of it has.
        shared: The share of this error's square that the predictions for two GPUs have in common, 0 to 1.
        shared_own: The same for two GPUs that both have a part of their own in the residual.
    """

    known: float
    unseen_gpu: float
    short: float
    shared: float = 0.0
    shared_own: float = 0.0
    of_settings: Mapping[str, float] = field(default_factory=dict)
    of_kinds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResidualParameters:
    """See `gpusage.predictors.times.efficiency.Residual`, whose fields have these names."""

    means: Vector
    scales: Vector
    anchors: Matrix
    by_gpu: Mapping[str, Vector]
    least_count: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTimeParameters:
    """See `gpusage.predictors.times.efficiency.Efficiency`, whose fields have these names."""

    first: Sequence[Matrix]
    first_bias: Matrix
    second: Sequence[Matrix]
    second_bias: Matrix
    latency_s: float
    host_s: Vector
    gpu_log_factors: Mapping[str, float]
    deviations: StepTimeDeviations
    residual: ResidualParameters


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForestParameters:
    """Gradient-boosted regression trees, one entry per node but for *roots*; all trees one after the other.

    Nodes are in depth-first order, left ones first, and a leaf is its own left child.

    Attributes:
        roots: Each tree's first node.
        left: Where a no leads: a row's feature is not above the threshold.
        right: Where a yes leads.
        feature: Column that a node asks about.
        threshold: What it compares that with.
        value: Of a leaf.
        start: What all trees' values are added to.
    """

    roots: Sequence[int]
    left: Sequence[int]
    right: Sequence[int]
    feature: Sequence[int]
    threshold: Vector
    value: Vector
    start: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActivityParameters:
    """What utilization and SM activity are predicted from.

    Attributes:
        features: Names of the columns that the trees speak of.
        gap_s: The idle seconds that a usual host leaves for each kernel of a training step.
        sm_share: The share of the kernels' time in which SMs have work.
        misses: How far below and above the point the odds of 90 % of the truths lie, as logarithms: one row each for
            utilization and SM activity.
    """

    features: Sequence[str]
    gap_s: float
    sm_share: ForestParameters
    misses: Matrix


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryParameters:
    """Weights of the memory walk's terms: non-negative quantile regressions.

    Attributes:
        terms: Names of the columns of *weights*.
        weights: One row each for low end, point and high end of what a run takes.
        constant_bytes: Of the same three: the context, and what cuDNN's kernels add to it.
        required_factors: Of the tensors that live at once: low end, point, high end and a share's high end of what a
            run needs.
        required_constant_bytes: Of the same four: what libraries add to the context.
    """

    terms: Sequence[str]
    weights: Matrix
    constant_bytes: Vector
    required_factors: Vector
    required_constant_bytes: Vector


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ColocationParameters:
    """The fields of `gpusage.predictors.sharing.colocation.LearnedColocation`; *features* names the columns."""

    features: Sequence[str]
    mean: Vector
    scale: Vector
    jobs: Matrix
    models: Vector
    sensitivity: Vector
    pressure: Vector
    interaction: Matrix
    same_model: float
    near: float
    known: Vector = (0.0, 0.0)
    partly: Vector = (0.0, 0.0)
    unknown: Vector = (0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostUncertainty:
    """What is expected of a host, and how little is known of it and of the GPU.

    Attributes:
        launch_s: The host's time for each kernel.
        host: Standard deviation of the logarithm of the host's time.
        own: The same of the GPU's own time, of which the expected one is predicted.
    """

    launch_s: float
    host: float
    own: float


BusyShareEvidence = Literal["graph", "step_time", "utilization"]
"""Where the part of the step that the GPU works comes from."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlowdownRule:
    """How far 90 % of the truths lie from the point, each on a logarithmic scale, and the rule of the point.

    Attributes:
        growth: Of the growth of the GPU's time, as a part of its logarithm.
        noise: Of any measured ratio.
        working: Of the part of the step that the GPU works, downwards and upwards, by its source.
        host: How a known step time is weighed between the host and the GPU.
        filling_blocks: As in `gpusage.predictors.sharing.slowdown.growths_with`.
        partners: As `gpusage_hooks.types.Price.partner_powers`.
    """

    growth: float
    noise: float
    working: Mapping[BusyShareEvidence, Vector]
    host: HostUncertainty
    filling_blocks: float | None
    partners: Span = (0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlowdownParameters:
    """What a share costs.

    Attributes:
        eager: Of kernels that PyTorch launches one by one.
        proportional: Of all others, which no row of the fit is of.
    """

    eager: SlowdownRule
    proportional: SlowdownRule


Parameters = StepTimeParameters | MemoryParameters | ActivityParameters | ColocationParameters | SlowdownParameters


class Pretrained:
    """The artifacts, each read and decoded on first use.

    Args:
        overrides: By name, files that are read instead of those that gpusage comes with.

    Raises:
        KeyError: An artifact lacks the figure of this name.
        ValueError: An artifact has a figure that this version does not know, or is no JSON.
    """

    def __init__(self, overrides: Mapping[str, Path] = MappingProxyType({})) -> None:
        self.overrides = overrides
        self._documents: dict[str, dict[str, Any]] = {}

    def card(self, name: str) -> Card:
        """Return the card of the artifact *name*."""
        return _decode(Card, self._document(name)["card"])

    @cached_property
    def step_time_card(self) -> Card:
        """The data that the step time was fitted on; it defines which models are familiar."""
        return self.card("step_time")

    @cached_property
    def step_time(self) -> StepTimeParameters:
        """Efficiencies, what the host takes, and the intervals' widths."""
        values = self._parameters("step_time")
        deviations = _decode(StepTimeDeviations, values["deviations"])
        return _decode(
            StepTimeParameters, values, deviations=deviations, residual=_decode(ResidualParameters, values["residual"])
        )

    @cached_property
    def memory(self) -> MemoryParameters:
        """Weights of the walk's terms."""
        return _decode(MemoryParameters, self._parameters("memory"))

    @cached_property
    def activity(self) -> ActivityParameters:
        """Gaps between kernels, trees, and the intervals' widths."""
        values = self._parameters("activity")
        return _decode(ActivityParameters, values, sm_share=_decode(ForestParameters, values["sm_share"]))

    @cached_property
    def colocation(self) -> ColocationParameters:
        """Jobs that were measured on one GPU together."""
        return _decode(ColocationParameters, self._parameters("colocation"))

    @cached_property
    def slowdown(self) -> SlowdownParameters:
        """What a share costs: when a kernel fills a GPU, what is expected of hosts, and the intervals' widths."""
        values = self._parameters("slowdown")
        rules = {
            name: _decode(
                SlowdownRule,
                values[name],
                host=_decode(HostUncertainty, values[name]["host"]),
                partners=tuple(values[name]["partners"]),
            )
            for name in ("eager", "proportional")
        }
        return _decode(SlowdownParameters, values, **rules)

    def _parameters(self, name: str) -> Mapping[str, Any]:
        parameters = self._document(name)["parameters"]
        if not isinstance(parameters, dict):
            message = f"parameters of {name!r} must be by name; got a {type(parameters).__name__}"
            raise TypeError(message)
        return parameters

    def _document(self, name: str) -> dict[str, Any]:
        if name not in self._documents:
            path = self.overrides.get(name) or PRETRAINED_FOLDER / f"{name}.json"
            self._documents[name] = json.loads(path.read_text(encoding="utf-8"))
        return self._documents[name]


def _decode(kind: type[T], values: Mapping[str, Any], **decoded: object) -> T:
    """Return *values* as a value of *kind*, a dataclass with the same names; *decoded* are values of some of them."""
    names = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    if unknown := values.keys() - set(names):
        message = f"figures that this version does not know: {', '.join(sorted(unknown))}"
        raise ValueError(message)
    return kind(**{name: values[name] for name in names} | decoded)


def shaped(name: str, figures: Sequence[Any], *shape: int | None) -> FloatArray:
    """Return the *figures* that an artifact calls *name* as an array of *shape*, ``None`` being any length.

    An empty list fits every shape that allows a first length of 0.

    Raises:
        ValueError: They have another shape, or are no numbers.
    """
    import numpy as np  # not for every command that reads an artifact

    array = np.array(figures, dtype=np.float64)
    if array.shape == (0,) and shape[0] in {None, 0}:
        array = array.reshape([0, *(size or 0 for size in shape[1:])])
    if array.ndim != len(shape) or any(size not in (None, got) for size, got in zip(shape, array.shape, strict=True)):
        message = f"{name!r} must have the shape {shape}; got {array.shape}"
        raise ValueError(message)
    return array


SHIPPED = Pretrained()
ACTIVE_ARTIFACTS: ContextVar[Pretrained] = ContextVar("artifacts in use", default=SHIPPED)
"""What the predictors read: `gpusage_lab.learning.artifacts.reading` sets others for a while."""


def pretrained() -> Pretrained:
    """Return the artifacts that the predictors read now."""
    return ACTIVE_ARTIFACTS.get()
