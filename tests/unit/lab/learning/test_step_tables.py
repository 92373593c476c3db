"""The means of speed-ups."""

from __future__ import annotations

from gpusage_lab.learning.step_tables import mean_rows


def test_a_titan_xp_in_half_precision_stands_apart() -> None:
    rows = [
        ("titan-xp -> titan-rtx, infer fp16-pure", 24, 60.0),
        ("titan-xp -> titan-rtx, infer fp32", 24, 20.0),
        ("titan-rtx -> a100-sxm4-40gb, infer fp16-pure", 24, 10.0),
    ]
    assert mean_rows(rows) == [
        ("mean", None, 30.0),
        ("mean of fp32", None, 20.0),
        ("mean of half precision, Titan Xp left out", None, 10.0),
        ("mean of half precision, Titan Xp", None, 60.0),
    ]


def test_pairs_of_one_precision_have_one_mean() -> None:
    assert mean_rows([("rtx-3090 -> rtx-4090", 1164, 4.0)]) == [("mean", None, 4.0)]
