"""gpusaged's answer about a job that waits -> what `scontrol update` changes in it.

`scontrol` changes no variable of a job. So the variables stand in the mark, where the job's task prolog reads them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from gpusage.mark import parse_mark, with_mark
from gpusage_hooks.errors import RequestError
from gpusage_slurm.jobs.turning_back import MAXIMUM_BYTES

_SETTINGS = {
    "set.gres": "Gres",
    "set.tres_per_job": "TresPerJob",
    "set.tres_per_socket": "TresPerSocket",
    "set.tres_per_task": "TresPerTask",
    "set.tres_bind": "TresBind",
    "set.features": "Features",
    "set.prefer": "Prefer",
    "set.exc_nodes": "ExcNodeList",
}
_VARIABLE = re.compile(r"env\.[A-Z_]+=[A-Za-z0-9_=:.]+")


def changes(answer: Mapping[str, str], admin_comment: str) -> tuple[str, ...]:
    """Return the settings of `scontrol update` that carry out *answer*; none where it leaves no mark.

    Args:
        answer: The daemon's, as job_submit gets it.
        admin_comment: The job's; what is not ours stays in it.

    Raises:
        RequestError: The answer names a setting that no waiting job can be given.
    """
    mark = parse_mark(answer.get("mark", ""))
    if mark is None:
        return ()
    wanted = {name: value for name, value in answer.items() if name.startswith("set.")}
    strange = [name for name in wanted if name not in _SETTINGS]
    if strange:
        message = (
            f"A waiting job must be changed by {', '.join(_SETTINGS)} alone; got {strange[0]!r:.80}. Update gpusage."
        )
        raise RequestError(message)
    variables = [f"{name[4:]}={value}" for name, value in answer.items() if _VARIABLE.fullmatch(f"{name}={value}")]
    if variables:
        mark = replace(mark, reasons=f"set {' '.join(sorted(variables))}; {mark.reasons}")
    settings = tuple(f"{_SETTINGS[name]}={value}" for name, value in wanted.items())
    return (*settings, f"AdminComment={with_mark(admin_comment, mark, MAXIMUM_BYTES)}")
