"""Libraries that define models, PyTorch first: imported if they are installed, their models built without weights."""

from __future__ import annotations

import importlib
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from gpusage.graphs.model_files import printable, quoted
from gpusage_hooks.errors import GraphError

# Their loggers have levels of their own.
_LIBRARIES = ("transformers", "timm", "torchvision", "diffusers")


def import_library(name: str) -> Any:  # a module
    """Return the library *name*, which the extra ``[torch]`` installs.

    Raises:
        GraphError: It is not installed.
    """
    try:
        with without_warnings():
            return importlib.import_module(name)
    except ImportError as error:
        rule = f"Library {name} must be there for this model; got: not installed."
        message = f"{rule} Install gpusage with its extra [torch]."
        raise GraphError(message) from error


def build_on_meta(build: Callable[[], Any], source: str) -> Any:  # a torch.nn.Module
    """Return the module of *build* on the meta device, without weights.

    Raises:
        GraphError: The library cannot build it.
    """
    torch = import_library("torch")
    try:
        with without_warnings():
            try:
                with torch.device("meta"):
                    return build()
            except NotImplementedError:  # it computes sizes with tensors, which have values on the CPU alone
                with _weights_on_meta(torch):
                    return build().to("meta")
    except GraphError:
        raise
    except Exception as error:
        raise model_error(source, "be one that its library can build", error) from error


@contextmanager
def without_warnings() -> Iterator[None]:
    """Silence the warnings of third-party code, logged ones too: the user cannot act on them."""
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


# A library's message, the rule that a model breaks then, and what to do about it.
_KNOWN_FAILURES = (
    (
        re.compile(r"item\(\)|to numpy|Boolean value of|_local_scalar_dense|values? of a meta|aten::equal"),
        "take the same way whatever the values of its inputs are",
        "Hand over the part that does not look at values, or run its program under 'gpusage capture'.",
    ),
    (
        re.compile("uninitialized parameter"),
        "know the shapes of all its parameters",
        "Call it once on real inputs, so that its lazy layers learn theirs.",
    ),
    (
        re.compile("no fake impl registered"),
        "have operators that run on shapes",
        "Register a fake implementation of that one with torch.library.register_fake.",
    ),
)


def model_error(label: str, rule: str, error: Exception) -> GraphError:
    """Return the error for the model *label*: the *rule* that it breaks, and the library's *error* in one line."""
    advice = "Check its inputs, or export it to ONNX."
    # transformers wraps the failure of a package in an error of its own.
    while isinstance(error, ImportError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # the real failure, in a package that the library imports
        rule, advice = "be one whose packages can be imported", "Install or update that package."

    line = str(error).split("\n")[0] or type(error).__name__
    for pattern, of_known, cure in _KNOWN_FAILURES:
        if pattern.search(line):
            rule, advice = of_known, cure
    return GraphError(f"Model {quoted(label)} must {rule}; got: {printable(line).rstrip('. ')}. {advice}")


def _weights_on_meta(torch: Any) -> AbstractContextManager[None]:  # the module
    """Move each weight to the meta device as a module registers it: not yet written, it has cost no memory."""
    usual = torch.nn.Module.register_parameter

    def register(module: Any, name: str, weight: Any) -> None:  # a module, a parameter
        on_meta = (
            weight if weight is None else torch.nn.Parameter(weight.to("meta"), requires_grad=weight.requires_grad)
        )
        usual(module, name, on_meta)

    return replaced((torch.nn.Module, "register_parameter", register))


@contextmanager
def replaced(*places: tuple[Any, str, Any]) -> Iterator[None]:  # whatever a module or a class holds
    """Let attributes of modules and classes have other values: of each, its owner, its name and the value."""
    usual = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    try:
        for owner, name, value in places:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in usual:
            setattr(owner, name, value)
