"""What a share costs a job whose history is all that is known of it."""

from __future__ import annotations

import pytest

from gpusage.history import needs
from gpusage.predictors.times import host


def test_a_step_is_the_same_norm_as_where_the_model_is_known() -> None:
    """The figure stands twice, because the module of the other imports numpy."""
    assert needs.SHARPNESS == host.SHARPNESS


@pytest.mark.parametrize(
    ("utilization", "expected"),
    [
        (1.0, 4.0),  # all of the step is the GPU's, on a quarter of its SMs
        (0.25, 2 ** (1 / 8)),  # the GPU's time grows to the step's own: the norm of 1 and 1
        (0.1, 1.0),  # 0.4 of the step is hidden behind the host's time
    ],
)
def test_what_the_gpu_waited_for_takes_in_what_a_quarter_costs(utilization: float, expected: float) -> None:
    assert needs.slowdown(utilization, 25) == pytest.approx(expected, rel=1e-3)
