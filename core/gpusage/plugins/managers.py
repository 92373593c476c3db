"""The workload managers that plugins describe, by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from gpusage.plugins.hooks import Hooks
from gpusage.plugins.loading import load_hooks
from gpusage_hooks.managers import Manager


@cache
def installed_managers() -> Mapping[str, Manager]:
    """Return the workload managers of the installed plugins."""
    return managers_of(load_hooks())


def managers_of(hooks: Hooks) -> Mapping[str, Manager]:
    """Return the workload managers that plugins describe, in the order of their names; a site's own goes first."""
    by_name = {manager.name: manager for manager in reversed(hooks.describe_manager())}
    return MappingProxyType(dict(sorted(by_name.items())))
