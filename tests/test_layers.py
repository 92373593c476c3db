"""The arrows of import point down: hooks <- core <- plugins <- what is used at a desk; none ends in a circle."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
LAYERS = {
    "gpusage_hooks": ROOT / "hooks/gpusage_hooks",
    "gpusage": ROOT / "core/gpusage",
    "gpusage_slurm": ROOT / "plugins/slurm/gpusage_slurm",
    "gpusage_yarn": ROOT / "plugins/yarn/gpusage_yarn",
    "gpusage_planning": ROOT / "planning/gpusage_planning",
    "gpusage_sandboxes": ROOT / "sandboxes/gpusage_sandboxes",
    "gpusage_lab": ROOT / "lab/gpusage_lab",
}
MAY_IMPORT = {
    "gpusage_hooks": {"gpusage_hooks"},
    "gpusage": {"gpusage_hooks", "gpusage"},
    "gpusage_slurm": {"gpusage_hooks", "gpusage", "gpusage_slurm"},
    "gpusage_yarn": {"gpusage_hooks", "gpusage", "gpusage_yarn"},
    "gpusage_planning": {"gpusage_hooks", "gpusage", "gpusage_planning"},
    "gpusage_sandboxes": {"gpusage_hooks", "gpusage", "gpusage_slurm", "gpusage_yarn", "gpusage_sandboxes"},
    "gpusage_lab": {"gpusage_hooks", "gpusage", "gpusage_planning", "gpusage_lab"},
}
NEVER = {
    "gpusage.policies": ("sqlite3", "socket", "subprocess", "time", "random", "os", "click", "rich"),
    "gpusage.predictors": ("sqlite3", "socket", "subprocess", "time", "random", "click", "rich"),
    "gpusage_hooks": ("numpy", "click", "rich", "onnx", "torch", "socket", "subprocess"),
}
"""Policies and predictors are pure; the contract needs the standard library and pluggy only."""


def imports(path: Path, package: str) -> Iterator[str]:
    """Yield the full name of all that the file at *path* imports, modules and what is in them, wherever it does so."""
    inside = [package, *path.relative_to(LAYERS[package]).with_suffix("").parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(inside[: len(inside) - node.level]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", getattr(node.func, "id", "")) in ("import_module", "__import__", "run_by")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield str(node.args[0].value).replace(":", ".")  # run_by names a function, ``module:function``


def files(package: str) -> list[Path]:
    return sorted(LAYERS[package].rglob("*.py"))


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


@pytest.mark.parametrize("package", LAYERS)
def test_no_arrow_points_upward(package: str) -> None:
    upward = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in files(package)
        for module in imports(path, package)
        for layer in LAYERS
        if is_in(module, layer) and layer not in MAY_IMPORT[package]
    ]
    assert upward == []


def name_of(path: Path, package: str) -> str:
    parts = path.relative_to(LAYERS[package]).with_suffix("").parts
    return ".".join((package, *(part for part in parts if part != "__init__")))


@cache
def arrows() -> Mapping[str, set[str]]:
    """Return which modules of ours each module of ours imports, those for type checkers and in functions included."""
    modules = {name_of(path, package): (path, package) for package in LAYERS for path in files(package)}
    return {
        name: {target if target in modules else target.rpartition(".")[0] for target in imports(path, package)}
        & modules.keys() - {name}
        for name, (path, package) in modules.items()
    }


def between_rooms(arrows: Mapping[str, set[str]], package: str) -> Mapping[str, set[str]]:
    """Return the arrows between what stands directly in *package*: modules, and packages with all that is in them."""
    depth = package.count(".") + 2
    rooms: dict[str, set[str]] = {}
    for module, targets in arrows.items():
        if module.startswith(f"{package}."):
            room = ".".join(module.split(".")[:depth])
            inside = {".".join(target.split(".")[:depth]) for target in targets if target.startswith(f"{package}.")}
            rooms.setdefault(room, set()).update(inside - {room})
    return rooms


def circle(arrows: Mapping[str, set[str]]) -> list[str]:
    """Return the modules along one circle of *arrows*, or none."""
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_circle_between_modules() -> None:
    assert circle(arrows()) == []


def test_no_circle_between_packages() -> None:
    actual = arrows()
    packages = sorted({module.rpartition(".")[0] for module in actual} - {""})
    assert [line for package in packages if (line := circle(between_rooms(actual, package)))] == []


def test_a_circle_is_seen_between_modules_and_between_packages() -> None:
    between_modules = {"p.a.x": {"p.b.y"}, "p.b.y": {"p.a.x"}}
    assert circle(between_modules)
    between_packages = {"p.a.x": {"p.b.y"}, "p.b.y": set[str](), "p.b.z": {"p.a.w"}, "p.a.w": set[str]()}
    assert circle(between_packages) == []
    assert circle(between_rooms(between_packages, "p")) in (["p.a", "p.b", "p.a"], ["p.b", "p.a", "p.b"])


def words_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each name and text of the file at *path* with its line; docstrings and comments are for people."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value
        for field in ("name", "id", "attr", "arg", "module"):
            if isinstance(word := getattr(node, field, None), str):
                yield getattr(node, "lineno", 0), word


@pytest.mark.parametrize("package", ["gpusage_hooks", "gpusage"])
def test_core_and_the_contract_know_no_workload_manager_by_name(package: str) -> None:
    """Neither in code nor in help; a docstring may name one as an example."""
    reported = [
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path in files(package)
        for line, word in words_of(path)
        if re.search("slurm|yarn", word, re.IGNORECASE)
    ]
    assert reported == []


def test_a_manager_uses_of_core_only_the_modules_on_the_page_for_managers() -> None:
    """And the page names no module that neither of them uses."""
    page = (ROOT / "docs/api/managers.md").read_text(encoding="utf-8")
    managers = [
        (name, targets) for name, targets in arrows().items() if name.startswith(("gpusage_slurm", "gpusage_yarn"))
    ]
    used = {target for _, targets in managers for target in targets if is_in(target, "gpusage")}
    assert used == {*re.findall(r"^::: (\S+)$", page, flags=re.MULTILINE)}


@pytest.mark.parametrize("part", NEVER)
def test_what_is_pure_imports_nothing_impure(part: str) -> None:
    package = part.partition(".")[0]
    folder = LAYERS[package].joinpath(*part.split(".")[1:])
    strays = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in files(package)
        if folder in path.parents
        for module in imports(path, package)
        for banned in NEVER[part]
        if is_in(module, banned)
    ]
    assert strays == []


def test_the_contract_needs_the_standard_library_and_pluggy_only() -> None:
    known = {*sys.stdlib_module_names, "pluggy", "gpusage_hooks"}
    actual = {module.partition(".")[0] for path in files("gpusage_hooks") for module in imports(path, "gpusage_hooks")}
    assert actual - known == set()


NOT_DECLARED = {"pyslurm", "threadpoolctl", "urllib3"}
"""PySlurm is the site's own; the other two come with scikit-learn and requests."""

NAMES_OF_PACKAGES = {"prometheus_client": "prometheus-client", "pynvml": "nvidia-ml-py", "sklearn": "scikit-learn"}


def imports_at_run_time(path: Path) -> Iterator[str]:
    """Yield the outermost package of each absolute import, those for type checkers left out."""
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module).partition(".")[0]
        is_for_types = isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        waiting.extend(node.orelse if isinstance(node, ast.If) and is_for_types else ast.iter_child_nodes(node))


def test_each_package_that_we_import_is_one_that_users_get() -> None:
    """The extras for tests and releases do not count: users do not install them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [
        project["optional-dependencies"][name]
        for name in ("torch", "slurm", "yarn", "postgresql", "train", "plan", "parquet", "metrics", "dask")
    ]
    declared = {re.split(r"[^\w-]", line)[0] for line in sum(extras, project["dependencies"])}
    known = {*sys.stdlib_module_names, *LAYERS, *declared, *NOT_DECLARED}
    strays = [
        f"{path.relative_to(ROOT)} imports {module}"
        for package in LAYERS
        for path in files(package)
        for module in imports_at_run_time(path)
        if NAMES_OF_PACKAGES.get(module, module) not in known
    ]
    assert strays == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import gpusage_slurm.plugin", "gpusage_slurm.plugin"),
        ("def f():\n    from gpusage_slurm import plugin", "gpusage_slurm.plugin"),
        ("from . import plugins", "gpusage.policies.plugins"),
        ("from ..plugins import load_plugins", "gpusage.plugins.load_plugins"),
        ("import importlib\nimportlib.import_module('gpusage_slurm.plugin')", "gpusage_slurm.plugin"),
        ("@run_by('gpusage_slurm.plugin:f')\ndef command(): ...", "gpusage_slurm.plugin.f"),
    ],
)
def test_every_way_of_importing_is_seen(
    text: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LAYERS, "gpusage", tmp_path)
    file = tmp_path / "policies/fit.py"
    file.parent.mkdir()
    file.write_text(text, encoding="utf-8")
    assert expected in list(imports(file, "gpusage"))
