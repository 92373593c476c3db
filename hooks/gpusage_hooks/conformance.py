"""Whether a plugin is as the contract declares: its API, its hooks, and each value that it gives, all the way down."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gpusage_hooks import API_VERSION, specs

Hook = Callable[..., Any]
Hint = Any
"""An annotation: a class, or one of the forms of `typing`."""
Part = tuple[object, Hint, str]
"""A value with its annotation and its path."""


def conforms(value: object, hint: Hint, path: str) -> None:
    """Require *value*, at *path*, to conform to *hint*, all the way down."""
    clause = mismatch(value, hint, path)
    require(clause is None, clause or "")


def require(holds: bool, rule: str) -> None:  # reads like assert, and stays when Python runs with -O
    """Raise `AssertionError` with *rule*, a sentence without its full stop, unless it *holds*."""
    if not holds:
        raise AssertionError(rule + ".")


def mismatch(value: object, hint: Hint, path: str) -> str | None:
    """Return a clause that says where *value*, at *path*, does not conform to *hint*; ``None`` where it does."""
    origin: Any = get_origin(hint)  # typeshed's own type of it leaves out the special forms
    if hint in (Any, object):
        return None
    if origin is Literal:
        return None if value in get_args(hint) else _clause(path, f"one of {get_args(hint)}", value)

    if origin in (Union, types.UnionType):
        choices = get_args(hint)
        mismatches = [mismatch(value, choice, path) for choice in choices]
        if None in mismatches:
            return None
        # A value of the right class with a wrong field deserves that field's clause.
        for choice, clause in zip(choices, mismatches, strict=True):
            kind = get_origin(choice) or choice
            if isinstance(kind, type) and isinstance(value, kind):
                return clause
        return _clause(path, " or ".join(_name(choice) for choice in choices), value)

    parts = _parts_of_class(value, hint, path) if origin is None else _parts(value, hint, path)
    if isinstance(parts, str):
        return parts
    return next((clause for part in parts if (clause := mismatch(*part)) is not None), None)


def _parts(value: object, hint: Hint, path: str) -> str | Iterable[Part]:
    """Return the parts of *value* with the hint and the path of each, or a clause where it is no such container."""
    origin: Any = get_origin(hint)
    inner = get_args(hint)
    if origin is tuple:
        if type(value) is not tuple:
            return _clause(path, "a tuple", value)
        hints = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
        if len(hints) != len(value):
            return f"{path} must have {len(hints)} entries; got {len(value)}"
        return [(entry, hints[index], f"{path}[{index}]") for index, entry in enumerate(value)]

    if origin is Sequence:
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
            return _clause(path, "a sequence", value)
        return [(entry, inner[0], f"{path}[{index}]") for index, entry in enumerate(value)]

    if origin in (Mapping, MutableMapping):
        if not isinstance(value, Mapping):
            return _clause(path, "a mapping", value)
        keys = [(key, inner[0], f"a key of {path}") for key in value]
        return [*keys, *((entry, inner[1], f"{path}[{key!r}]") for key, entry in value.items())]

    is_type = isinstance(value, type) and issubclass(value, inner[0])  # the contract's only other form is a type
    return () if is_type else _clause(path, f"a type of {_name(inner[0])}", value)


def _parts_of_class(value: object, hint: Hint, path: str) -> str | Iterable[Part]:
    """Return the fields of *value* with the hint and the path of each, or a clause where it is not of the class."""
    if hint is None or hint is type(None):
        return () if value is None else _clause(path, "None", value)

    # An int is a float to people and to type checkers; a bool, which Python counts as an int, is neither.
    wanted = (int, float) if hint is float else hint
    if not isinstance(value, wanted) or (isinstance(value, bool) and hint in (int, float)):
        return _clause(path, f"of type {_name(hint)}", value)

    if not is_dataclass(value) or isinstance(value, type):
        return ()
    hints = _hints(type(value))
    return [(getattr(value, item.name), hints[item.name], f"{path}.{item.name}") for item in fields(value)]


@cache  # get_type_hints evaluates every annotation anew
def _hints(kind: type) -> dict[str, Hint]:
    return get_type_hints(kind)


def _name(hint: Hint) -> str:
    return "None" if hint is type(None) else getattr(hint, "__name__", str(hint))


def _clause(path: str, wanted: str, value: object) -> str:
    return f"{path} must be {wanted}; got {type(value).__name__} {value!r:.80}"


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
        if not (callable(function) and isinstance(marks, Mapping)):
            continue

        name = marks.get("specname") or attribute
        specification: Any = getattr(specs, name, None)
        require(hasattr(specification, "gpusage_spec"), f"{attribute!r} must implement a hook; got no hook {name!r}")
        known, taken = inspect.signature(specification).parameters, inspect.signature(function).parameters
        surplus = [word for word in taken if word not in known]
        require(not surplus, f"hook {name!r} must take no arguments but {list(known)}; got {surplus}")
        is_wrapper = marks.get("wrapper") or marks.get("hookwrapper")
        require(
            not is_wrapper, f"hook {name!r} must be answered by the plugin itself; got a wrapper of others' answers"
        )
        functions[name] = function
    return functions
