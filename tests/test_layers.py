"""The arrows of import point down: hooks <- core <- plugins."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = {
    "gpusage_hooks": ROOT / "hooks/gpusage_hooks",
    "gpusage": ROOT / "core/gpusage",
    "gpusage_slurm": ROOT / "plugins/slurm/gpusage_slurm",
    "gpusage_yarn": ROOT / "plugins/yarn/gpusage_yarn",
}
MAY_IMPORT = {
    "gpusage_hooks": {"gpusage_hooks"},
    "gpusage": {"gpusage_hooks", "gpusage"},
    "gpusage_slurm": {"gpusage_hooks", "gpusage", "gpusage_slurm"},
    "gpusage_yarn": {"gpusage_hooks", "gpusage", "gpusage_yarn"},
}
NEVER = {
    "gpusage.policies": ("sqlite3", "socket", "subprocess", "time", "random", "os", "click", "rich"),
    "gpusage.predictors": ("sqlite3", "socket", "subprocess", "time", "random", "click", "rich"),
    "gpusage_hooks": ("numpy", "click", "rich", "onnx", "torch", "socket", "subprocess"),
}
"""Policies and predictors are pure; the contract needs the standard library and pluggy only."""


def imports(path: Path, package: str) -> Iterator[str]:
    """Yield the full name of each module that the file at *path* imports, wherever in it the import stands."""
    inside = [package, *path.relative_to(LAYERS[package]).with_suffix("").parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(inside[: len(inside) - node.level]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", getattr(node.func, "id", "")) in ("import_module", "__import__")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield str(node.args[0].value)


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
    import sys  # noqa: PLC0415 - the list of the standard library's modules is used here only

    known = {*sys.stdlib_module_names, "pluggy", "gpusage_hooks"}
    found = {module.partition(".")[0] for path in files("gpusage_hooks") for module in imports(path, "gpusage_hooks")}
    assert found - known == set()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import gpusage_slurm.plugin", "gpusage_slurm.plugin"),
        ("def f():\n    from gpusage_slurm import plugin", "gpusage_slurm.plugin"),
        ("from . import plugins", "gpusage.policies.plugins"),
        ("from ..plugins import load_plugins", "gpusage.plugins"),
        ("import importlib\nimportlib.import_module('gpusage_slurm.plugin')", "gpusage_slurm.plugin"),
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
