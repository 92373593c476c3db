"""The workload managers that plugins describe, by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from gpusage.plugins import load_plugins
from gpusage_hooks.managers import Manager


@cache
def installed_managers() -> Mapping[str, Manager]:
    """Return the workload managers of the installed plugins."""
    return managers_of(load_plugins())


def managers_of(plugins: Any) -> Mapping[str, Manager]:  # noqa: ANN401 - pluggy's manager
    """Return the workload managers that *plugins* describe, in the order of their names; a site's own goes first."""
    described: list[Manager] = plugins.hook.describe_manager()
    by_name = {manager.name: manager for manager in reversed(described)}
    return MappingProxyType(dict(sorted(by_name.items())))
