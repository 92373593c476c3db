"""A store's observations -> past runs, and what history told of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpusage.history.history import Find
from gpusage.history.runs import PastRun, past_run
from gpusage.history.trust import Checked, held
from gpusage.store.usage_rows import Observation
from gpusage_hooks.errors import DeviceError


def past_runs(observations: Iterable[Observation], least_sampled_s: float, find: Find) -> Iterator[PastRun]:
    """Yield what counts of *observations*; runs on a GPU that the catalogue does not know are left out.

    Args:
        observations: Of a store.
        least_sampled_s: With less, figures are mostly of the start.
        find: Returns a GPU of the catalogue by its name.
    """
    for each in observations:
        run = past_run(each.usage, each.decision, least_sampled_s) if each.decision else None
        if run is not None and _is_known(run.gpu, find):
            yield run


def checked_runs(observations: Iterable[Observation], least_sampled_s: float) -> Iterator[Checked]:
    """Yield whether each run held of which history had told something, as `past_runs`."""
    for each in observations:
        record = each.decision
        run = past_run(each.usage, record, least_sampled_s) if record else None
        if record is None or run is None or run.gpu not in record.told:
            continue
        kept = held(record.told[run.gpu], each.usage, run.utilization)
        if kept is not None:
            yield Checked(user=run.identity.user, ended_at_s=run.ended_at_s, held=kept)


def _is_known(gpu: str, find: Find) -> bool:
    try:
        find(gpu)
    except DeviceError:
        return False
    return True
