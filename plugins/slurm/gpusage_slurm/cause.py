"""Why no description of a model came with a job, as one sentence, from all that the job itself tells."""

from __future__ import annotations

from collections.abc import Mapping

from gpusage.graphs.card.trouble import decode_trouble

UNKNOWN = (
    "no description of the model came with the job: the host of the submission has no gpusage in its cli_filter.lua, "
    "or it came from another client than sbatch"
)
CAVEAT = (
    "--export={}: where the Lua of the submission's host has no luaposix (`gpusage slurm doctor` tells), "
    "the description of the model stays behind, and the request is kept"
)
_LEFT_BEHIND = (
    "--export={} left the description of the model behind, because the Lua of the submission's host has no luaposix"
)
_BATCH = "1"


def no_card(fields: Mapping[str, str]) -> str | None:
    """Return why the job that job_submit saw brings no card; ``None`` where it is no batch job, which never does."""
    told = decode_trouble(fields.get("card", ""))
    if told:
        return told
    if fields.get("script", _BATCH) != _BATCH:
        return None
    return UNKNOWN if exports_all(fields) else _LEFT_BEHIND.format(fields["export"])


def exports_all(fields: Mapping[str, str]) -> bool:
    """Tell whether the job takes the whole environment with it, which carries a card in any case."""
    return fields.get("export", "").partition(",")[0] in ("", "ALL")
