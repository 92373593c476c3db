"""Libraries that define models, PyTorch first: imported if they are installed, their models built without weights."""

from __future__ import annotations

import importlib
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from gpusage.graphs.guard import printable, shown
from gpusage_hooks.errors import GraphError

_LIBRARIES = ("transformers", "timm", "torchvision")
"""Whose loggers have a level of their own."""


def import_library(name: str) -> Any:  # noqa: ANN401 - a module
    """Return the library *name*, one of the extra ``[torch]``.

    Raises:
        GraphError: It is not installed.
    """
    try:
        with quiet():
            return importlib.import_module(name)
    except ImportError as error:
        rule = f"Library {name} must be there for this model; got: not installed."
        message = f"{rule} Install gpusage with its extra [torch]."
        raise GraphError(message) from error


def build_on_meta(build: Callable[[], Any], source: str) -> Any:  # noqa: ANN401 - a torch.nn.Module
    """Return what *build* makes on the meta device, without weights.

    Raises:
        GraphError: The library cannot build it.
    """
    torch = import_library("torch")
    try:
        with quiet():
            try:
                with torch.device("meta"):
                    return build()
            except NotImplementedError:  # it computes sizes with tensors, which have values on a processor alone
                with _weights_on_meta(torch):
                    return build().to("meta")
    except GraphError:
        raise
    except Exception as error:
        raise cannot_run(source, "be one that its library can build", error) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep warnings of third-party code, logged ones too, from the user, who cannot mend them."""
    loggers = [logging.getLogger(name) for name in _LIBRARIES]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


class _Known(NamedTuple):
    """What libraries say, the rule that is broken, and what to do about it."""

    pattern: re.Pattern[str]
    rule: str
    advice: str


_LOOKS_AT_VALUES = _Known(
    re.compile(r"item\(\)|to numpy|Boolean value of|_local_scalar_dense|values? of a meta|aten::equal"),
    "take the same way whatever the values of its inputs are",
    "Hand over the part that does not look at values, or export it to ONNX.",
)
_IS_LAZY = _Known(
    re.compile("uninitialized parameter"),
    "know the shapes of all its parameters",
    "Call it once on real inputs, so that its lazy layers learn theirs.",
)
_HAS_NO_FAKE = _Known(
    re.compile("no fake impl registered"),
    "have operators that run on shapes",
    "Register a fake implementation of that one with torch.library.register_fake.",
)
_KNOWN = (_LOOKS_AT_VALUES, _IS_LAZY, _HAS_NO_FAKE)


def cannot_run(label: str, rule: str, error: Exception) -> GraphError:
    """Return the error that says which *rule* the model *label* breaks, with the library's own *error* in one line."""
    advice = "Check its inputs, or export it to ONNX."
    while isinstance(error, ImportError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # what really failed, in a package that the library imports
        rule, advice = "be one whose packages can be imported", "Install or update that package."
    line = str(error).split("\n")[0] or type(error).__name__
    for known in _KNOWN:
        if known.pattern.search(line):
            _, rule, advice = known
    return GraphError(f"Model {shown(label)} must {rule}; got: {printable(line).rstrip('. ')}. {advice}")


@contextmanager
def _weights_on_meta(torch: Any) -> Iterator[None]:  # noqa: ANN401 - the module
    """Let modules drop each weight as they register it; it was allocated, but nothing has been written to it yet."""
    usual = torch.nn.Module.register_parameter

    def register(module: Any, name: str, weight: Any) -> None:  # noqa: ANN401 - a module, a parameter
        on_meta = (
            weight if weight is None else torch.nn.Parameter(weight.to("meta"), requires_grad=weight.requires_grad)
        )
        usual(module, name, on_meta)

    torch.nn.Module.register_parameter = register
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = usual
