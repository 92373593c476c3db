"""Libraries that define models, PyTorch first: imported if they are installed, their models built without weights."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

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


def cannot_run(label: str, rule: str, error: Exception) -> GraphError:
    """Return the error that says which *rule* the model *label* breaks, with the library's own *error* in one line."""
    lines = str(error).split("\n") if str(error) else [type(error).__name__]
    return GraphError(
        f"Model {shown(label)} must {rule}; got: {printable(lines[0])}. Check its inputs, or export it to ONNX."
    )


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
