"""Loading plugins: those that core consists of, and those that packages announce by an entry point.

Invariants:

1. A package's plugin that cannot be used is set aside with one sentence; the others, and gpusage itself, go on.
2. Of two packages that announce one name the first is heard; no other takes the name of what comes with gpusage.
3. A plugin that core consists of is imported when its hook is first called: most commands need few of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, wraps
from importlib import import_module
from importlib.metadata import EntryPoint
from importlib.metadata import entry_points as installed_entry_points
from importlib.metadata import version as installed_version
from types import MappingProxyType, ModuleType
from typing import Any

import pluggy

from gpusage.plugins.error_text import describe_error
from gpusage.plugins.hooks import Hooks, warn
from gpusage.plugins.implementation import Implementation, is_interrupt, output_aside
from gpusage.plugins.plugin import Plugin
from gpusage_hooks import API_VERSION, specs
from gpusage_hooks.conformance import check_api, implemented

ENTRY_POINT_GROUP = "gpusage"
PACKAGE = "gpusage"
BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "gpusage.devices.catalogue": "describe_gpus",
        "gpusage.graphs.reader": "read_model",
        "gpusage.policies.stages": "decide",
        "gpusage.predictors.sharing.colocation": "predict_colocation",
        "gpusage.predictors.known": "find_observed_figures",
        "gpusage.predictors.needs": "predict_needs",
        "gpusage.predictors.sharing.slowdown": "predict_slowdown",
        "gpusage.node.sampler.nvml": "read_gpu",
    }
)
"""The plugins that core consists of, each with the hook that it implements."""


class UnusableError(Exception):
    """A plugin cannot be used; the message says in one clause what it must be, and what it is."""


@cache
def load_hooks() -> Hooks:
    """Return the hooks of every built-in and installed plugin, with a warning for each that is set aside."""
    hooks = make_hooks(tuple(installed_entry_points(group=ENTRY_POINT_GROUP)))
    for trouble in hooks.troubles().values():
        warn(trouble)
    return hooks


def node_hooks() -> Hooks:
    """Return the hooks that a compute node needs while a job runs there, without what predicts and decides."""
    points = tuple(point for point in installed_entry_points(group=ENTRY_POINT_GROUP) if _is_foreign(point))
    return make_hooks(points, built_in=("gpusage.node.sampler.nvml",))


def make_hooks(points: Sequence[EntryPoint] = (), built_in: Iterable[str] = BUILT_IN) -> Hooks:
    """Return the hooks of the plugins *built_in* and of those that *points* announce."""
    manager = pluggy.PluginManager("gpusage")
    manager.add_hookspecs(specs)
    our_version = installed_version(PACKAGE)
    plugins = [_registered_built_in(manager, name, our_version) for name in built_in]
    plugins += [_registered(manager, point) for point in sorted(points, key=_is_foreign)]
    ours = {plugin.name for plugin in plugins if plugin.package == PACKAGE and plugin.trouble is None}
    implementations = {name: tuple(_implementations(manager, name, ours)) for name in vars(manager.hook)}
    return Hooks(plugins, implementations)


def _is_foreign(point: EntryPoint) -> bool:
    return point.dist is None or point.dist.name != PACKAGE


def _registered_built_in(manager: pluggy.PluginManager, name: str, version: str) -> Plugin:
    module = _built_in_plugin(name)
    manager.register(module, name)
    hooks = sorted(caller.name for caller in manager.get_hookcallers(module) or ())
    return Plugin(name=name, package=PACKAGE, version=version, hooks=tuple(hooks))


def _built_in_plugin(name: str) -> ModuleType:
    """Return what stands in for the built-in plugin *name* until its hook is called."""
    hook = BUILT_IN[name]
    substitute = ModuleType(name)
    setattr(substitute, hook, specs.hookimpl(trylast=True)(_importing(name, hook)))
    return substitute


def _importing(module: str, hook: str) -> Callable[..., Any]:
    specified: Callable[..., Any] = getattr(specs, hook)

    @wraps(specified)
    def call(*arguments: Any) -> Any:  # those of any hook
        return getattr(import_module(module), hook)(*arguments)

    return call


def _registered(manager: pluggy.PluginManager, point: EntryPoint) -> Plugin:
    """Register the plugin that *point* announces, or set it aside."""
    package, version = (point.dist.name, point.dist.version) if point.dist else ("", "")
    try:
        hooks = _register(manager, point)
    except UnusableError as error:
        origin = f" of {package} {version}" if package else ""
        trouble = f"Plugin {point.name!r}{origin} must {error}. It is set aside; update or uninstall it."
        return Plugin(name=point.name, package=package, version=version, trouble=trouble)
    return Plugin(name=point.name, package=package, version=version, hooks=hooks)


def _register(manager: pluggy.PluginManager, point: EntryPoint) -> tuple[str, ...]:
    """Register the plugin that *point* announces, and return its hooks.

    Raises:
        UnusableError: It cannot be used, and is not registered.
    """
    if manager.has_plugin(point.name):
        message = "have a name of its own; another plugin has that name"
        raise UnusableError(message)
    try:
        with output_aside():
            plugin = point.load()
    except BaseException as error:
        if is_interrupt(error):
            raise
        message = f"be imported without an error; it raised {describe_error(error)}"
        raise UnusableError(message) from error
    try:
        check_api(plugin)
        hooks = tuple(sorted(implemented(plugin)))
        manager.register(plugin, point.name)
    except Exception as error:
        message = f"keep to API {API_VERSION}: {str(error).splitlines()[0].removesuffix('.')}"
        raise UnusableError(message) from error
    return hooks


def _implementations(manager: pluggy.PluginManager, hook: str, ours: set[str]) -> Iterator[Implementation]:
    """Yield who implements *hook*, in the order in which they are asked."""
    for implementation in reversed(getattr(manager.hook, hook).get_hookimpls()):
        yield Implementation(
            plugin=implementation.plugin_name,
            hook=hook,
            function=implementation.function,
            arguments=implementation.argnames,
            is_ours=implementation.plugin_name in ours,
        )
