"""Loading plugins: core's own, and the plugins that packages announce by an entry point.

Invariants:

1. A package's plugin that cannot be used is set aside with one sentence; the others, and gpusage itself, go on.
2. Of two packages that announce one name the first is heard; no other takes the name of what comes with gpusage.
3. A plugin that core consists of is imported when its hook is first called: most commands need few of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from importlib import import_module
from importlib.metadata import EntryPoint
from importlib.metadata import entry_points as installed_entry_points
from importlib.metadata import version as installed_version
from types import MappingProxyType, ModuleType
from typing import Any

import pluggy

from gpusage.plugins.hooks import Hooks, Implementation, Plugin, describe_error, is_interrupt, output_aside, warn
from gpusage_hooks import API_VERSION, specs
from gpusage_hooks.conformance import check_api, implemented
from gpusage_hooks.managers import Manager

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


@cache
def load_hooks() -> Hooks:
    """Return the hooks of every built-in and installed plugin, with a warning for each that is set aside."""
    hooks = make_hooks(tuple(installed_entry_points(group=ENTRY_POINT_GROUP)))
    for trouble in hooks.troubles().values():
        warn(trouble)
    return hooks


def node_hooks() -> Hooks:
    """Return the hooks that a compute node needs while a job runs there, without predictors and policies."""
    # Whoever tries gpusage in a sandbox has no GPU: our own plugin for that makes its figures up.
    installed = installed_entry_points(group=ENTRY_POINT_GROUP)
    points = tuple(point for point in installed if _is_foreign(point) or point.name == "sandboxes")
    return make_hooks(points, built_in=("gpusage.node.sampler.nvml",))


@cache
def installed_managers() -> Mapping[str, Manager]:
    """Return the workload managers of the installed plugins."""
    return managers_of(load_hooks())


def managers_of(hooks: Hooks) -> Mapping[str, Manager]:
    """Return the workload managers that plugins describe, in the order of their names; a site's own goes first."""
    by_name = {manager.name: manager for manager in reversed(hooks.describe_manager())}
    return MappingProxyType(dict(sorted(by_name.items())))


def make_hooks(points: Sequence[EntryPoint] = (), built_in: Iterable[str] = BUILT_IN) -> Hooks:
    """Return the hooks of the plugins *built_in* and of all that *points* announce."""
    manager = pluggy.PluginManager("gpusage")
    manager.add_hookspecs(specs)
    our_version = installed_version(PACKAGE)
    plugins = [_registered_built_in(manager, name, our_version) for name in built_in]
    plugins += [_registered(manager, point) for point in sorted(points, key=_is_foreign)]

    # pluggy lists who implements a hook in the order of registration, the built-in ones (trylast) first. It calls them
    # from the end, and so do we: a site's own plugin is asked before ours.
    ours = {plugin.name for plugin in plugins if plugin.package == PACKAGE and plugin.trouble is None}
    implementations = {
        hook: tuple(
            Implementation(
                plugin=each.plugin_name,
                hook=hook,
                function=each.function,
                arguments=each.argnames,
                is_ours=each.plugin_name in ours,
            )
            for each in reversed(getattr(manager.hook, hook).get_hookimpls())
        )
        for hook in vars(manager.hook)
    }
    return Hooks(plugins, implementations)


def _is_foreign(point: EntryPoint) -> bool:
    return point.dist is None or point.dist.name not in (PACKAGE, f"{PACKAGE}-desk")


def _registered_built_in(manager: pluggy.PluginManager, name: str, version: str) -> Plugin:
    """Register a substitute for the built-in plugin *name*, which imports it when its hook is called."""
    hook = BUILT_IN[name]
    specified: Callable[..., Any] = getattr(specs, hook)

    @wraps(specified)  # pluggy reads the names of the arguments from it
    def call(*arguments: Any) -> Any:  # those of any hook
        return getattr(import_module(name), hook)(*arguments)

    substitute = ModuleType(name)
    setattr(substitute, hook, specs.hookimpl(trylast=True)(call))
    manager.register(substitute, name)
    return Plugin(name=name, package=PACKAGE, version=version, hooks=(hook,))


def _registered(manager: pluggy.PluginManager, point: EntryPoint) -> Plugin:
    """Register the plugin that *point* announces, or set it aside."""
    package, version = (point.dist.name, point.dist.version) if point.dist else ("", "")
    fault = ""
    hooks: tuple[str, ...] = ()
    if manager.has_plugin(point.name):
        fault = "have a name of its own; another plugin has that name"
    else:
        # What a package does when it is imported is its own: an error, an exit, or lines on standard output.
        try:
            with output_aside():
                plugin = point.load()
        except BaseException as error:
            if is_interrupt(error):
                raise
            fault = f"be imported without an error; it raised {describe_error(error)}"

    if not fault:
        try:
            check_api(plugin)
            hooks = tuple(sorted(implemented(plugin)))
            manager.register(plugin, point.name)
        except Exception as error:
            fault, hooks = f"keep to API {API_VERSION}: {str(error).splitlines()[0].removesuffix('.')}", ()

    trouble = None
    if fault:
        origin = f" of {package} {version}" if package else ""
        trouble = f"Plugin {point.name!r}{origin} must {fault}. It is set aside; update or uninstall it."
    return Plugin(name=point.name, package=package, version=version, hooks=hooks, trouble=trouble)
