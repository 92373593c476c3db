"""`gpusage plan` as it is typed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpusage.cli import main
from gpusage.cli.cards.graph_cache import read_graph
from gpusage.decisions.advisor import make_advisor
from gpusage.policies.share_price import partners_of
from gpusage.predictors.sharing.colocation import slowdown_with_partners
from gpusage_hooks.types import Workload
from gpusage_planning.plan import times
from gpusage_planning.plan.files import read_lines, read_nodes

ROOT = Path(__file__).parents[4]
EXAMPLE = ["plan", "--jobs", "examples/plan/jobs.csv", "--cluster", "examples/plan/cluster.toml"]
CLUSTER = '[[nodes]]\nname = "n"\ncount = 1\ntypes = [{ name = "t", gpu = "v100", gpus = 2, price_per_hour = 3.6 }]\n'
WHOLE = '{ name = "whole", gpu = "v100", gpus = 1, price_per_hour = 3.6 }'


@pytest.fixture(autouse=True)
def _root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_the_example_is_planned_with_its_models_and_drawn(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    result = CliRunner().invoke(main, [*EXAMPLE, "--json", "-o", str(page)])
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["schema"] == "gpusage.plan/1"
    assert sorted(each["job"] for each in document["jobs"]) == ["bert", "measured", "resnet", "vgg"]
    assert document["cost"] == pytest.approx(document["node_cost"] + document["late_cost"], rel=1e-5)
    assert document["cost"] < min(document["rules"].values())
    assert document["gap"] == pytest.approx(1.0 - document["bound"] / document["cost"], abs=1e-5)
    assert "<svg" in page.read_text()
    assert "measured" in page.read_text()
    assert list(tmp_path.iterdir()) == [page]


def test_the_solver_writes_nothing_beside_the_answer(tmp_path: Path) -> None:
    """HiGHS is no Python: what it writes goes past whatever reads ``sys.stdout``."""
    (tmp_path / "c.toml").write_text(CLUSTER)
    (tmp_path / "j.csv").write_text("job_id,steps,v100:1\na,1000,1\n")
    command = [
        Path(sys.executable).with_name("gpusage"),
        "plan",
        "--jobs",
        tmp_path / "j.csv",
        "--cluster",
        tmp_path / "c.toml",
    ]
    run = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(run.stdout)["schema"] == "gpusage.plan/1"
    assert run.stderr == ""


def test_two_jobs_side_by_side_cost_one_node(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CLUSTER.replace("count = 1", 'names = ["gpu07", "gpu09"]'))
    (tmp_path / "j.csv").write_text("job_id,steps,v100:1\na,1000,1\nb,1000,1\n")
    result = CliRunner().invoke(
        main, ["plan", "--jobs", str(tmp_path / "j.csv"), "--cluster", str(tmp_path / "c.toml"), "--json"]
    )
    document = json.loads(result.stdout)
    assert document["cost"] == pytest.approx(1.0)  # 1000 s at 3.6 an hour
    assert [each["node"] for each in document["nodes"]] == ["gpu07"]
    assert document["unused_nodes"] == ["gpu09"]
    assert 0 <= time.time() - document["planned_at_s"] < 600


def test_the_bill_says_what_is_for_booting_and_for_no_use(tmp_path: Path) -> None:
    billing = 'price_per_hour = 3.6, boot = "100s", minimum_billing = "30m", billing_step = "1h"'
    (tmp_path / "c.toml").write_text(CLUSTER.replace("price_per_hour = 3.6", billing))
    (tmp_path / "j.csv").write_text("job_id,steps,v100:1\na,1000,1\n")
    words = ["plan", "--jobs", str(tmp_path / "j.csv"), "--cluster", str(tmp_path / "c.toml")]
    shown = CliRunner().invoke(main, words).stdout
    bill = "nodes 3.60 (booting 0.10, billed after they were switched off 2.50), lateness 0.00."
    assert bill in " ".join(shown.split())
    document = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    (node,) = document["nodes"]
    assert (node["start_s"], node["ready_s"], node["end_s"], node["billed_s"]) == (0.0, 100.0, 1100.0, 3600.0)
    assert (document["boot_cost"], document["unused_cost"]) == (pytest.approx(0.1), pytest.approx(2.5))


def test_within_a_time_limit_the_best_plan_so_far_counts(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CLUSTER)
    (tmp_path / "j.csv").write_text("job_id,steps,v100:1\na,1000,1\nb,1000,1\n")
    words = ["plan", "--jobs", str(tmp_path / "j.csv"), "--cluster", str(tmp_path / "c.toml"), "--json"]
    document = json.loads(CliRunner().invoke(main, [*words, "--time-limit", "0.001s"]).stdout)
    assert len(document["jobs"]) == 2
    assert document["cost"] <= min(document["rules"].values())
    result = CliRunner().invoke(main, [*words, "--time-limit", "soon"])
    assert result.exit_code == 2
    assert "must be a time such as 90s, 25m, 8h or 2d" in result.stderr


def test_a_type_with_a_spot_price_is_there_as_a_spot_node_too(tmp_path: Path) -> None:
    spot = "price_per_hour = 3.6, spot_price_per_hour = 1.8, interruptions_per_hour = 0.1"
    (tmp_path / "c.toml").write_text(CLUSTER.replace("price_per_hour = 3.6", spot))
    (tmp_path / "j.csv").write_text("job_id,steps,v100:1,checkpoint\na,100000,1,10m\n")
    words = ["plan", "--jobs", str(tmp_path / "j.csv"), "--cluster", str(tmp_path / "c.toml"), "--json"]
    document = json.loads(CliRunner().invoke(main, words).stdout)
    assert [each["type"] for each in document["nodes"]] == ["t spot"]
    assert 50.0 < document["cost"] < 51.0  # 100,000 s at 1.8 an hour, and half a checkpoint per interruption
    (tmp_path / "c.toml").write_text(
        CLUSTER.replace("price_per_hour = 3.6", "price_per_hour = 3.6, interruptions_per_hour = 0.1")
    )
    result = CliRunner().invoke(main, words)
    assert "must have 'spot_price_per_hour' and 'interruptions_per_hour' together; got one of them." in result.stderr


@pytest.mark.parametrize(
    ("line", "longer", "expected"),
    [
        pytest.param(
            "count = 1",
            'count = 1\nuntil = "8h"',
            "must be able to run on a node that stays; got only nodes that have 'until'.",
            id="a job that only nodes that will be gone can run",
        ),
        pytest.param(
            "price_per_hour = 3.6",
            "price_per_hour = 3.6, boot = 5",
            "must be a time with its unit, such as '5m'; got 5.",
            id="a boot without a unit",
        ),
        pytest.param(
            "price_per_hour = 3.6",
            'price_per_hour = 3.6, boot = "999999d"',
            "Key 'boot' of cluster 'C' must be at most 366 days; got '999999d'.",
            id="a boot of centuries",
        ),
        pytest.param(
            "types = [",
            'types = [{ name = "t", gpu = "v100", gpus = 1, price_per_hour = 1.0 }, ',
            "Key 'name' of cluster 'C' must differ from type to type of kind 'n'; got 't' twice.",
            id="two types of one name",
        ),
        pytest.param(
            "price_per_hour = 3.6",
            "price_per_hour = 3.6, spot_price_per_hour = 1.0, interruptions_per_hour = 1.0 },"
            '{ name = "t spot", gpu = "v100", gpus = 1, price_per_hour = 1.0',
            "Key 'name' of cluster 'C' must differ from type to type of kind 'n'; got 't spot' twice.",
            id="a type with a spot node's name",
        ),
    ],
)
def test_nodes_with_which_no_plan_can_be_made_are_told(line: str, longer: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CLUSTER.replace(line, longer))
    (tmp_path / "j.csv").write_text("job_id,steps,v100:1\na,1000,1\n")
    result = CliRunner().invoke(
        main, ["plan", "--jobs", str(tmp_path / "j.csv"), "--cluster", str(tmp_path / "c.toml")]
    )
    assert result.exit_code == 1
    assert expected in result.stderr.replace(str(tmp_path / "c.toml"), "C")


def test_a_plan_above_the_budget_is_shown_with_its_cost_and_status_1(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CLUSTER)
    (tmp_path / "j.csv").write_text("job_id,steps,v100:1\na,1000,1\n")
    words = ["plan", "--jobs", str(tmp_path / "j.csv"), "--cluster", str(tmp_path / "c.toml")]
    above = CliRunner().invoke(main, [*words, "--budget", "0.5"])
    assert above.exit_code == 1
    assert "No plan was found within the budget of 0.50; the least cost found is 1.00." in above.stdout
    document = json.loads(CliRunner().invoke(main, [*words, "--budget", "0.5", "--json"]).stdout)
    assert document["cost"] > document["budget"] == 0.5
    assert document["within_budget"] is False
    within = CliRunner().invoke(main, [*words, "--budget", "1.5"])
    assert (within.exit_code, "budget" in within.stdout) == (0, False)
    unclear = CliRunner().invoke(main, [*words, "--budget", "nan"])
    assert (unclear.exit_code, "'nan' is not a number." in unclear.stderr) == (2, True)


def test_a_budget_of_the_cost_that_is_shown_is_enough(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CLUSTER)
    (tmp_path / "j.csv").write_text("job_id,steps,v100:1\na,1004,1\n")
    words = ["plan", "--jobs", str(tmp_path / "j.csv"), "--cluster", str(tmp_path / "c.toml"), "--budget", "1.00"]
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, "It costs 1.00:" in result.stdout, "budget" in result.stdout) == (0, True, False)
    document = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    assert (document["cost"], document["within_budget"]) == (1.004, True)


def test_parts_of_gpus_are_places_and_no_job_has_several(tmp_path: Path) -> None:
    types = {"whole": ("v100", 1), "halves": ("v100:50%", 2), "slices": ("a100-sxm4-80gb 1g.10gb", 7)}
    rows = (
        f'{{ name = "{name}", gpu = "{gpu}", gpus = {gpus}, price_per_hour = 7.0 }}'
        for name, (gpu, gpus) in types.items()
    )
    (tmp_path / "c.toml").write_text(f'[[nodes]]\nname = "n"\ncount = 3\ntypes = [{", ".join(rows)}]\n')
    model = str(ROOT / "examples" / "models" / "resnet50.onnx") + ",batch=8"
    jobs = "".join(f'j{number},"{model}",10000,4,\n' for number in range(7))
    (tmp_path / "j.csv").write_text(f"job_id,model,steps,max_gpus,v100:50%:1\n{jobs}m,,,,50\n")
    words = ["plan", "--jobs", str(tmp_path / "j.csv"), "--cluster", str(tmp_path / "c.toml"), "--json"]
    planned = {each["job"]: each for each in json.loads(CliRunner().invoke(main, words).stdout)["jobs"]}
    assert (planned["m"]["gpu"], planned["m"]["end_s"] - planned["m"]["start_s"]) == ("v100:50%", 50.0)
    assert {planned[f"j{number}"]["gpu"] for number in range(7)} == {"a100-sxm4-80gb 1g.10gb"}
    assert {each["gpus"] for each in planned.values()} == {1}
    lines = read_lines(tmp_path / "j.csv")
    (job, *_) = times.planned(lines, read_nodes(tmp_path / "c.toml"), make_advisor(), tmp_path)
    assert set(job.times_s) == {("v100", 1), ("v100", 2), ("v100", 4), *((types[name][0], 1) for name in types)}


@pytest.mark.parametrize("percent", [25, 33, 75])
def test_a_step_on_a_share_is_as_long_as_the_policy_books_beside_partners(percent: int, tmp_path: Path) -> None:
    """A step of ResNet-50 waits for memory, so its partners' part of the bandwidth counts."""
    (tmp_path / "c.toml").write_text(
        CLUSTER.replace('"v100"', f'"v100:{percent}%"').replace("types = [", f"types = [{WHOLE}, ")
    )
    model = str(ROOT / "examples" / "models" / "resnet50.onnx")
    (tmp_path / "j.csv").write_text(f'job_id,model\na,"{model},batch=8"\n')
    advisor = make_advisor()
    (job,) = times.planned(read_lines(tmp_path / "j.csv"), read_nodes(tmp_path / "c.toml"), advisor, tmp_path)
    ((price,),) = advisor.price(
        read_graph(advisor, model, {}), Workload(batch_size=8), [advisor.catalogue.find("v100")], [percent]
    )
    booked = slowdown_with_partners(price.slowdown_under_contention, partners_of(percent), price.partner_powers)
    assert price.slowdown.value < price.slowdown_under_contention.value
    assert job.times_s[f"v100:{percent}%", 1] / job.times_s["v100", 1] == pytest.approx(booked.value)


@pytest.mark.parametrize(
    ("share", "got"),
    [
        ("p100:50%", "p100-pcie-16gb, which is older than Volta"),
        ("mi250x:50%", "mi250x-64gb, which is not of Nvidia"),
        ("a100-sxm4-80gb:3g.40gb:50%", "a100-sxm4-80gb:3g.40gb, which is a slice"),
        ("v100:100%", "'100'"),
        ("v100:0%", "'0'"),
        ("v100:12.5%", "'12.5'"),
    ],
)
def test_a_share_that_mps_cannot_give_is_no_place(share: str, got: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CLUSTER.replace('"v100"', f'"{share}"'))
    (tmp_path / "j.csv").write_text(f"job_id,{share}:1\na,1\n")
    result = CliRunner().invoke(
        main, ["plan", "--jobs", str(tmp_path / "j.csv"), "--cluster", str(tmp_path / "c.toml")]
    )
    assert result.exit_code == 1
    rule = "must be 1 to 99 % of a whole GPU whose threads MPS can divide, which are Nvidia's since Volta"
    assert f"Share '{share}' of the cluster {rule}; got {got}. Change it." in result.stderr


def test_a_spot_node_is_left_out_where_interruptions_make_a_run_longer_than_a_year(tmp_path: Path) -> None:
    spot = "price_per_hour = 3600.0, spot_price_per_hour = 0.1, interruptions_per_hour = 1"
    (tmp_path / "c.toml").write_text(CLUSTER.replace("price_per_hour = 3.6", spot))
    (tmp_path / "j.csv").write_text("job_id,v100:1\na,36000\n")
    words = ["plan", "--jobs", str(tmp_path / "j.csv"), "--cluster", str(tmp_path / "c.toml"), "--json"]
    assert {each["type"] for each in json.loads(CliRunner().invoke(main, words).stdout)["nodes"]} == {"t"}


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        ("k80:1", "line 2 must be able to run on a GPU of the cluster (v100); got step times of k80."),
        (
            "v100:8",
            "line 2 must have a step time for no more GPUs than a node has; got v100:8, and nodes of at most v100:2. ",
        ),
    ],
)
def test_a_job_that_fits_nowhere_is_told_and_nothing_is_written(column: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CLUSTER)
    (tmp_path / "j.csv").write_text(f"job_id,{column}\na,1\n")
    page = tmp_path / "plan.html"
    words = ["plan", "--jobs", str(tmp_path / "j.csv"), "--cluster", str(tmp_path / "c.toml"), "-o", str(page)]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 1
    assert result.stderr.startswith("gpusage: error: Job 'a' on ")
    assert sentence in result.stderr
    assert not page.exists()


def test_step_times_in_milliseconds_are_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CLUSTER)
    (tmp_path / "j.csv").write_text("job_id,steps,v100:1\na,1e6,0.03\nb,1e6,120\n")
    start_s = time.process_time()
    result = CliRunner().invoke(
        main, ["plan", "--jobs", str(tmp_path / "j.csv"), "--cluster", str(tmp_path / "c.toml")]
    )
    assert time.process_time() - start_s < 1.0
    assert result.exit_code == 1
    assert "Column 'v100:1' on " in result.stderr
    assert "line 3 must be such that the job ends within 366 days; got 1,389 days." in result.stderr


def test_a_page_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, [*EXAMPLE, "-o", str(tmp_path / "absent" / "plan.html")])
    assert result.exit_code == 1
    assert result.stderr.startswith("gpusage: error: Output ")
