from __future__ import annotations

import numpy as np
import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.activity.activities import NEARLY_BUSY, Regions, deviations_of
from gpusage.predictors.activity.features import NAMES, features_of
from gpusage.predictors.learned.trees import read_trees
from gpusage.predictors.question import Question, question_of
from gpusage.predictors.work.lowering import forward_flop
from gpusage_hooks.types import Mode, Workload
from gpusage_lab.learning import boosting
from gpusage_lab.learning.activity_tests import yeung_features
from gpusage_lab.learning.named_jobs import GAVEL, LUCID, workload
from gpusage_lab.learning.random_networks import FILES, NetworkLayer, load, network_graph
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.zoo.cards import load_zoo
from graphs import convolution_graph, perceptron_graph

MODES: tuple[Mode, Mode] = ("train", "infer")
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
    assert trees.predict(np.array([[-1e9], [1e9]]))[:, 0] == pytest.approx([0.0, 1.0], abs=0.2)


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
            for found in question_of(graph, Workload(batch_size=batch_size)).activity([A100, T4]):
                assert found.sm_activity.value <= found.gpu_utilization.value


def test_intervals_widen_with_the_distance_from_what_was_learned() -> None:
    region = Regions(np.zeros((1, 2)), np.eye(2)[np.newaxis], np.array([4.0]), np.array([[0.1, 0.2]]))
    rows = np.array([[1.0, 0.0], [2.5, 0.0], [9.0, 9.0]])
    near, between, far = deviations_of(region, np.array([1.0, 1.0]), rows)
    assert near.tolist() == [0.1, 0.2]
    assert far.tolist() == [1.0, 1.0]
    assert (near < between).all()
    assert (between < far).all()


def test_features_are_finite_and_named() -> None:
    question = Question(perceptron_graph(), Workload(batch_size=32))
    rows = features_of(question.work, question.timing([A100, T4]))
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
    resnet = question_of(load_zoo().graph("gavel:resnet50@224"), Workload(batch_size=64)).activity([A100])[0]
    assert resnet.gpu_utilization.value > NEARLY_BUSY
    assert resnet.gpu_utilization.high > 0.99
    assert resnet.sm_activity.high < 0.99
    idle = question_of(perceptron_graph(), Workload(batch_size=4)).activity([A100])[0]
    assert idle.gpu_utilization.high < 0.8


def test_jobs_of_lucid_are_what_its_code_trains() -> None:
    assert load_zoo().graph(LUCID["MobileNetV3"].key).parameter_count == 2_542_856
    assert load_zoo().graph(LUCID["VGG"].key).parameter_count == 9_231_114


def test_a_small_network_in_training_is_no_busier_than_its_host_lets_it_while_the_high_end_stays() -> None:
    """MobileNetV3 of 224 pixels at a batch of 1 has 331 kernels of some 10 us, and the trees never saw its like."""
    graph = load_zoo().graph(LUCID["MobileNetV3"].key)
    trained, served = (question_of(graph, Workload(batch_size=1, mode=mode)).activity([A100])[0] for mode in MODES)
    assert trained.gpu_utilization.value < 0.25 < served.gpu_utilization.value
    assert trained.gpu_utilization.high > 2 * trained.gpu_utilization.value
