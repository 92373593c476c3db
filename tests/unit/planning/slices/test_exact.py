"""How near the layouts of `gpusage plan slices` are to the best: small instances, solved exactly by OR-Tools' CP-SAT.

CP-SAT chooses how each GPU is cut, the slice of each job and its start. No job overtakes an older one on a slice that
the older one may have, as in the simulator; but CP-SAT knows which jobs will come.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage_hooks.types import Cluster, GpuPool
from gpusage_planning.simulator.contract import Jobs, Kind, UnslowedTruth
from gpusage_planning.simulator.fleet import fleet_of
from gpusage_planning.slices.layouts import WHOLE, boards_of
from gpusage_planning.slices.search import Month, best_layout

pytestmark = pytest.mark.nightly
INSTANCES = 20
JOBS = 9
SIZES = (1, 2, 3, 7)
"""Parts of the SMs that the kinds of jobs need."""


def instance(seed: int) -> Month:
    """Return jobs that come by chance to one H100 or two."""
    chance = np.random.default_rng(seed)
    catalogue = builtin_catalogue()
    pool = GpuPool(gpu="h100-sxm5-80gb", site_type="h100", gpu_count=1 + seed % 2, free_gpu_count=0)
    (board,) = boards_of(fleet_of(Cluster(manager="test", version="", pools=(pool,)), catalogue), catalogue)
    types = (board.whole, *board.slices.values())
    parts = [7 if one is board.whole else int(one.name.rpartition("_")[2][0]) for one in types]
    order = sorted(range(len(types)), key=lambda place: (parts[place], types[place].memory_bytes))
    jobs = Jobs(
        ids=[str(number) for number in range(JOBS)],
        submit_s=np.cumsum(chance.integers(0, 4, JOBS)).astype(float),
        work_s=chance.integers(2, 20, JOBS).astype(float),
        limit_s=np.full(JOBS, 20.0),
        gpu_count=np.ones(JOBS, dtype=np.int32),
        kind=chance.choice(len(SIZES), JOBS, p=(0.5, 0.25, 0.2, 0.05)).astype(np.int32),
        user=np.zeros(JOBS, dtype=np.int32),
        kinds=tuple(Kind(name=str(size)) for size in SIZES),
        users=("ada",),
    )
    fleet = fleet_of(Cluster(manager="test", version="", pools=(pool,)), catalogue)
    types_of = {kind: tuple(place for place in order if parts[place] >= size) for kind, size in enumerate(SIZES)}
    return Month(jobs=jobs, boards=(board,), fleet=fleet, truth=UnslowedTruth(), types_of=types_of)


def exact_wait_s(month: Month) -> float:
    """Return the least mean wait of all layouts and schedules."""
    cp_model = pytest.importorskip("ortools.sat.python.cp_model", reason="the extra [exact]")
    model, (board,), jobs = cp_model.CpModel(), month.boards, month.jobs
    horizon = int(jobs.submit_s[-1] + jobs.work_s.sum())
    starts = [model.new_int_var(int(submit_s), horizon, "") for submit_s in jobs.submit_s]
    names = [board.whole.name, *(one.name for one in board.slices.values())]
    places, on_type, of_slot = defaultdict(list), defaultdict(list), []
    for _ in range(board.whole.gpu_count):
        cut = {division: model.new_bool_var("") for division in board.divisions}
        model.add_exactly_one(cut.values())
        for division, is_cut in cut.items():
            for profile in division or ("",):
                place = names.index(board.slices[profile].name) if profile else 0
                intervals = []
                for job in range(len(jobs)):
                    if place not in month.types_of[int(jobs.kind[job])]:
                        continue
                    here = model.new_bool_var("")
                    model.add_implication(here, is_cut)
                    size = int(jobs.work_s[job])
                    intervals.append(model.new_optional_interval_var(starts[job], size, starts[job] + size, here, ""))
                    places[job].append(here)
                    on_type[job, place].append(here)
                of_slot.append(intervals)
    for intervals in of_slot:
        model.add_no_overlap(intervals)
    for job in range(len(jobs)):
        model.add_exactly_one(places[job])
    for (job, place), here in on_type.items():
        for older in range(job):
            if place in month.types_of[int(jobs.kind[older])]:
                for each in here:
                    model.add(starts[job] >= starts[older]).only_enforce_if(each)
    model.minimize(sum(starts))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers, solver.parameters.max_time_in_seconds = 2, 600
    assert solver.solve(model) == cp_model.OPTIMAL
    return (float(solver.objective_value) - float(jobs.submit_s.sum())) / len(jobs)


def test_the_layouts_are_within_three_percent_of_the_best() -> None:
    ours, exact, whole = 0.0, 0.0, 0.0
    for seed in range(INSTANCES):
        month = instance(seed)
        best, _ = best_layout(month, 10_000)
        ours += month.wait(month.types(best))[0]
        exact += (own := exact_wait_s(month))
        whole += month.wait(month.types({("h100", WHOLE): month.boards[0].whole.gpu_count}))[0]
        print(seed, month.wait(month.types(best))[0], own)
    print(f"mean wait: whole GPUs {whole / INSTANCES:.3f}, ours {ours / INSTANCES:.3f}, exact {exact / INSTANCES:.3f}")
    assert exact <= ours <= 1.03 * exact
