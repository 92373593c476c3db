from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from gpusage.devices.catalogue import builtin_catalogue
from gpusage_lab.learning.pairs import Pairs
from gpusage_lab.learning.targets import ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.seeds import ardagna, kace, takayama, yeung
from gpusage_lab.seeds.ardagna_runs import MeasuredRun
from gpusage_lab.seeds.command import command_of


def runs_of_a_line() -> list[MeasuredRun]:
    """Return steps of 10 ms + 2 ms a sample on a GPU of 10 TFLOP/s, and on two that are 2 and 4 times as fast."""
    return [
        MeasuredRun(
            "made up", "net", f"gpu {rate}", 1, batch, 10.0 * rate, (10 + 2 * batch) / 1e3 / rate, batch / 1e3 / rate
        )
        for batch in (8, 16, 32, 64, 128)
        for rate in (1, 2, 4)
    ]


def made_up_pairs() -> Pairs:
    """Return jobs of three models, two batches each; the sum falls with both jobs' SM activity."""
    jobs = tuple((name, batch, False) for name in "abc" for batch in (1, 2))
    activity = np.array([0.1, 0.2, 0.4, 0.5, 0.8, 0.9])
    sums = 2.0 - 0.5 * (activity[:, np.newaxis] + activity)
    np.fill_diagonal(sums, np.nan)
    features = np.tile(activity[:, np.newaxis], (1, 6))
    gpu = builtin_catalogue().find("v100")
    return Pairs(jobs=jobs, needs=(), features=features, sums=sums, parts=sums / 2, failed=(), gpu=gpu)


def test_a_random_split_has_a_fifth_of_the_rows_on_the_testing_side() -> None:
    fold = yeung.random_split(81, seed=3)
    assert (len(fold.train), len(fold.test)) == (65, 16)
    assert sorted([*fold.train, *fold.test]) == list(range(81))


def test_no_type_of_network_is_drawn_more_often_than_it_may() -> None:
    kinds = ["mlp"] * 50 + ["cnn"] * 3
    drawn = [kinds[row] for row in yeung.some_of_each(kinds, 5)]
    assert (drawn.count("mlp"), drawn.count("cnn")) == (5, 3)


def test_utilization_is_learned_from_the_rows_that_teach() -> None:
    pytest.importorskip("sklearn")
    features = np.random.default_rng(0).random((60, 1))
    made = yeung.Runs(features, features, 20 + 60 * features[:, 0], ("net",) * 60)
    fold = yeung.random_split(60, seed=0)
    names = ("constant", "Yeung's features, gradient boosting", "ours")
    constant, boosting, ours = (yeung.error(made, yeung.methods()[name], [fold]) for name in names)
    assert boosting < constant / 2
    assert ours < constant


def test_terms_are_the_features_their_inverses_and_products_of_different_ones() -> None:
    (row,) = ardagna.augmented(np.array([[2.0, 5.0]]))
    assert sorted(row) == sorted([2.0, 5.0, 1 / 2, 1 / 5, 10.0, 2 / 5, 5 / 2, 1 / 10])


def test_stepwise_selection_finds_the_one_term_that_counts() -> None:
    pytest.importorskip("scipy")
    generator = np.random.default_rng(0)
    terms = generator.random((40, 5))
    line = ardagna.fit_line(terms, 3 + 7 * terms[:, 2] + 0.01 * generator.normal(size=40))
    assert line.terms[0] == 2
    assert ardagna.predict_line(line, terms[:1])[0] == pytest.approx(3 + 7 * terms[0, 2], abs=0.05)


def test_a_regression_with_two_rows_says_their_mean() -> None:
    line = ardagna.fit_line(np.array([[1.0], [2.0]]), np.array([4.0, 6.0]))
    assert ardagna.predict_line(line, np.array([[9.0]]))[0] == pytest.approx(5.0)


def test_batches_up_to_half_the_largest_teach_and_a_line_is_continued() -> None:
    pytest.importorskip("scipy")
    analysis = ardagna.EXTRAPOLATIONS[0]
    ((train, test), *_) = ardagna.splits(analysis, runs_of_a_line())
    assert ([run.batch_size for run in train], [run.batch_size for run in test]) == ([8, 16, 32, 64], [128])
    (actual,) = ardagna.extrapolate(analysis, train, test)
    assert actual.regression == pytest.approx(0.266)
    assert actual.ours_with_line == pytest.approx(0.266)
    assert actual.rule == pytest.approx(2 * (0.010 + 0.128))


def test_the_strongest_gpu_tests_the_extrapolation_of_compute_power() -> None:
    pytest.importorskip("scipy")
    made = ardagna.table(ardagna.EXTRAPOLATIONS[2], runs_of_a_line())
    assert made.rows[0][:2] == ("made up: net", "5")
    assert made.rows[0][3] == pytest.approx(0.0, abs=1e-9)  # the plain rule: inverse proportion


def test_a_question_that_no_run_can_answer_has_no_table(tmp_path: Path) -> None:
    assert ardagna.tables(DataFolder(tmp_path)) == []


def test_the_best_partner_by_linear_regression_is_the_oracles_where_sums_are_linear() -> None:
    pytest.importorskip("sklearn")
    pairs = made_up_pairs()
    policy = kace.learners()["KACE: linear regression"]
    for held_out in ("workload", "model"):
        assert kace.policy_scores(pairs, policy, held_out) == pytest.approx(100.0)


def test_the_busiest_partner_is_the_worst_where_activity_only_harms() -> None:
    pairs = made_up_pairs()
    (busiest,) = (policy for name, policy in kace.rules().items() if name.startswith("SM%"))
    reached = kace.policy_scores(pairs, busiest, "model")
    assert reached[0] == pytest.approx(100 * (2 - 0.5 * 1.0) / (2 - 0.5 * 0.3))
    assert (kace.by_chance(pairs) > reached).all()
    assert kace.best_rule(dict.fromkeys(kace.rules(), reached)) == pytest.approx(reached)


def test_a_gpu_that_hardly_works_gains_nothing_from_a_faster_one() -> None:
    ratio = np.array([0.5, 0.5, 0.5])
    actual = takayama.slowed_by_host(ratio, np.array([0.0, 0.5, 1.0]))
    assert actual == pytest.approx([1.0, 1 / 1.5, 0.5])


def test_two_gpus_that_take_from_either_end_of_the_list_meet() -> None:
    old, new = np.array([4.0, 4.0]), np.array([2.0, 4.0])
    # The first job is the new GPU's: after 2 hours the second one has 2 of 4 hours left, which both share.
    assert takayama.makespan(old, new, [0, 1]) == pytest.approx(3.0)
    # The second job first: after 4 hours the old GPU has just done the first.
    assert takayama.makespan(old, new, [1, 0]) == pytest.approx(4.0)


def test_the_nine_jobs_are_told_from_graphs_of_the_zoo_without_any_data() -> None:
    pytest.importorskip("scipy")
    result = CliRunner().invoke(command_of("takayama", takayama.tables, ()), ["--json"])
    assert result.exit_code == 0, result.output
    ratios, correlations = json.loads(result.output)["takayama"]
    assert [row[0][:2] for row in ratios["rows"][:9]] == ["IC", "SS", "OD", "RM", "SA", "RT", "TL", "SR", "RF"]
    assert ratios["rows"][0][1] == pytest.approx(0.664, abs=1e-3)
    assert correlations["rows"][0][2] == pytest.approx(0.9)  # the paper's own: utilization goes with the gain


def test_a_bench_without_its_data_says_so_in_one_sentence_and_ends_well(tmp_path: Path) -> None:
    def experiment(_: DataFolder) -> list[ScoreTable]:
        raise AssertionError

    command = command_of("made up", experiment, ("runs.csv",))
    result = CliRunner().invoke(command, ["--data", str(tmp_path)])
    assert result.exit_code == 0
    assert result.output.count("\n") == 1
    assert "runs.csv" in result.output


def test_a_bench_prints_its_tables_or_json(tmp_path: Path) -> None:
    def experiment(_: DataFolder) -> list[ScoreTable]:
        return [ScoreTable(title="Seed: figures", columns=("method", "RMSLE"), rows=(("ours", 0.125),))]

    command = command_of("made up", experiment, ())
    assert "0.125" in CliRunner().invoke(command, ["--data", str(tmp_path)]).output
    document = json.loads(CliRunner().invoke(command, ["--data", str(tmp_path), "--json"]).output)
    assert document["schema"] == "gpusage.experiment/1"
    assert document["made up"][0]["rows"] == [["ours", 0.125]]
