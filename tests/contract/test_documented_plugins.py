"""The examples of docs/plugins.md: one for each hook, small, sound, and answering when gpusage asks."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from gpusage.plugins.hooks import Hooks
from gpusage.plugins.loading import ENTRY_POINT_GROUP, make_hooks
from gpusage_hooks import checks, samples, specs
from gpusage_hooks.types import DecisionRequest, ObservedFigures, Workload

PAGE = (Path(__file__).resolve().parents[2] / "docs/plugins.md").read_text(encoding="utf-8")
EXAMPLE = r"^### (\w+)$.*?^Example: ?.*?^```python\n(.*?)^```$"
BLOCKS = dict(re.findall(EXAMPLE, PAGE, flags=re.MULTILINE | re.DOTALL))
HOOKS = [name for name, hook in vars(specs).items() if hasattr(hook, "gpusage_spec")]
GPUS = samples.gpus()
CFD = types.SimpleNamespace(name="cfd-wing")
CASE = samples.policy_input(workload=Workload(mode="infer"))
JOB = samples.job()
PBS_JOB = types.SimpleNamespace(submission=DecisionRequest(manager="pbs"), request_text="ngpus=1")
PBS_MARKED = types.SimpleNamespace(manager="pbs")

HOOK_CALLS: Mapping[str, Callable[[Hooks], Any]] = {
    "describe_model_names": lambda hooks: hooks.describe_model_names() == ["*.widths"],
    "describe_gpus": lambda hooks: hooks.describe_gpus()[-1].name == "h900-sxm9-1tb",
    "find_observed_figures": lambda hooks: hooks.find_observed_figures(
        samples.graph(), Workload(), GPUS, samples.submitter()
    )[0],
    "predict_needs": lambda hooks: hooks.predict_needs(CFD, Workload(), GPUS, [ObservedFigures()] * 3),  # type: ignore[arg-type]
    "predict_slowdown": lambda hooks: hooks.predict_slowdown(samples.graph(), Workload(), GPUS, [GPUS] * 3, []),
    "predict_colocation": lambda hooks: hooks.predict_colocation([samples.need(GPUS[0])] * 2, GPUS[0]),
    "decide": lambda hooks: hooks.decide("sharing", CASE, samples.draft(CASE)),
    "describe_manager": lambda hooks: [manager.name for manager in hooks.describe_manager()] == ["pbs"],
    "parse_submission": lambda hooks: hooks.parse_submission(
        DecisionRequest(manager="pbs", fields={"ngpus": "1", "comment": "model=r.onnx"}), samples.context()
    ),
    "render_decision": lambda hooks: hooks.render_decision(
        PBS_JOB,
        samples.draft(CASE),
        CASE.cluster,
        samples.context(),  # type: ignore[arg-type]
    ),
    "observe_cluster": lambda hooks: hooks.observe_cluster("pbs", samples.context()),
    "read_cluster": lambda hooks: hooks.read_cluster("site/pbs_nodes", samples.catalogue()),
    "read_past_jobs": lambda hooks: hooks.read_past_jobs("site/pbs_log"),
    "collect_past_jobs": lambda hooks: hooks.collect_past_jobs("pbs", 0.0, samples.context()),
    "find_jobs": lambda hooks: hooks.find_jobs("pbs", "", "ada", samples.context()),
    "find_shared_jobs": lambda hooks: hooks.find_shared_jobs("pbs", ("waiting",), samples.context()),
    "restore_request": lambda hooks: hooks.restore_request(PBS_MARKED, "stuck", samples.context()) is False,  # type: ignore[arg-type]
    "find_out_of_memory_jobs": lambda hooks: hooks.find_out_of_memory_jobs("pbs", samples.context()),
    "requeue_on_whole_gpu": lambda hooks: hooks.requeue_on_whole_gpu(PBS_MARKED, "starved", samples.context()) is False,  # type: ignore[arg-type]
    "collect_usage": lambda hooks: hooks.collect_usage("pbs", samples.context()) == [],
    "read_accounting": lambda hooks: hooks.read_accounting("pbs", 0.0, 1.0, samples.context()) == [],
    "read_gpu": lambda hooks: hooks.read_gpu(samples.DEVICE) is None,
    "add_commands": lambda hooks: hooks.commands_of("documented"),
    "decision_made": lambda hooks: hooks.decision_made(samples.record()) is None,  # type: ignore[func-returns-value]
    "usage_observed": lambda hooks: hooks.usage_observed(samples.usages()[0]) is None,  # type: ignore[func-returns-value]
}


def plugin(name: str) -> types.ModuleType:
    """Return the plugin of the page for the hook *name*, as a module that can be imported."""
    module = types.ModuleType(f"documented_{name}")
    sys.modules[module.__name__] = module
    exec(compile(BLOCKS[name], f"docs/plugins.md, {name}", "exec"), vars(module))  # noqa: S102 - our own page
    return module


def test_every_hook_has_one_in_the_order_of_the_code() -> None:
    assert list(BLOCKS) == HOOKS


@pytest.mark.parametrize("name", BLOCKS)
def test_it_has_at_most_15_lines_and_keeps_the_contract(name: str) -> None:
    assert len([line for line in BLOCKS[name].splitlines() if line.strip()]) <= 15
    assert checks.check_plugin(plugin(name)) == (name,)


@pytest.mark.parametrize("name", HOOK_CALLS)
def test_it_answers_when_gpusage_asks(name: str) -> None:
    module = plugin(name)
    hooks = make_hooks([EntryPoint("documented", module.__name__, ENTRY_POINT_GROUP)])
    answer = HOOK_CALLS[name](hooks)
    assert answer is not None
    assert answer is not False
    assert hooks.troubles() == {}


def test_the_reader_reads_its_format(tmp_path: Path) -> None:
    model = tmp_path / "a.widths"
    model.write_text("784 512 10")
    module = plugin("read_model")
    checks.check_reader(module.read_model, sources=[str(model)])
    hooks = make_hooks([EntryPoint("documented", module.__name__, ENTRY_POINT_GROUP)])
    graph = hooks.read_model(str(model), {})
    assert graph is not None
    assert graph.parameter_count == 784 * 512 + 512 * 10
