from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis, analyze
from gpusage.predictors.artifacts import pretrained
from gpusage.predictors.times.activity import GREATEST_SHARE, NAMES, features_of, gaps_of, read_trees, shares_around
from gpusage.predictors.work.lowering import forward_flop
from gpusage_hooks.types import Mode, Precision, Workload
from gpusage_lab.learning import boosting
from gpusage_lab.learning.activity import GAP_S, gap_s
from gpusage_lab.learning.activity_real import error_of_constant, yeung_features
from gpusage_lab.learning.activity_rows import FILES, NetworkLayer, Rows, load, network_graph
from gpusage_lab.measurements.tables import DataFolder
from gpusage_planning.named_jobs import GAVEL, LUCID, workload
from gpusage_planning.zoo import load_zoo
from graphs import convolution_graph, perceptron_graph

MODES: tuple[Mode, Mode] = ("train", "infer")
GPUS = [gpu for gpu in builtin_catalogue() if not gpu.parent_gpu]
A100, T4 = (builtin_catalogue().find(name) for name in ("a100", "t4"))


def test_the_flat_trees_say_what_scikit_learn_says() -> None:
    ensemble = pytest.importorskip("sklearn.ensemble")
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(400, 3))
    target = np.where(rows[:, 0] > 0, rows[:, 1], -rows[:, 2])
    parameters = boosting.fit_trees(rows, target, trees=20)
    model = ensemble.HistGradientBoostingRegressor(
        max_iter=20,
        learning_rate=0.1,
        max_leaf_nodes=16,
        max_depth=boosting.MAXIMUM_DEPTH,
        min_samples_leaf=20,
        l2_regularization=2.0,
        early_stopping=False,
        random_state=0,
    ).fit(rows, target)
    assert np.allclose(boosting.predict(parameters, rows), model.predict(rows))


def test_trees_stay_within_what_they_learned_however_far_a_row_lies() -> None:
    pytest.importorskip("sklearn")
    rows = np.linspace(0.0, 1.0, 200)[:, np.newaxis]
    trees = read_trees(boosting.fit_trees(rows, rows[:, 0], trees=30))
    assert trees.predict(np.array([[-1e9], [1e9]])) == pytest.approx([0.0, 1.0], abs=0.2)


def test_a_constant_has_not_seen_the_model_that_it_is_tested_on() -> None:
    """Of two models with 10 and 90 %, each gets the other's percent."""
    truth = np.array([10.0, 90.0])
    assert error_of_constant(truth, ["first", "second"]) == pytest.approx(np.log(91 / 11))
    assert error_of_constant(truth, ["first", "first"]) is None


def test_a_perceptron_is_read_from_its_list_of_layers() -> None:
    layers = [
        NetworkLayer("linear", 20, 20 * 10 + 20),
        NetworkLayer("ReLU", 20, 0),
        NetworkLayer("linear", 5, 5 * 20 + 5),
    ]
    graph = network_graph(layers, (-1, 10), "mlp")
    assert [node.op_type for node in graph.nodes] == ["Gemm", "Relu", "Gemm"]
    assert graph.parameter_count == 220 + 105
    assert forward_flop(graph) == pytest.approx(2 * (10 * 20 + 20 * 5), rel=0.1)


def test_a_convolution_with_a_stride_of_two_is_told_by_its_outputs() -> None:
    layers = [NetworkLayer("conv2d", 8 * 16 * 16, 8 * 3 * 9 + 8), NetworkLayer("conv2d", 4 * 8 * 8, 4 * 8 + 4)]
    first, second = network_graph(layers, (-1, 3, 16, 16), "cnn").nodes
    assert first.outputs == ((-1, 8, 16, 16),)
    assert first.parameters[0] == (8, 3, 3, 3)
    assert second.outputs == ((-1, 4, 8, 8),)
    assert second.parameters[0] == (4, 8, 1, 1)


def test_rows_that_say_nothing_are_left_out_and_counted(tmp_path: object) -> None:
    pytest.importorskip("pandas")
    head = "config,layers_type_activations_params,batch_size,avg_gpu_util_pct,avg_sm_active_frac,max_gpu_memory_MiB\n"
    layers = "\"[('linear', 4, 12)]\""
    lines = [
        f"input:2_arch:uniform_x,{layers},8,40,0.2,2000\n",
        f"input:2_arch:uniform_x,{layers},8,-1,-1,2000\n",
        f"input:2_arch:uniform_x,{layers},8,4,0.0,2000\n",
        "input:2_arch:uniform_x,[],8,40,0.2,2000\n",
    ]
    folder = DataFolder(str(tmp_path))
    (folder.folder / FILES[0]).write_text(head + "".join(lines))
    loaded = load(folder)
    assert [network.architecture for network in loaded.networks] == ["uniform"]
    assert loaded.left_out == {"ran out of memory": 0, "not watched": 1, "no layers": 1, "monitor read nothing": 1}


def test_streaming_multiprocessors_are_never_busier_than_the_gpu() -> None:
    for graph in (convolution_graph(), perceptron_graph()):
        for batch_size in (1, 64, 1024):
            for actual in analyze(graph, Workload(batch_size=batch_size)).activity([A100, T4]):
                assert actual.sm_activity.value <= actual.gpu_utilization.value


def test_intervals_are_of_the_odds_and_may_reach_farther_down_than_up() -> None:
    """Odds of 1, a ninth of them, and thrice as many; a share of 1 counts as `GREATEST_SHARE`."""
    ((half, full),) = shares_around(np.array([[0.5, 1.0]]), np.array([9.0, 1.0]), np.array([3.0, 1.0]))
    assert (half.low, half.value, half.high) == pytest.approx((0.1, 0.5, 0.75))
    assert full.value == full.low == GREATEST_SHARE


def test_a_host_that_serves_leaves_no_gaps_and_one_that_trains_leaves_one_for_each_kernel() -> None:
    parameters = replace(pretrained().activity, gap_s=20e-6)
    assert gaps_of(parameters, "train", 100.0) == pytest.approx(2e-3)
    assert gaps_of(parameters, "infer", 100.0) == 0.0


def test_gaps_are_those_of_a_site_s_own_runs_the_more_it_has_of_them() -> None:
    """Steps of 10 ms with 100 kernels, busy half of the time: 10 ms idle beside the step, 100 us for each kernel."""
    count = 60
    rows = Rows(
        features=np.zeros((count, len(NAMES))),
        yeung=np.zeros((count, 1)),
        roofline=np.full((count, 2), 100.0),
        steps=np.tile([0.01, 0.01, 100.0], (count, 1)),
        measured=np.full((count, 2), 50.0),
        kinds=("real",) * count,
        architectures=("real resnet",) * count,
        left_out={},
    )
    assert gap_s(rows, np.arange(count)) == pytest.approx(GAP_S * 4.0 ** (60 / 80))
    assert gap_s(rows, np.arange(20)) == pytest.approx(2 * GAP_S)
    assert gap_s(rows._replace(kinds=("cnn",) * count), np.arange(count)) == GAP_S


def test_features_are_finite_and_named() -> None:
    analysis = WorkloadAnalysis(perceptron_graph(), Workload(batch_size=32))
    rows = features_of(analysis.work, analysis.timing([A100, T4]))
    assert rows.shape == (2, len(NAMES))
    assert np.isfinite(rows).all()


def test_the_features_of_yeung_count_layers_and_grow_with_the_batch() -> None:
    graph = convolution_graph(depth=3)
    few, many = yeung_features(graph, 1), yeung_features(graph, 8)
    assert many[0] == pytest.approx(8 * few[0])
    assert few[5] == sum(node.op_type == "Conv" for node in graph.nodes)


@pytest.mark.parametrize("job", [*GAVEL.values(), *LUCID.values()], ids=lambda job: job.key)
def test_every_named_job_has_a_graph_that_follows_the_batch(job: object) -> None:
    named = next(known for known in (*GAVEL.values(), *LUCID.values()) if known == job)
    graph = load_zoo().graph(named.key)
    assert graph.fixed_batch_size is None
    assert not graph.unknown_op_types
    assert workload(named, float("nan")).batch_size == 1


def test_a_gpu_that_is_nearly_always_busy_may_always_be() -> None:
    resnet = analyze(load_zoo().graph("gavel:resnet50@224"), Workload(batch_size=64)).activity([A100])[0]
    assert resnet.gpu_utilization.value > 0.9
    assert resnet.gpu_utilization.high > 0.99
    assert resnet.sm_activity.high < 0.99
    idle = analyze(perceptron_graph(), Workload(batch_size=4)).activity([A100])[0]
    assert idle.gpu_utilization.high < 0.8


def test_jobs_of_lucid_are_what_its_code_trains() -> None:
    assert load_zoo().graph(LUCID["MobileNetV3"].key).parameter_count == 2_542_856
    assert load_zoo().graph(LUCID["VGG"].key).parameter_count == 9_231_114


def test_a_small_network_in_training_is_no_busier_than_its_host_lets_it_while_the_high_end_stays() -> None:
    """MobileNetV3 of 224 pixels at a batch of 1 has 331 kernels of some 10 us: a usual host takes longer for each."""
    graph = load_zoo().graph(LUCID["MobileNetV3"].key)
    trained, served = (analyze(graph, Workload(batch_size=1, mode=mode)).activity([A100])[0] for mode in MODES)
    assert trained.gpu_utilization.value < 0.25 < served.gpu_utilization.value
    assert trained.gpu_utilization.high > 2 * trained.gpu_utilization.value


KEYS = sorted(load_zoo())
RUNS = [("train", "fp32"), ("train", "bf16"), ("infer", "fp16")]
BATCH_SIZES = (1, 2, 3, 7, 16, 17, 64, 100, 256, 1024)


@given(key=st.sampled_from(KEYS), run=st.sampled_from(RUNS))
@settings(max_examples=15, deadline=None)
def test_a_larger_batch_never_lowers_gpu_busy_of_a_real_model_on_any_gpu(key: str, run: tuple[Mode, Precision]) -> None:
    """The parts are never more than the whole. Learned efficiencies may move a tiny model's by 0.002."""
    graph, (mode, precision) = load_zoo().graph(key), run
    before = np.zeros(len(GPUS))
    for batch_size in BATCH_SIZES:
        activities = WorkloadAnalysis(graph, Workload(batch_size=batch_size, mode=mode, precision=precision)).activity(
            GPUS
        )
        busy = np.array([each.gpu_utilization.value for each in activities])
        parts = np.array([max(each.sm_activity.value, each.dram_activity.value) for each in activities])
        assert (busy >= before - 0.002).all()
        assert (busy >= parts).all()
        before = busy
