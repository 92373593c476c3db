"""The example plugin with Yeung's rule, in its turn among the policies; known utilizations are made up here."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from gpusage.devices.shares import memory_cap_bytes
from gpusage.plugins.hooks import Hooks
from gpusage.plugins.loading import ENTRY_POINT_GROUP, make_hooks
from gpusage.predictors.intervals import exact_interval
from gpusage_hooks import samples
from gpusage_hooks.checks import check_plugin
from gpusage_hooks.types import Decision, Figure, Interval, ObservedFigures, PolicyInput, Workload

EXAMPLE = Path(__file__).parents[3] / "examples" / "yeung_rule.py"


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Hooks:
    """Return the hooks of gpusage and of the plugin."""
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    return make_hooks([EntryPoint(name="yeung", value="yeung_rule", group=ENTRY_POINT_GROUP)])


def known_input(
    *utilizations: Interval | None, memory_gib: float = 1.0, workload: Workload | None = None
) -> PolicyInput:
    """Return a job for as many of the sample GPUs, on which it had these utilizations alone."""
    plain = samples.policy_input(memory_gib=memory_gib, workload=workload)
    candidates = tuple(
        replace(each, known=ObservedFigures(gpu_utilization=Figure(interval=known, source="runs") if known else None))
        for each, known in zip(plain.candidates, utilizations, strict=False)
    )
    cluster = replace(plain.cluster, pools=tuple(each.pool for each in candidates))
    return replace(plain, candidates=candidates, cluster=cluster)


def decided(hooks: Hooks, policy_input: PolicyInput) -> Decision:
    decision = hooks.decide("sharing", policy_input, samples.draft(policy_input))
    assert decision is not None
    assert decision.plugin == "yeung_rule"
    return decision


def test_it_keeps_the_contract_and_leaves_all_other_stages(hooks: Hooks) -> None:
    spec = importlib.util.spec_from_file_location("yeung_rule", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    packed = [known_input(exact_interval(0.6)), known_input(exact_interval(0.01), memory_gib=6.0)]
    assert check_plugin(module, policy_inputs=packed) == ("decide",)
    generation = hooks.decide("generation", packed[0], samples.draft(packed[0]))
    assert generation is None or generation.plugin.startswith("gpusage.")


@pytest.mark.parametrize(
    ("utilizations", "memory_gib", "percent"),
    [
        ((exact_interval(0.6), exact_interval(0.6)), 1.0, 60),
        ((exact_interval(0.3), Interval(value=0.4, low=0.3, high=0.45)), 1.0, 45),  # the pessimistic end, the busiest
        ((exact_interval(0.05),), 1.0, 26),  # four such shares are more than a GPU
        ((exact_interval(0.3),), 8.0, 58),  # 8.8 of 16 GiB, of which 95 % may be filled
    ],
)
def test_a_share_holds_utilization_and_memory_with_all_of_the_threads(
    hooks: Hooks, utilizations: tuple[Interval, ...], memory_gib: float, percent: int
) -> None:
    policy_input = known_input(*utilizations, memory_gib=memory_gib)
    request = decided(hooks, policy_input).request
    assert (request.gpu_count, request.mps_thread_percent, request.thread_cap_percent) == (0, percent, 100)
    # Less what the driver and MPS need, so that shares that add up to a GPU fit together.
    parts = [memory_cap_bytes(each.gpu.memory_bytes, percent) for each in policy_input.candidates]
    assert request.memory_cap_bytes == min(parts)


def refusals() -> Iterator[tuple[PolicyInput, str]]:
    unlike = known_input(exact_interval(0.3))
    strange = replace(unlike.candidates[0], need=replace(unlike.candidates[0].need, familiar=False))
    yield replace(unlike, candidates=(strange,)), "the workload is unlike those"
    yield known_input(exact_interval(0.6), None), "its GPU utilization is not known on sample-small"
    yield known_input(exact_interval(0.85)), "it needs 85 % of a sample-old"
    yield known_input(exact_interval(0.3), workload=Workload(slowdown=1.0)), "it must not become slower"
    yield known_input(), "no GPU can be shared"


@pytest.mark.parametrize(("policy_input", "expected"), [*refusals()])
def test_a_whole_gpu_is_kept_with_its_reason(hooks: Hooks, policy_input: PolicyInput, expected: str) -> None:
    decision = decided(hooks, policy_input)
    assert decision.request == policy_input.request
    assert decision.reasons[-1].removeprefix("a whole GPU is kept: ").startswith(expected)
