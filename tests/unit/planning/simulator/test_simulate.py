"""`gpusage simulate`: policies side by side, from a file or drawn."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from distributed import LocalCluster

from gpusage.cli.cluster_file import example_cluster
from gpusage.decisions.advisor import make_advisor
from gpusage_hooks.errors import RequestError
from gpusage_planning import commands
from gpusage_planning.simulator.contract import JobRequest
from gpusage_planning.simulator.engine import simulate
from gpusage_planning.simulator.fleet import fleet_of
from gpusage_planning.simulator.predictions import draw_kinds
from gpusage_planning.simulator.scenario import POLICIES, scenario_of
from gpusage_planning.simulator.source import generated
from gpusage_planning.simulator.sweep import wilson_interval
from simulated import read_trace

ADVISOR = make_advisor()
FLEET = fleet_of(example_cluster("none", ADVISOR.catalogue), ADVISOR.catalogue)


def run(*words: str) -> dict[str, object]:
    """Return the document of one repetition, unless *words* ask for more."""
    result = CliRunner().invoke(commands.simulate, ["--repetitions=1", *words, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_command_offers_every_policy() -> None:
    assert tuple(POLICIES) == commands.POLICIES


def test_every_policy_ends_every_job_and_says_the_same_twice() -> None:
    names = [word for name in POLICIES for word in ("--policy", name)]
    first = run("--generate", "200", *names)
    assert [one["policy"] for one in first["policies"]] == list(POLICIES)
    assert first == run("--generate", "200", *names)
    assert first == run("--generate", "200", *names, "--workers", "2")
    assert first != run("--generate", "200", *names, "--seed", "1")


def test_repetitions_have_other_errors_and_show_the_median() -> None:
    options = ("--generate", "100", "--policy", "slots", "--policy", "packing")
    result = run(*options, "--repetitions", "3", "--seed", "4")["policies"]
    alone = [run(*options, "--seed", str(seed))["policies"] for seed in (4, 5, 6)]
    for place, one in enumerate(result):
        assert [each["jct_s"] for each in one["repetitions"]] == [each[place]["jct_s"] for each in alone]
        assert one["jct_s"] == sorted(each["jct_s"] for each in one["repetitions"])[1]
    table = CliRunner().invoke(commands.simulate, [*options, "--repetitions", "2"]).stdout
    assert "packing / slots" in table


def test_policies_are_simulated_five_times_and_broken_promises_have_an_interval(tmp_path: Path) -> None:
    """One seed had 71 % of its promises broken, and the next three none."""
    options = ["--generate", "300", "--policy", "price"]
    document = json.loads(CliRunner().invoke(commands.simulate, [*options, "--json"]).stdout)
    (policy,) = document["policies"]
    promised = [each["promised"] for each in policy["repetitions"]]
    parts = [each["broken"] for each in policy["repetitions"]]
    assert len(parts) == 5
    share = sum(count * part for count, part in zip(promised, parts, strict=True)) / sum(promised)
    expected = wilson_interval(share, sum(each["promised_kinds"] for each in policy["repetitions"]))
    assert (policy["broken"], policy["broken_interval"]) == (share, {"low": expected.low, "high": expected.high})
    page = tmp_path / "page.html"
    table = CliRunner().invoke(commands.simulate, [*options, "-o", str(page)], env={"COLUMNS": "300"}).stdout
    cell = f"{100 * share:.1f} % ({100 * expected.low:.1f}-{100 * expected.high:.1f})"
    assert cell in table
    assert cell in page.read_text()
    once = CliRunner().invoke(commands.simulate, [*options, "--repetitions=1"]).stdout
    assert "another seed may show other figures" in " ".join(once.split())
    assert "Wilson's interval" in " ".join(once.split())


@pytest.mark.parametrize(
    ("share", "count", "low", "high"),
    [
        (0.0, 10, 0.0, 0.213),  # z^2 / (n + z^2), with z = 1.645
        (1.0, 10, 0.787, 1.0),
        (0.5, 100, 0.4189, 0.5811),
        (0.2, 20, 0.0931, 0.3784),  # as scipy.stats.binomtest has it
    ],
)
def test_wilson_s_interval(share: float, count: int, low: float, high: float) -> None:
    interval = wilson_interval(share, count)
    assert (interval.low, interval.high) == (pytest.approx(low, abs=2e-4), pytest.approx(high, abs=2e-4))


def test_a_dask_cluster_says_the_same() -> None:
    options = ("--generate", "100", "--policy", "slots", "--policy", "packing", "--repetitions", "2")
    with LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster:
        assert run(*options, "--dask", cluster.scheduler_address) == run(*options)


def test_a_dask_cluster_that_does_not_answer_is_told() -> None:
    with pytest.raises(RequestError, match="Dask's scheduler must answer at 'nothing://here'"):
        run("--generate", "10", "--dask", "nothing://here")


def test_a_policy_that_is_named_twice_is_simulated_once() -> None:
    options = ("--generate", "20", "--repetitions", "1", "--policy", "slots")
    assert run(*options, "--policy", "slots") == run(*options)


def test_slots_share_nothing_and_packing_does() -> None:
    by_name = {one["policy"]: one for one in run("--generate", "300", "--load", "2")["policies"]}
    assert by_name["slots"]["shared_time"] == 0
    assert by_name["slots"]["freed_hours"] == pytest.approx(0, abs=1e-6)
    assert by_name["packing"]["shared_time"] > 0
    assert by_name["packing"]["freed_hours"] > 0


def test_the_price_policy_is_what_the_advisor_decides() -> None:
    jobs = generated(10, draw_kinds(), FLEET, 0)
    scenario = scenario_of(jobs, FLEET, ADVISOR, Path(), 0)
    policy = POLICIES["price"](scenario)
    demands = [policy.demand(JobRequest(kind)) for kind in range(len(jobs.kinds))]
    shared = [one for one in demands if not one.alone]
    assert shared, "some of the zoo's jobs have a share at the usual prices"
    assert all(one.share_percent < 100 and one.memory_cap_bytes and one.accepted_slowdown == 1.25 for one in shared)


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run("--generate", "50", "--policy", "slots", "-o", str(page))
    text = page.read_text()
    assert text.endswith("</html>\n")
    assert "<th>utilization</th>" in text
    assert "<th>preemptions</th>" not in text
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.parametrize(("count", "is_drawn"), [(2, False), (60, True)])
def test_who_waits_is_drawn_where_somebody_does(count: int, is_drawn: bool, tmp_path: Path) -> None:
    page, path = tmp_path / "page.html", tmp_path / "jobs.csv"
    path.write_text("job_id,submit_time,duration,gpu_num\n" + "".join(f"{n},{n},1000,1\n" for n in range(count)))
    run("--jobs", str(path), "-o", str(page))
    assert ("jobs that wait, over time" in page.read_text()) == is_drawn


def test_jobs_without_a_model_get_whole_gpus(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("job_id,submit_time,duration,gpu_num\n" + "".join(f"{n},{n},100,1\n" for n in range(60)))
    by_name = {one["policy"]: one for one in run("--jobs", str(path))["policies"]}
    assert all(one["shared_time"] == 0 for one in by_name.values())
    drawn = run("--jobs", str(path), "--draw-models", "--policy", "packing")["policies"]
    assert drawn[0]["policy"] == "packing"


@pytest.mark.parametrize(("factor", "has_note"), [(1, False), (1000, True)])
def test_run_times_of_weeks_are_asked_about(factor: int, has_note: bool, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("job_id,submit_time,duration,gpu_num\n" + "".join(f"{n},{n},{3600 * factor},1\n" for n in range(9)))
    questions = [note for note in run("--jobs", str(path), "--policy", "slots")["notes"] if "milliseconds" in note]
    assert bool(questions) == has_note


@pytest.mark.parametrize("model", ["none.onnx", "x" * 300, "none.onnx;bacth=3"])
def test_jobs_of_a_model_that_cannot_be_read_count_as_without_one_and_are_told(tmp_path: Path, model: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(f"job_id,submit_time,duration,gpu_num,model\na,0,100,1,{model}\nb,0,100,1,timm:resnet18\n")
    scenario = scenario_of(read_trace(path, FLEET).jobs, FLEET, ADVISOR, tmp_path, 0)
    assert [kind.model for kind in scenario.jobs.kinds] == [None, "timm:resnet18"]
    (note,) = [note for note in run("--jobs", str(path))["notes"] if "cannot be read" in note]
    assert note.startswith("1 of 2 models cannot be read: their jobs count as without a model.")
    assert model[:20] in note


def test_the_longest_wait_is_bounded_by_a_reservation() -> None:
    """A job of 4 GPUs starts although small jobs come all the time."""
    jobs = generated(400, draw_kinds(), FLEET, 3, load=3.0)
    scenario = scenario_of(jobs, FLEET, ADVISOR, Path(), 0)
    result = simulate(jobs, FLEET, POLICIES["slots"](scenario), scenario.truth)
    wait_s = result.start_s - jobs.submit_s
    large = jobs.gpu_count == jobs.gpu_count.max()
    assert wait_s[large].mean() < result.figures.makespan_s / 2


def test_a_site_s_own_month_and_its_own_configuration_are_enough(tmp_path: Path) -> None:
    """GPUs that are not divided today are simulated as if they were, and the notes say so."""
    sacct, conf = tmp_path / "month.txt", tmp_path / "slurm.conf"
    head = "JobID|User|Submit|ElapsedRaw|TimelimitRaw|AllocTRES|Comment\n"
    rows = (f"{n}|user{n}|2026-10-01T10:00:0{n % 10}|600|60|gres/gpu:h100=1|\n" for n in range(40))
    sacct.write_text(head + "".join(rows))
    conf.write_text("NodeName=g[1-2] Gres=gpu:h100:2 Features=h100\nPartitionName=gpu Nodes=ALL Default=YES\n")
    result = run(
        "--jobs", str(sacct), "--cluster", str(conf), "--draw-models", "--policy", "slots", "--policy", "price"
    )
    slots, price = result["policies"]
    assert slots["gpu_hours"] == pytest.approx(40 * 600 / 3600)
    assert price["shared_time"] > 0
    assert "GPUs of h100 are not divided today; here they are, into 100 shares each." in result["notes"]


def test_a_month_with_gpus_that_have_gone_is_simulated_without_their_jobs(tmp_path: Path) -> None:
    sacct = tmp_path / "month.txt"
    had = ("h100=1", "k80=2", "H100=1", "h100=64", "k80=1")
    rows = (f"{n}|ada|2026-10-01T10:00:00|600|60|gres/gpu:{gpus}|\n" for n, gpus in enumerate(had))
    sacct.write_text("JobID|User|Submit|ElapsedRaw|TimelimitRaw|AllocTRES|Comment\n" + "".join(rows))
    result = run("--jobs", str(sacct), "--policy", "slots")
    assert result["policies"][0]["gpu_hours"] == pytest.approx(2 * 600 / 3600)
    assert "Jobs on GPUs that the cluster does not have are left out: 2 on k80, 1 on 64 of h100." in result["notes"]


def test_no_error_of_a_prediction_takes_a_job_off_the_type_on_which_it_ran(tmp_path: Path) -> None:
    """Another seed draws a larger memory; on a type of little memory nothing would be left to run the job."""
    jobs, cluster = tmp_path / "jobs.csv", tmp_path / "cluster.json"
    rows = (f"{n},{n},60,1,t4,user{n}\n" for n in range(60))
    jobs.write_text("job_id,submit_time,duration,gpu_num,gpu_type,user\n" + "".join(rows))
    pools = [{"site_type": name, "gpu_count": 4, "mps_per_gpu": 100} for name in ("t4", "h200")]
    cluster.write_text(json.dumps({"pools": pools}))
    run("--jobs", str(jobs), "--cluster", str(cluster), "--draw-models", "--policy", "slots", "--repetitions", "8")


def test_jobs_come_from_one_place(tmp_path: Path) -> None:
    path = tmp_path / "month.txt"
    path.write_text("job_id\n")
    both = CliRunner().invoke(commands.simulate, ["--jobs", str(path), "--generate", "5"])
    assert "got --jobs and --generate. Leave all but one out." in both.output
    none = CliRunner().invoke(commands.simulate, ["--jobs", str(tmp_path / "none.txt")])
    assert "none.txt' must be a readable file; got: No such file or directory." in str(none.exception)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--format", "philly"], "Option --format must be with --jobs;"),
        (["--jobs", "none.csv", "--load", "2"], "Option --load must be with jobs drawn by chance;"),
        (["--draw-models"], "Option --draw-models must be with --jobs or --last-month;"),
        (["--order", "fifo", "--round-s", "5"], "Option --round-s must be with --order las, max-min;"),
        (["--order", "fifo", "--preemption-s", "5"], "Option --preemption-s must be with --order srtf, las,"),
        (["--order", "las", "--duration-error", "1"], "Option --duration-error must be with --order sjf, srtf;"),
        (["--load", "nan"], "Invalid value for '--load': 'nan' is not a number."),
        (["--order", "las", "--round-s", "nan"], "Invalid value for '--round-s': 'nan' is not a number."),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(words: list[str], sentence: str) -> None:
    result = CliRunner().invoke(commands.simulate, words)
    assert result.exit_code == 2
    assert sentence in " ".join(result.output.split())


def test_energy_is_of_measured_power_alone(tmp_path: Path) -> None:
    """One of two GPUs works for two hours on a job without a model, whose busy share is 0.5."""
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("job_id,submit_time,duration,gpu_num\n1,0,7200,1\n")

    def words(power: str) -> list[str]:
        cluster = tmp_path / f"{power or 'none'}.toml"
        cluster.write_text(f'[[pools]]\nsite_type = "v100"\ngpu_count = 2\nidle_power_w = 40\n{power}')
        return ["--jobs", str(jobs), "--cluster", str(cluster), "--policy", "slots"]

    (one,) = run(*words("power_w = 240\n"))["policies"]
    assert one["energy_kwh"] == pytest.approx(2 * (0.5 * 0.24 + 1.5 * 0.04))
    unknown = run(*words(""))
    assert unknown["policies"][0]["energy_kwh"] is None
    assert "No energy: the cluster file has no measured power_w and idle_power_w of v100." in unknown["notes"]
    assert " energy " not in CliRunner().invoke(commands.simulate, words("")).stdout
    wrong = CliRunner().invoke(commands.simulate, words("power_w = -1\n"))
    assert "pool 1' must be watts, a number of at least 0; got -1" in str(wrong.exception)
    swapped = CliRunner().invoke(commands.simulate, words("power_w = 30\n"))
    assert "must be at least 'idle_power_w', 40 W; got 30." in str(swapped.exception)


def test_a_mistyped_number_of_gpus_takes_no_memory(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.toml"
    cluster.write_text('[[pools]]\nsite_type = "v100"\ngpu_count = 1000000000\n')
    with pytest.raises(RequestError, match=r"must have at most 1,000,000 GPUs to be simulated; got 1,000,000,000\."):
        run("--generate", "5", "--cluster", str(cluster))


def test_what_is_freed_has_its_smallest_and_largest_beside_it() -> None:
    words = ["--generate", "100", "--policy", "slots", "--policy", "packing", "--repetitions", "2"]
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(commands.simulate, words).stdout
    row = next(line for line in shown.splitlines() if line.startswith("packing / slots"))
    assert re.search(r"\) +-?\d+ \(-?\d+(-| to )-?\d+\)$", row.rstrip()), row


def test_waits_and_fairness_are_in_the_table_of_ratios() -> None:
    words = ["--generate", "300", "--policy", "slots", "--policy", "packing", "--repetitions", "1"]
    run = partial(CliRunner(env={"COLUMNS": "200"}).invoke, commands.simulate)
    shown = [run([*words, "--load", load]).stdout for load in ("0.1", "3")]
    idle, busy = (re.sub(r"\s+", " ", text) for text in shown)
    titles = "utilization fairness GPU hours freed packing / slots"
    assert f"policy makespan mean JCT p95 JCT mean wait p95 wait {titles}" in busy
    assert f"policy makespan mean JCT p95 JCT {titles}" in idle, "nobody waits"
