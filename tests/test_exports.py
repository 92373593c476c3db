"""What the packages show: documented names, no pickle, light imports."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator

import pytest

import gpusage
from sources import DESK, PRODUCT, ROOT, parse, python_files
from waiting import LIMIT_S

HEAVY = ("torch", "sklearn", "scipy", "pandas", "timm", "transformers", "torchvision", "onnx")
"""What the submit path must never pay for: seconds and hundreds of megabytes in a Slurm controller's neighbour."""

LIGHT = (
    "gpusage",
    "gpusage_hooks.comment",
    "gpusage.settings.configuration",
    "gpusage.decisions.advisor",
    "gpusage.graphs.card.text",
    "gpusage.service.client",
    "gpusage.service.daemon",
    "gpusage.cli",
    "gpusage_slurm.plugin",
    "gpusage_yarn.plugin",
    "gpusage_hooks.checks",
)


def unpicklings(tree: ast.AST) -> Iterator[str]:
    """Yield each way of running what a file says: the pickle family, `torch.load`, `eval`, `exec`."""
    families = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in families)
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").partition(".")[0] in families:
                yield node.module or ""
            elif node.module == "torch":
                yield from (f"torch.{alias.name}" for alias in node.names if alias.name == "load")
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in (
            "torch.load",
            "torch.jit.load",
            "torch.export.load",
            "torch.hub.load",
        ):
            yield ast.unparse(node)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            unpickles = any(word.arg == "allow_pickle" and ast.unparse(word.value) != "False" for word in node.keywords)
            if name in ("eval", "exec") or unpickles:
                yield ast.unparse(node)


def test_nothing_that_a_file_says_is_ever_run() -> None:
    paths = python_files(*PRODUCT, *DESK)
    assert [f"{path.relative_to(ROOT)}: {way}" for path in paths for way in unpicklings(parse(path))] == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from joblib import load",
        "import torch\ntorch.load('m.pt')",
        "from torch import load",
        "np.load('a', allow_pickle=True)",
        "torch.export.load('m.pt2')",
        "eval('1')",
    ],
)
def test_each_way_of_unpickling_is_seen(text: str) -> None:
    assert list(unpicklings(ast.parse(text)))


@pytest.mark.parametrize("module", LIGHT)
def test_an_import_stays_light(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.fail(f"{module} is gone; take it off the list, or put it back")
    script = (
        f"import sys, {module}; print(*sorted({{name.partition('.')[0] for name in sys.modules}} & {set(HEAVY)!r}))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=LIMIT_S)
    assert run.stdout.split() == []


@pytest.mark.parametrize(
    "module",
    [
        "gpusage.decisions.advisor",
        "gpusage.cli.predicting.predict",
        "gpusage.cli.cards.job_card",
        "gpusage_slurm.plugin",
        "gpusage_yarn.plugin",
    ],
)
def test_what_predict_imports_leaves_msgspec_alone(module: str) -> None:
    """Its import takes twice as long as Python takes to start."""
    script = f"import sys, {module}; print('msgspec' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=LIMIT_S)
    assert run.stdout.split() == ["False"]


def test_the_plugins_load_light() -> None:
    """What every command of a plugin pays for: every built-in and installed plugin, and not even numpy."""
    script = (
        "import sys; from gpusage.plugins.loading import load_hooks; load_hooks();"
        f"print(*sorted({{name.partition('.')[0] for name in sys.modules}} & { {'numpy', *HEAVY}!r}))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=LIMIT_S)
    assert run.stdout.split() == []


NOT_FOR_HELP = (
    *("numpy", "msgspec", "rich", "asyncio", "uvloop", "pynvml", "requests"),
    *(
        "gpusage.cli.job_commands",
        "gpusage.cli.model_commands",
        "gpusage.decisions",
        "gpusage.devices",
        "gpusage.experience",
        "gpusage.graphs",
    ),
    *("gpusage.policies", "gpusage.predictors", "gpusage.reports", "gpusage.service", "gpusage.store"),
    *("gpusage_slurm.submission", "gpusage_slurm.cluster", "gpusage_yarn.submission", "gpusage_yarn.cluster"),
)
"""What `gpusage --help` prints without; a module, or a package with all that is in it."""


def test_help_imports_nothing_of_what_commands_do() -> None:
    """The list of commands asks every plugin, and needs no more than the signatures of their commands."""
    script = (
        "import sys; from gpusage.cli import main\n"
        "try: main(['--help'])\n"
        "finally: print(*sys.modules, sep='\\n', file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=LIMIT_S)
    names = run.stderr.split()
    assert "Commands:" in run.stdout
    assert {"click", "gpusage_slurm.commands", "gpusage_yarn.commands", "gpusage_lab.cli.commands"} <= {*names}
    assert [name for name in names if f"{name}.".startswith(tuple(f"{each}." for each in NOT_FOR_HELP))] == []


def test_the_package_shows_what_it_promises() -> None:
    functions = ["explain", "largest_batch", "predict", "predict_colocation", "read_model"]
    values = ["Explained", "GpuUsageError", "Need", "Needs", "__version__"]
    assert sorted(gpusage.__all__) == sorted([*functions, *values])
    assert all(callable(getattr(gpusage, name)) for name in functions)


def test_a_name_that_the_package_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'foretell'"):
        gpusage.foretell  # noqa: B018 - the access is the test
