"""The Python API answers as documented, for one GPU and several, and reads modules in every form people hand over."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest

import gpusage
from graphs import convolution_graph

MODELS = Path(__file__).parents[3] / "examples" / "models"
GRAPH = convolution_graph()


def test_the_package_lists_its_names_and_knows_its_version() -> None:
    assert {"read_model", "predict", "explain", "predict_colocation", "__version__"} <= set(dir(gpusage))
    assert all(getattr(gpusage, name) is not None for name in dir(gpusage))
    assert gpusage.__version__ == version("gpusage")


def test_several_gpus_are_predicted_in_the_order_asked_for_as_each_alone() -> None:
    needs = gpusage.predict(GRAPH, gpu=["h100", "v100"], batch_size=64)
    assert [need.gpu for need in needs] == ["h100-sxm5-80gb", "v100-sxm2-16gb"]
    alone = gpusage.predict(GRAPH, gpu="v100", batch_size=64)
    assert repr(needs[1]) == repr(alone)
    # sums of a matrix product of one column are rounded otherwise than those of two
    assert needs[1].step_time_s.value == pytest.approx(alone.step_time_s.value, rel=1e-12)


def test_a_path_is_read_where_a_graph_is_wanted() -> None:
    path = MODELS / "resnet18.onnx"
    assert gpusage.predict(path, gpu="t4") == gpusage.predict(gpusage.read_model(str(path)), gpu="t4")


def test_needs_of_the_api_can_be_colocated() -> None:
    pair = gpusage.predict_colocation([gpusage.predict(GRAPH, gpu="a100")] * 2)
    assert len(pair.normalised_throughput) == 2


def test_an_explanation_adds_up_and_has_the_shares_asked_for() -> None:
    explained = gpusage.explain(GRAPH, gpu="a100", batch_size=64, shares=[50])
    need = gpusage.predict(GRAPH, gpu="a100", batch_size=64)
    assert explained.step_time_s == pytest.approx(need.step_time_s.value)
    assert explained.share_percents == (50,)
    assert all(part.slowdowns[0] >= 1 for part in explained.classes)


def test_results_say_in_a_line_what_they_are_and_draw_themselves_in_a_notebook() -> None:
    needs = gpusage.predict(GRAPH, gpu=["a100", "t4"], batch_size=64)
    explained = gpusage.explain(GRAPH, gpu="a100", batch_size=64)
    assert repr(needs[0]).startswith("<Need on a100-sxm4-40gb: ")
    assert len(repr(needs).splitlines()) == 2
    assert repr(explained).startswith("<Explained on a100-sxm4-40gb: ")
    assert len(repr(gpusage.read_model(MODELS / "resnet18.onnx"))) < 200
    page = needs._repr_html_() + needs[0]._repr_html_()
    assert page.count("<table>") == 2
    assert "t4" in page
    assert "<svg" in explained._repr_html_()


def test_a_bare_number_is_a_shape_of_one_size(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = {"model_type": "bert", "architectures": ["BertModel"], "vocab_size": 100, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    bare = gpusage.read_model(tmp_path, shape={"input_ids": 32})
    assert bare.nodes == gpusage.read_model(tmp_path, shape={"input_ids": (32,)}).nodes
    assert bare.inputs[0] == ("input_ids", (-1, 32))


@pytest.mark.parametrize("source", [5, None, [1.0]])
def test_what_is_no_model_is_refused_in_a_sentence_of_python(source: object) -> None:
    """Also where torch, which would read a module, is not installed."""
    rule = "must be a path, a name, a torch.nn.Module or a torch.export.ExportedProgram"
    with pytest.raises(gpusage.GpuUsageError, match=rule):
        gpusage.read_model(source)
