"""The arguments of the Python API, checked: each wrong one gets one sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from numbers import Integral, Real
from typing import Any, get_args

from gpusage.devices.shares import WHOLE_PERCENT
from gpusage_hooks.comment import TRAINING_KEYS
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Alone, Mode, Optimizer, Precision, Workload

CHOICES: Mapping[str, tuple[str, ...]] = {
    "mode": get_args(Mode),
    "precision": get_args(Precision),
    "optimizer": get_args(Optimizer),
}
"""What the arguments of these names may be."""
_NAMES = tuple(field.name for field in fields(Workload))


def read_workload(arguments: Mapping[str, Any]) -> Workload:
    """Return the workload of *arguments*, by the names of its fields.

    Raises:
        RequestError: One of them is no field of a workload, or not what that may be.
    """
    for name, value in arguments.items():
        _require(name in _NAMES, "Arguments of a workload", f"be among {', '.join(_NAMES)}", name)
        choices = CHOICES.get(name)
        if choices:
            _require(value in choices, f"Argument {name!r}", f"be one of {', '.join(choices)}", value)
    for name in ("batch_size", "accumulate"):
        count = arguments.get(name, 1)
        _require(_is_count(count), f"Argument {name!r}", "be a whole number, at least 1", count)
    share = arguments.get("trainable", 1.0)
    right = _is_number(share) and 0 < share <= 1
    _require(right, "Argument 'trainable'", "be above 0 and at most 1, as 0.02 for 2 %", share)
    choice = arguments.get("checkpointing", False)
    _require(isinstance(choice, bool), "Argument 'checkpointing'", "be True or False", choice)
    workload = Workload(**arguments)
    for name in TRAINING_KEYS:
        right = workload.mode == "train" or name not in arguments
        _require(right, f"Argument {name!r}", "be left out where the mode is not train", arguments.get(name))
    return workload


def read_alone(utilization: float | None, step_time_s: float | None) -> Alone:
    """Return what an earlier run showed.

    Raises:
        RequestError: The utilization is not a part of 1, or the step time is not above 0.
    """
    if utilization is not None:
        right = _is_number(utilization) and 0 < utilization <= 1
        _require(right, "Argument 'utilization'", "be above 0 and at most 1, as 0.6 for 60 %", utilization)
    if step_time_s is not None:
        right = _is_number(step_time_s) and 0 < step_time_s < math.inf
        _require(right, "Argument 'step_time_s'", "be a number of seconds above 0", step_time_s)
    return Alone(utilization=utilization, step_time_s=step_time_s)


def read_share(share: int) -> int:
    """Return *share*, in percent.

    Raises:
        RequestError: It is not a whole number from 1 to 100.
    """
    right = _is_count(share) and share <= WHOLE_PERCENT
    _require(right, "Argument 'share'", "be a whole number of percent, 1 to 100", share)
    return share


def _is_count(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _require(right: bool, subject: str, rule: str, value: object) -> None:  # noqa: FBT001 - private, read as a sentence
    if not right:
        message = f"{subject} must {rule}; got {value!r}. Change it."
        raise RequestError(message)
