"""What a plugin declares: which API it is written for, and which hooks it implements."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from gpusage_hooks import API_VERSION, specs
from gpusage_hooks.conformance import require

Hook = Callable[..., Any]


def check_api(plugin: object) -> None:
    """Check that *plugin* is written for this API, which it may declare as ``gpusage_api``.

    Raises:
        AssertionError: It is written for another one.
    """
    version = getattr(plugin, "gpusage_api", API_VERSION)
    require(version == API_VERSION, f"gpusage_api must be {API_VERSION}, the API of this gpusage; got {version!r:.20}")


def implemented(plugin: object) -> dict[str, Hook]:
    """Return the hooks that *plugin* implements, by the name of the hook.

    Raises:
        AssertionError: A function is marked as a hook that does not exist, takes an argument that the hook lacks, or
            wraps the answers of others.
    """
    functions: dict[str, Hook] = {}
    for attribute in dir(plugin):
        function = getattr(plugin, attribute, None)
        marks = getattr(function, "gpusage_impl", None)
        if callable(function) and isinstance(marks, Mapping):
            name = marks.get("specname") or attribute
            _check_function(name, attribute, function, marks)
            functions[name] = function
    return functions


def _check_function(name: str, attribute: str, function: Hook, marks: Mapping[str, Any]) -> None:
    specification: Any = getattr(specs, name, None)
    require(hasattr(specification, "gpusage_spec"), f"{attribute!r} must implement a hook; got no hook {name!r}")
    known, taken = inspect.signature(specification).parameters, inspect.signature(function).parameters
    surplus = [word for word in taken if word not in known]
    require(not surplus, f"hook {name!r} must take no arguments but {list(known)}; got {surplus}")
    wraps = marks.get("wrapper") or marks.get("hookwrapper")
    require(not wraps, f"hook {name!r} must be answered by the plugin itself; got a wrapper of others' answers")
