"""Applications that ended, as the ResourceManager lists them -> the jobs that `gpusage simulate` reads.

Assumptions, also in lab/docs/simulator.md: an application held its GPUs from its launch to its end, as many as its
GPU seconds make over that time, rounded up; it stays on the GPU type whose label it named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from gpusage.cli.user_file import require_regular
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import PastJob
from gpusage_yarn.cluster.documents import Document, as_list, resource_seconds, with_repeated_names
from gpusage_yarn.cluster.queues import GPUS
from gpusage_yarn.share_plan import SHARE, WHOLE_GPU

QUESTION = "/ws/v1/cluster/apps"
MS_PER_S = 1000


def read_past_jobs(path: str) -> Sequence[PastJob] | None:
    """Return the jobs of the file at *path*; ``None`` where it is no answer to `QUESTION`.

    Raises:
        RequestError: As `past_jobs`, or it is JSON with a mistake.
    """
    require_regular(Path(path), "File")
    try:
        with Path(path).open(encoding="utf-8-sig", errors="replace") as file:
            # Another reader's file is left to it before it is read whole.
            if file.read(1) != "{":
                return None
            file.seek(0)
            document = json.load(file, object_pairs_hook=with_repeated_names)
    except OSError:
        return None  # whoever reads it next says so
    except (ValueError, RecursionError) as error:
        message = f"File {path!r} must be JSON, as it begins; got: {error}. Write it again from {QUESTION}."
        raise RequestError(message) from error

    return [*past_jobs(document, path)] if "apps" in document else None


def past_jobs(document: Document, origin: str, share: str = SHARE) -> Iterator[PastJob]:
    """Yield the applications of *document* that ended, and had GPUs.

    Args:
        document: What a ResourceManager answered to `QUESTION`.
        origin: Where it is from, for people.
        share: The resource type of which one GPU has 100.

    Raises:
        RequestError: An application is not as a ResourceManager writes it.
    """
    for application in as_list(document, "apps", "app"):
        try:
            job = _past_job(application, share)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            # The file may be anyone's, so any of its values may be of another type.
            name = application.get("id") if isinstance(application, Mapping) else application
            rule = f"be as a ResourceManager writes it; got: {type(error).__name__} {error}"
            message = f"Application {str(name)[:80]!r} of {origin!r} must {rule}. Write it again from {QUESTION}."
            raise RequestError(message) from error
        if job is not None:
            yield job


def _past_job(application: Mapping[str, Any], share: str) -> PastJob | None:
    """Return the job; ``None`` where it had no GPU, was never launched, or has not ended."""
    seconds = resource_seconds(application)

    # GPUs that were requested whole, and shares, which count hundredths.
    gpu_s = seconds.get(GPUS, 0) + seconds.get(share, 0) / WHOLE_GPU

    # Older releases report no time of launch.
    launched_ms = int(application.get("launchTime") or application["startedTime"])
    duration_s = (int(application["finishedTime"]) - launched_ms) / MS_PER_S
    if gpu_s <= 0 or duration_s <= 0:
        return None

    return PastJob(
        job_id=str(application["id"]),
        user=str(application["user"]),
        submitted_at_s=int(application["startedTime"]) / MS_PER_S,
        duration_s=duration_s,
        gpu_count=ceil(gpu_s / duration_s),
        gpu_type=application.get("appNodeLabelExpression") or None,
    )
