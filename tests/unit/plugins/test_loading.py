"""Loading plugins: who is registered, who is set aside, and what is said of it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from importlib.metadata import EntryPoint
from importlib.metadata import entry_points as installed_entry_points
from pathlib import Path

import pytest

from gpusage.plugins.hooks import Hooks
from gpusage.plugins.loading import BUILT_IN, ENTRY_POINT_GROUP, load_hooks, make_hooks
from gpusage_hooks import checks, hookimpl, samples, specs
from sites import announced


def trouble_of(hooks: Hooks) -> str:
    """Return why the one plugin that is set aside is so; all built-in ones are there."""
    (trouble,) = hooks.troubles().values()
    assert [plugin.name for plugin in hooks.plugins if plugin.trouble is None] == [*BUILT_IN]
    assert hooks.predict_colocation((samples.need(samples.gpus()[0]),) * 2, samples.gpus()[0]) is not None
    return trouble


def written(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> EntryPoint:
    """Return the entry point of a plugin that is a file with *text*."""
    (folder / "broken_plugin.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    return EntryPoint("broken", "broken_plugin", ENTRY_POINT_GROUP)


def test_built_in_and_installed_plugins_load() -> None:
    """What is installed here implements only hooks that exist."""
    hooks = load_hooks()
    assert hooks.troubles() == {}
    assert {"gpusage.graphs.reader", "slurm", "yarn"} <= {plugin.name for plugin in hooks.plugins}
    assert hooks.are_ours("read_model", "parse_submission")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "import absent",
            "it raised ModuleNotFoundError: No module named 'absent' (broken_plugin.py:1)",
        ),
        ("x = 1\n1 / 0", "it raised ZeroDivisionError: division by zero (broken_plugin.py:2)"),
        ("raise SystemExit(3)", "it raised SystemExit: 3 (broken_plugin.py:1)"),
        ("def f(:", "it raised SyntaxError: "),
        ("import asyncio\nraise asyncio.CancelledError", "it raised CancelledError (broken_plugin.py:2)"),
    ],
)
def test_a_plugin_that_cannot_be_imported_is_set_aside(
    text: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble = trouble_of(make_hooks([written(tmp_path, monkeypatch, text)]))
    assert trouble.startswith(f"Plugin 'broken' must be imported without an error; {sentence}")
    assert trouble.endswith(" It is set aside; update or uninstall it.")
    assert "\n" not in trouble


def test_nobody_takes_the_name_of_what_comes_with_gpusage() -> None:
    """Entry points come in the order of the path, where a stranger's may be first."""
    (ours,) = [point for point in installed_entry_points(group=ENTRY_POINT_GROUP) if point.name == "slurm"]
    stranger = EntryPoint("slurm", "json", ENTRY_POINT_GROUP)
    plugins = {plugin.package: plugin for plugin in make_hooks([stranger, ours]).plugins if plugin.name == "slurm"}
    assert "have a name of its own" in (plugins[""].trouble or "")
    assert plugins["gpusage"].trouble is None


def test_one_module_under_two_names_is_told_of_in_one_sentence() -> None:
    one = announced("one")
    trouble = make_hooks([one, EntryPoint("two", one.value, ENTRY_POINT_GROUP)]).troubles()["two"]
    assert "already registered" in trouble
    assert "\n" not in trouble


def test_a_misspelt_hook_sets_the_plugin_aside() -> None:
    """A typo in a site's plugin is told at start-up, not silently at the first job."""
    trouble = trouble_of(make_hooks([announced(decide_fitt=lambda: None)]))
    assert "keep to API 1: 'decide_fitt' must implement a hook; got no hook 'decide_fitt'" in trouble


def test_an_argument_that_the_hook_lacks_sets_the_plugin_aside() -> None:
    trouble = trouble_of(make_hooks([announced(describe_gpus=lambda queue: None)]))
    assert "hook 'describe_gpus' must take no arguments but []; got ['queue']" in trouble


def test_a_wrapper_sets_the_plugin_aside() -> None:
    def around():  # type: ignore[no-untyped-def] # noqa: ANN202
        return (yield)

    trouble = trouble_of(make_hooks([announced(describe_gpus=hookimpl(wrapper=True)(around))]))
    assert "must be answered by the plugin itself" in trouble


def test_a_plugin_for_another_api_is_set_aside() -> None:
    point = announced(gpusage_api=3, describe_gpus=lambda: None)
    assert trouble_of(make_hooks([point])) == (
        "Plugin 'site' must keep to API 1: gpusage_api must be 1, the API of this gpusage; got 3. "
        "It is set aside; update or uninstall it."
    )


def test_a_plugin_that_names_this_api_is_used() -> None:
    hooks = make_hooks([announced(gpusage_api=1, describe_gpus=lambda: [*samples.gpus()])])
    assert hooks.troubles() == {}
    assert hooks.describe_gpus()[-3:] == [*samples.gpus()]


def test_of_two_packages_that_announce_one_name_the_first_is_heard() -> None:
    """A second one must not keep the daemon from starting."""
    point = announced("limits", describe_gpus=lambda: [*samples.gpus()])
    hooks = make_hooks([point, point])
    assert [plugin.hooks for plugin in hooks.plugins if plugin.name == "limits"] == [("describe_gpus",), ()]
    assert hooks.troubles()["limits"].startswith("Plugin 'limits' must have a name of its own")
    assert hooks.describe_gpus()[-3:] == [*samples.gpus()]


def test_the_warning_is_one_line_on_standard_error_once_a_process(
    install: Callable[[EntryPoint], None], capsys: pytest.CaptureFixture[str]
) -> None:
    install(announced(decide_fitt=lambda: None))
    assert load_hooks() is load_hooks()
    reported = capsys.readouterr()
    assert reported.err.startswith("gpusage: warning: Plugin 'site' must keep to API 1")
    assert (reported.out, reported.err.count("\n")) == ("", 1)


@pytest.mark.parametrize(("module", "hook"), BUILT_IN.items())
def test_what_stands_in_for_a_plugin_is_all_of_it(module: str, hook: str) -> None:
    """Its one hook, whose arguments are handed on in the hook's own order."""
    plugin = importlib.import_module(module)
    assert [*checks.implemented(plugin)] == [hook]
    assert [*inspect.signature(getattr(plugin, hook)).parameters] == [
        *inspect.signature(getattr(specs, hook)).parameters
    ]
