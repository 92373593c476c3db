"""Whatever a user submits: understood or refused in one sentence, and nothing lost when it is rewritten."""

from __future__ import annotations

import contextlib
import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Cluster, Code, Decision, DecisionRequest, GpuPool
from gpusage_slurm.submission.render import render_decision
from gpusage_slurm.submission.request import TRES_FIELDS, parse_submission, read_request
from gpusage_slurm.submission.script import read_script
from gpusage_slurm.tres import is_gpu, is_share, parse_tres, without_gpus

FIELDS = (
    *TRES_FIELDS,
    "comment",
    "card",
    "features",
    "prefer",
    "min_nodes",
    "num_tasks",
    "shared",
    "tres_bind",
    "script",
)
WORDS = st.sampled_from(
    ["gres:gpu:1", "gres/gpu=2", "gres/gpu:v100:1", "gres:mps:10", "gres:nvme:1", "cpu:4", "gpu", "gres:gpu:x", ""]
)
LISTS = st.lists(WORDS, max_size=4).map(",".join)
CLUSTER = Cluster(
    manager="slurm",
    version="24.11",
    pools=(GpuPool(gpu="v100", site_type="v100", gpu_count=1, free_gpu_count=1, mps_per_gpu=200, feature="v100"),),
)


@given(st.dictionaries(st.sampled_from(FIELDS), st.text() | LISTS), st.none() | st.text())
def test_any_submission_is_understood_or_refused_in_one_sentence(fields: dict[str, str], script: str | None) -> None:
    with contextlib.suppress(RequestError):
        job = parse_submission(DecisionRequest(manager="slurm", fields=fields, script=script))
        assert job is not None
        assert job.request.gpu_count >= 0
        assert job.request_text


@given(st.lists(st.text(), max_size=8))
def test_any_script_is_read(lines: list[str]) -> None:
    fields = read_script("\n".join(f"#SBATCH {line}" for line in lines))
    assert fields["script"] == "1"


@given(LISTS)
def test_taking_the_gpus_out_leaves_everything_else_and_is_done_once(text: str) -> None:
    left = without_gpus(text)
    assert [r for r in parse_tres(text) if not is_gpu(r)] == list(parse_tres(left))
    assert without_gpus(left) == left


CONSTRAINTS = st.sampled_from(
    ["", "intel", "intel&ib", "intel|amd", "v100", "a&b|c", "[r1|r2]", "n*2", " ", "x" * 1020]
)


@given(st.sampled_from(TRES_FIELDS), CONSTRAINTS, st.sampled_from(["", "intel"]), st.booleans())
def test_a_rewritten_request_never_names_a_typed_share_and_holds_the_type_beside_all_that_was_asked(
    place: str,
    constraint: str,
    prefer: str,
    exact: bool,  # drawn
) -> None:
    fields = {place: "gres/gpu:v100:1", "features": constraint, "prefer": prefer}
    job = parse_submission(DecisionRequest(manager="slurm", fields=fields))
    assert job is not None
    pools = tuple(dataclasses.replace(pool, exact_feature="v100" if exact else None) for pool in CLUSTER.pools)
    pools = (
        *pools,
        dataclasses.replace(pools[0], site_type="h100", exact_feature="h100"),
    )
    request = dataclasses.replace(job.request, mps_thread_percent=40)
    decision = Decision(code=Code.REWRITE, request=request, reasons=(), plugin="test")
    rendered = render_decision(job, decision, dataclasses.replace(CLUSTER, pools=pools))
    assert rendered is not None
    if not rendered.fields:
        assert rendered.trouble
        return
    (share,) = parse_tres(rendered.fields["set.gres"])
    assert share.kind is None
    held = rendered.fields.get("set.features", constraint)
    assert "v100" in held.split("&")
    assert constraint.strip() in held
    assert not prefer
    assert len(held.encode()) <= 1024


@given(st.dictionaries(st.sampled_from(TRES_FIELDS), LISTS), st.integers(min_value=1, max_value=100))
def test_a_rewritten_job_asks_for_one_share_no_gpu_and_all_else_that_it_asked_for(
    fields: dict[str, str], percent: int
) -> None:
    job = parse_submission(DecisionRequest(manager="slurm", fields=fields))
    assert job is not None
    request = dataclasses.replace(job.request, gpu_type=None, mps_thread_percent=percent)
    decision = Decision(code=Code.REWRITE, request=request, reasons=(), plugin="test")
    rendered = render_decision(job, decision, CLUSTER)
    assert rendered is not None
    after = {**fields, **{key[4:]: value for key, value in rendered.fields.items() if key.startswith("set.tres")}}
    after["tres_per_node"] = ",".join(prefixed(word) for word in rendered.fields["set.gres"].split(","))
    assert read_request(after).gpu_count == 0
    share, *others = parse_tres(after["tres_per_node"])
    assert is_share(share)
    assert others == [item for item in parse_tres(fields.get("tres_per_node", "")) if item.generic and not is_gpu(item)]
    for place in TRES_FIELDS[1:]:
        assert after.get(place, "") in (fields.get(place, ""), without_gpus(fields.get(place, "")))


def prefixed(word: str) -> str:
    """Return *word* as slurmctld's `gres` field puts it into tres_per_node."""
    return word if word.startswith("gres") else f"gres:{word}"
