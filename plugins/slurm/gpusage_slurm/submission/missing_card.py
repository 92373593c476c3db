"""Why no description of a model came with a job, as one sentence, from all that the job itself shows."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpusage.graphs.card.error import ERROR_MARK, decode_error

UNKNOWN = (
    "no description of the model came with the job: its script came through a pipe, it came from another client than "
    "sbatch, or the host of the submission has no gpusage in its cli_filter.lua"
)
CAVEAT = (
    "--export={}: where the Lua of the submission's host has no luaposix (`gpusage slurm doctor` tells), "
    "the description of the model stays behind, and the request is kept"
)
_LEFT_BEHIND = (
    "--export={} left the description of the model behind, because the Lua of the submission's host has no luaposix"
)
ONLY_BATCH = "only batch jobs are changed, not srun or salloc"
_BATCH = "1"
_STATUS = re.compile(rf"{ERROR_MARK}([0-9]{{1,3}}|unknown)")
"""How `gpusage job-card` ended where it gave neither a card nor a reason; no encoded sentence is of this length."""
_MISSING = "the host of the submission has no gpusage where its cli_filter.lua looks for it"
_SLOW = "describing the model took longer than slurm.card_limit_s allows"
_ENDINGS = {"124": _SLOW, "137": _SLOW, "126": _MISSING, "127": _MISSING}
_ENDED = "gpusage job-card on the host of the submission ended with status {}"


def missing_card_reason(fields: Mapping[str, str]) -> str | None:
    """Return why the job that job_submit saw brings no card; ``None`` where it is no batch job, which never does."""
    reason = decode_missing_card_reason(fields.get("card", ""))
    if reason:
        return reason
    if not is_batch(fields):
        return None
    return UNKNOWN if exports_all(fields) else _LEFT_BEHIND.format(fields["export"])


def decode_missing_card_reason(card: str) -> str | None:
    """Return the reason that travels in a card's place, as one sentence; ``None`` where none does."""
    ended = _STATUS.fullmatch(card)
    return _ENDINGS.get(ended[1], _ENDED.format(ended[1])) if ended else decode_error(card)


def exports_all(fields: Mapping[str, str]) -> bool:
    """Return whether the job takes the whole environment with it, which carries a card in any case."""
    return fields.get("export", "").partition(",")[0] in ("", "ALL")


def is_batch(fields: Mapping[str, str]) -> bool:
    """Return whether the job is a batch job, not one of srun or salloc."""
    return fields.get("script", _BATCH) == _BATCH
