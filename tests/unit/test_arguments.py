"""What a caller of the Python API hands in wrong is said in one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpusage
from gpusage_hooks.errors import RequestError
from graphs import convolution_graph

GRAPH = convolution_graph()


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"share": 0}, "'share' must be a whole number of percent, 1 to 100; got 0"),
        ({"share": 33.3}, "'share' must be a whole number of percent, 1 to 100; got 33.3"),
        ({"share": 50, "utilization": 60}, "'utilization' must be above 0 and at most 1, as 0.6 for 60 %; got 60"),
        ({"share": 50, "utilization": 0}, "'utilization' must be above 0 and at most 1, as 0.6 for 60 %; got 0"),
        ({"share": 50, "step_time_s": -1}, "'step_time_s' must be a number of seconds above 0; got -1"),
        ({"share": 50, "step_time_s": float("nan")}, "'step_time_s' must be a number of seconds above 0; got nan"),
        ({"batch_size": 0}, "'batch_size' must be a whole number, at least 1; got 0"),
        ({"accumulate": 0}, "'accumulate' must be a whole number, at least 1; got 0"),
        ({"accumulate": 8, "mode": "infer"}, "'accumulate' must be left out where the mode is not train; got 8"),
        ({"checkpointing": "on"}, "'checkpointing' must be True or False; got 'on'"),
        ({"trainable": 0}, "'trainable' must be above 0 and at most 1, as 0.02 for 2 %; got 0"),
        ({"mode": "trian"}, "'mode' must be one of train, infer; got 'trian'"),
        ({"batch": 8}, "must be among batch_size, mode, .*; got 'batch'"),
    ],
)
def test_a_wrong_argument_gets_one_sentence(arguments: dict[str, Any], rule: str) -> None:
    with pytest.raises(RequestError, match=rule):
        gpusage.predict(GRAPH, gpu="a100", **arguments)


def test_a_share_is_predicted_as_documented_and_numbers_of_numpy_will_do() -> None:
    known = gpusage.predict(GRAPH, gpu="a100", share=50, batch_size=64, utilization=0.6)
    timed = gpusage.predict(GRAPH, gpu="a100", share=np.int64(50), batch_size=np.int64(64), step_time_s=np.float32(0.5))
    assert (known.share_percent, timed.share_percent) == (50, 50)
    assert 1.0 <= timed.slowdown.value < known.slowdown.value
