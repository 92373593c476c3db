"""Posting: from a node to its comment, by `scontrol`, one post of a node at a time.

Usage that could not be posted stays in the folder, and goes with the next post.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress

from gpusage.sampler.folder import Folder
from gpusage.sampler.letter import with_letter
from gpusage_hooks.errors import RequestError
from gpusage_slurm import scontrol

_COMMENT = re.compile(r"^ *Comment=(.*)$", re.MULTILINE)


def post(folder: Folder, node: str) -> None:
    """Put the usage of every job that has ended into the comment of *node*.

    Raises:
        RequestError: slurmctld does not answer, or refuses; what was to be posted stays.
    """
    with folder.locked():
        waiting = list(folder.ended())
        if not waiting:
            return
        shown = _COMMENT.search(scontrol.run("scontrol", "show", "node", node))
        comment = with_letter(shown[1] if shown else "", [usage for _, usage in waiting], time.time())
        scontrol.run("scontrol", "update", f"NodeName={node}", f"Comment={comment}")
        for file, _ in waiting:
            file.unlink(missing_ok=True)


def post_patiently(folder: Folder, node: str, pauses_s: tuple[float, ...]) -> bool:
    """Post after each of *pauses_s* until it works; tell whether it did."""
    for pause_s in pauses_s:
        time.sleep(pause_s)
        with suppress(RequestError, OSError):
            post(folder, node)
            return True
    return False
