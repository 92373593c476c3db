"""A YARN submission -> Job: what it asks of GPUs.

Two ways in: the fields that our placement rule has read off a submission (who, which queue and label, the model's card
and comment), and those of `gpusage yarn submit`, which are the same. YARN tells the rule nothing of the containers that
the application will ask for; the processor changes only those that ask for one GPU, so a job counts as one for one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpusage_hooks import hookimpl
from gpusage_hooks.comment import parse_comment
from gpusage_hooks.types import GpuRequest, Job, Submission, Submitter
from gpusage_hooks.units import MIB
from gpusage_yarn.plan import SHARE, Plan, parse_plan
from gpusage_yarn.settings import YARN

MANAGER = YARN.name
WHOLE = "yarn.io/gpu: 1"

_NUMBER = re.compile(r"[0-9]{1,9}")
_MAXIMUM_CARD_CHARACTERS = 64 * 1024


@hookimpl(trylast=True)
def parse_submission(submission: Submission) -> Job | None:
    """Understand what the placement rule saw, or what a user typed.

    Raises:
        RequestError: The comment is addressed to us and malformed, or a plan is.
    """
    if submission.manager != MANAGER:
        return None
    fields = submission.fields
    card = fields.get("card", "")
    plan = parse_plan(fields["plan"]) if fields.get("plan") else None
    return Job(
        submission=submission,
        request=read_request(fields, plan),
        request_text=describe_request(fields, plan),
        model_request=parse_comment(fields.get("comment", "")),
        card=card if 0 < len(card) <= _MAXIMUM_CARD_CHARACTERS else None,
        submitter=Submitter(fields=fields, account_field="queue", job_name_field="name"),
    )


def read_request(fields: Mapping[str, str], plan: Plan | None = None) -> GpuRequest:
    """Return what one container asks for: a whole GPU, or the share of a plan that was made before.

    Only `gpusage yarn submit` says how large a container is; without that, no label is known to have room for it.
    """
    label, queue = fields.get("label", ""), fields.get("queue", "")
    return GpuRequest(
        gpu_count=0 if plan else 1,
        gpu_type=label or None,
        mps_thread_percent=plan.share if plan else None,
        obstacles=tuple(_obstacles(label)),
        partitions=(queue,) if queue else (),
        cpu_count=max(_number(fields, "vcores"), 1),
        host_memory_bytes=_number(fields, "memory_mib") * MIB,
        bindable=bool(_number(fields, "memory_mib")),
    )


def _number(fields: Mapping[str, str], name: str) -> int:
    """Return the whole number in field *name*, 0 where there is none."""
    text = fields.get(name, "")
    return int(text) if _NUMBER.fullmatch(text) else 0


def describe_request(fields: Mapping[str, str], plan: Plan | None = None) -> str:
    """Return the request in YARN's words, for people: ``yarn.io/gpu: 1 on a100``."""
    asked = f"{SHARE}: {plan.share}" if plan else WHOLE
    return f"{asked} on {fields['label']}" if fields.get("label") else asked


def _obstacles(label: str) -> list[str]:
    joined = any(character in label for character in "&|!() ")
    return [f"the label expression {label!r} names more than one label"] if joined else []
