"""A stranger's plugin, built and installed as strangers do, adds a reader and overrules a policy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from waiting import LIMIT_S

SOURCE = Path(__file__).parent / "site_plugin"


@pytest.fixture(scope="module")
def installed(install: Callable[[Path], Path]) -> Path:
    """Return a folder in which the plugin is installed."""
    return install(SOURCE)


def run(script: str, *arguments: str, installed: Path | None) -> str:
    """Return what *script* prints in a Python of its own that finds the plugin in the folder *installed*."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if installed:
        environment["PYTHONPATH"] = str(installed)
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *arguments]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


NAMES = """
    from gpusage.plugins.loading import load_hooks
    print(*[plugin.name for plugin in load_hooks().plugins])
"""

READ = """
    import sys
    from gpusage.decisions.advisor import make_advisor
    from gpusage_hooks.errors import GraphError
    try:
        graph = make_advisor().read(sys.argv[1])
    except GraphError as error:
        print("GraphError:", error)
    else:
        print(graph.name, len(graph.nodes), graph.parameter_count)
"""

DECIDE = """
    import json, sys
    from dataclasses import replace
    from gpusage.plugins.loading import load_hooks
    from gpusage_hooks import samples
    from gpusage_hooks.types import GpuRequest

    policy_input = samples.policy_input(memory_gib=2.0)
    named = zip(policy_input.candidates, ("v100", "l4", "h100"), strict=True)
    candidates = tuple(replace(candidate, pool=replace(candidate.pool, site_type=name)) for candidate, name in named)
    policy_input = replace(policy_input, request=GpuRequest(gpu_count=1, gpu_type=sys.argv[1]), candidates=candidates)
    decision = load_hooks().decide("sharing", policy_input, samples.draft(policy_input))
    print(json.dumps([decision.plugin, decision.request.mps_thread_percent, decision.reasons]))
"""


def test_an_installed_plugin_is_found_by_its_entry_point(installed: Path) -> None:
    assert "site" in run(NAMES, installed=installed).split()
    assert "site" not in run(NAMES, installed=None).split()


def test_it_adds_a_reader(installed: Path, tmp_path: Path) -> None:
    model = tmp_path / "mlp.widths"
    model.write_text("784 512 10", encoding="utf-8")
    # 784 x 512 + 512 weights and biases in the first layer, 512 x 10 + 10 in the second
    assert run(READ, str(model), installed=installed) == "mlp 2 407050\n"
    assert run(READ, str(model), installed=None).startswith("GraphError: Model")


def test_its_reader_leaves_the_built_in_formats_alone(installed: Path) -> None:
    assert run(READ, "nothing.card.json", installed=installed).startswith("GraphError")


def test_it_overrules_a_policy(installed: Path) -> None:
    """The built-in sharing policy would give a share; the site's is asked first."""
    # A third costs 30 %, more than the accepted 25; half costs 10 % alone.
    assert json.loads(run(DECIDE, "h100", installed=None))[:2] == ["gpusage.policies.sharing", 50]
    overruled = json.loads(run(DECIDE, "h100", installed=installed))
    assert overruled == ["site_plugin", None, ["this site shares no H100"]]


def test_what_it_leaves_alone_goes_on_to_the_built_in_policy(installed: Path) -> None:
    assert run(DECIDE, "v100", installed=installed) == run(DECIDE, "v100", installed=None)
    assert json.loads(run(DECIDE, "v100", installed=installed))[0] == "gpusage.policies.sharing"


def test_the_command_line_reads_its_format(installed: Path, tmp_path: Path) -> None:
    model = tmp_path / "mlp.widths"
    model.write_text("784 512 10", encoding="utf-8")
    script = "import sys; from gpusage.cli import main; sys.argv[0] = 'gpusage'; main()"
    document = json.loads(run(script, "predict", str(model), "--gpu", "v100", "--json", installed=installed))
    (answer,) = document["predictions"]
    assert answer["needs"][0]["step_time_s"]["value"] > 0


JOB_CARD = """
    import sys
    from gpusage.cli import main
    sys.argv[0] = "gpusage"
    main(["job-card", *sys.argv[1:]])
"""

SUBMISSION = """
    import sys
    from gpusage.decisions.advisor import make_advisor
    from gpusage_hooks.types import DecisionRequest
    job = make_advisor().parse(DecisionRequest(manager=sys.argv[1], fields={"comment": sys.argv[2]}))
    print(job.model_request and job.model_request.model)
"""


def test_a_comment_may_begin_with_a_model_of_its_format(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = tmp_path / "mlp.widths"
    model.write_text("784 512 10", encoding="utf-8")
    comment = f"{model},batch=64"
    card = run(JOB_CARD, comment, installed=installed).strip()
    assert card[:1] not in ("", "!")
    assert run(JOB_CARD, comment, installed=None) == ""
    for manager in ("slurm", "yarn"):
        assert run(SUBMISSION, manager, comment, installed=installed).strip() == str(model)
        assert run(SUBMISSION, manager, comment, installed=None).strip() == "None"


def test_its_author_can_check_it(installed: Path) -> None:
    script = (SOURCE / "check_it.py").read_text(encoding="utf-8")
    assert run(script, installed=installed).split() == ["decide", "describe_model_names", "read_model"]
