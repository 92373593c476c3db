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


def conforms(value: object, hint: Hint, path: str) -> None:
    """Require *value*, found at *path*, to be what *hint* says, all the way down."""
    clause = mismatch(value, hint, path)
    require(clause is None, clause or "")


def require(holds: bool, rule: str) -> None:  # reads like assert, and stays when Python runs with -O
    """Raise `AssertionError` with *rule*, a sentence without its full stop, unless it *holds*."""
    if not holds:
        raise AssertionError(rule + ".")


def mismatch(value: object, hint: Hint, path: str) -> str | None:
    """Return one clause that says where *value*, found at *path*, is no *hint*; ``None`` where it is one."""
    origin: Any = get_origin(hint)  # typeshed's own type of it leaves out the special forms
    if hint in (Any, object):
        return None
    if origin in (Union, types.UnionType):
        return _of_union(value, hint, path)
    if origin is Literal:
        return None if value in get_args(hint) else _clause(path, f"one of {get_args(hint)}", value)
    if origin is tuple:
        return _of_tuple(value, hint, path)
    if origin is Sequence:
        return _of_sequence(value, hint, path)
    if origin in (Mapping, MutableMapping):
        return _of_mapping(value, hint, path)
    if origin is type:
        return _of_type(value, hint, path)
    return _of_class(value, hint, path)


def _of_union(value: object, hint: Hint, path: str) -> str | None:
    mismatches = [mismatch(value, choice, path) for choice in get_args(hint)]
    if None in mismatches:
        return None
    # A value of the right class with a wrong field deserves that field's clause.
    pairs = zip(get_args(hint), mismatches, strict=True)
    nearer = [clause for choice, clause in pairs if _is_of(value, get_origin(choice) or choice)]
    return nearer[0] if nearer else _clause(path, " or ".join(_name(choice) for choice in get_args(hint)), value)


def _is_of(value: object, kind: Hint) -> bool:
    return isinstance(kind, type) and isinstance(value, kind)


def _of_tuple(value: object, hint: Hint, path: str) -> str | None:
    if type(value) is not tuple:
        return _clause(path, "a tuple", value)
    inner = get_args(hint)
    hints = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
    if len(hints) != len(value):
        return f"{path} must have {len(hints)} entries; got {len(value)}"
    pairs = enumerate(zip(value, hints, strict=True))
    return _first(mismatch(entry, kind, f"{path}[{index}]") for index, (entry, kind) in pairs)


def _of_sequence(value: object, hint: Hint, path: str) -> str | None:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        return _clause(path, "a sequence", value)
    return _first(mismatch(entry, get_args(hint)[0], f"{path}[{i}]") for i, entry in enumerate(value))


def _of_mapping(value: object, hint: Hint, path: str) -> str | None:
    if not isinstance(value, Mapping):
        return _clause(path, "a mapping", value)
    key_hint, entry_hint = get_args(hint)
    clauses = (
        mismatch(key, key_hint, f"a key of {path}") or mismatch(entry, entry_hint, f"{path}[{key!r}]")
        for key, entry in value.items()
    )
    return _first(clauses)


def _of_type(value: object, hint: Hint, path: str) -> str | None:
    (base,) = get_args(hint)
    fits = isinstance(value, type) and issubclass(value, base)
    return None if fits else _clause(path, f"a type of {_name(base)}", value)


def _of_class(value: object, hint: Hint, path: str) -> str | None:
    if hint is None or hint is type(None):
        return None if value is None else _clause(path, "None", value)
    wanted = (int, float) if hint is float else hint
    if not isinstance(value, wanted) or (isinstance(value, bool) and hint in (int, float)):
        return _clause(path, f"of type {_name(hint)}", value)
    if not is_dataclass(value) or isinstance(value, type):
        return None
    hints = _hints(type(value))
    return _first(
        mismatch(getattr(value, item.name), hints[item.name], f"{path}.{item.name}") for item in fields(value)
    )


@cache
def _hints(kind: type) -> dict[str, Hint]:
    return get_type_hints(kind)


def _first(clauses: Iterable[str | None]) -> str | None:
    return next((clause for clause in clauses if clause is not None), None)


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
