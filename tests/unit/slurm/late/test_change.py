"""What `scontrol update` is told for an answer of gpusaged."""

from __future__ import annotations

import pytest

from gpusage.mark import parse_mark
from gpusage_hooks.errors import RequestError
from gpusage_slurm.late.change import changes

MARK = "gpusage 69215f4a0c3e REWRITE gres/gpu:1 -> gres/mps:40 | cheap"
OLD = "gpusage 69215f4a0c3d KEEP gres/gpu:1 | no description of the model came with the job"


def test_a_share_its_cap_and_its_mark_are_set_at_once() -> None:
    answer = {
        "mark": MARK,
        "set.gres": "mps:40",
        "set.tres_per_job": "",
        "env.GPUSAGE_DECISION": "mps:40",
        "env.CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=6144M",
    }
    *settings, comment = changes(answer, f"ours; {OLD}")
    assert settings == ["Gres=mps:40", "TresPerJob="]
    assert comment == (
        "AdminComment=ours; gpusage 69215f4a0c3e REWRITE gres/gpu:1 -> gres/mps:40 | "
        "set CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=6144M GPUSAGE_DECISION=mps:40; cheap"
    )


def test_nodes_that_a_share_avoids_are_excluded() -> None:
    assert changes({"mark": MARK, "set.exc_nodes": "n7,n1"}, "")[0] == "ExcNodeList=n7,n1"


@pytest.mark.parametrize("value", ["a b", "$(x)", "a;b", "", "a|b"])
def test_a_variable_with_a_strange_value_is_left_out(value: str) -> None:
    (setting,) = changes({"mark": MARK, "env.GPUSAGE_DECISION": value}, "")
    assert setting == f"AdminComment={MARK}"


def test_an_answer_without_a_mark_changes_nothing() -> None:
    assert changes({"code": "KEEP"}, OLD) == ()


def test_what_a_waiting_job_cannot_be_given_is_refused() -> None:
    with pytest.raises(RequestError, match=r"set\.priority"):
        changes({"mark": MARK, "set.priority": "1"}, OLD)


@pytest.mark.parametrize("site", ["", "site", "é" * 500, "x" * 1000])
def test_only_the_mark_is_cut_off(site: str) -> None:
    (setting,) = changes({"mark": MARK + "; because" * 200}, site)
    comment = setting.removeprefix("AdminComment=")
    assert comment.startswith(site)
    assert len(comment.encode()) <= 1024 + len("; ")
    if len(site) < 100:
        mark = parse_mark(comment)
        assert mark is not None
        assert mark.number == "69215f4a0c3e"
