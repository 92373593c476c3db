"""`gpusage predict --explain`: its figures add up to the prediction, layer by layer and byte by byte."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

import gpusage
from gpusage.cli import documents, main, tables
from gpusage.cli.predicting import explain, explain_page
from gpusage.cli.predicting.need_table import COLUMNS, LEGEND, SHARE_COLUMNS
from gpusage.decisions.advisor import advisor
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.graphs.card.text import decode, encode
from gpusage.predictors.explanation import Explanation, explanation_of
from gpusage.predictors.needs import predicted
from gpusage.predictors.times.activity import GREATEST_SHARE
from gpusage.reports.pages.definitions import DEFINITIONS
from gpusage_hooks.types import Gpu, Interval, ModelGraph, Workload
from graphs import attention_graph, chain, convolution_graph, node, perceptron_graph, recurrent_graph

MODELS = Path(__file__).parents[3] / "examples" / "models"
GRAPHS = (attention_graph(), convolution_graph(), perceptron_graph(), recurrent_graph())
RUNS = (
    Workload(batch_size=8),
    Workload(batch_size=8, precision="bf16", optimizer="adamw"),
    Workload(batch_size=1, mode="infer", precision="fp16"),
)


@pytest.fixture(scope="module")
def v100() -> Gpu:
    return advisor().catalogue.find("v100")


@pytest.fixture(scope="module")
def resnet(v100: Gpu) -> Explanation:
    return explanation_of(advisor().read(str(MODELS / "resnet18.onnx")), Workload(batch_size=32), v100)


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.mode}-{run.precision}")
def test_the_parts_add_up_to_the_prediction(graph: ModelGraph, run: Workload, v100: Gpu) -> None:
    explanation, need = explanation_of(graph, run, v100), advisor().predict(graph, run, [v100])[0]
    seconds = [part.seconds for part in explanation.classes]
    assert sum(one.total_s for one in seconds) + explanation.waiting_s == pytest.approx(need.step_time_s.value)
    assert all(sum(one.bound_s) == pytest.approx(one.total_s) for one in seconds)
    assert sum(part.memory_bytes for part in explanation.memory) == pytest.approx(need.memory_bytes.value)


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
def test_layers_hold_every_node_once_and_all_of_the_nodes_time(graph: ModelGraph, v100: Gpu) -> None:
    explanation = explanation_of(graph, Workload(batch_size=1, mode="infer"), v100)
    assert [layer.first_node for layer in explanation.layers][:1] == [0]
    ends = [layer.first_node + layer.node_count for layer in explanation.layers]
    assert ends == [*(layer.first_node for layer in explanation.layers[1:]), len(graph.nodes)]
    # inference in fp32 runs nothing that is no node's
    assert sum(layer.seconds.total_s for layer in explanation.layers) == pytest.approx(explanation.busy_s)


def test_a_convolution_takes_what_follows_it_into_its_layer(resnet: Explanation) -> None:
    # ResNet-18: a stem, 2 x 2 blocks of 2 convolutions in 4 stages, 3 projections, a classifier
    assert [layer.operator for layer in resnet.layers].count("Conv") == 1 + 16 + 3
    assert resnet.layers[-1].operator == "Gemm"
    assert resnet.layers[0].weight == (64, 3, 7, 7)
    assert sum(layer.parameter_bytes for layer in resnet.layers) == pytest.approx(4 * 11.69e6, rel=1e-2)


def test_a_fused_attention_is_one_layer(v100: Gpu) -> None:
    explanation = explanation_of(attention_graph(), Workload(batch_size=8), v100)
    assert [layer.operator for layer in explanation.layers] == ["Attention"]


def test_what_holds_a_layer_up_is_told_by_its_size(v100: Gpu) -> None:
    def bound(*sizes: int) -> str:
        graph = chain("one", [node("Gemm", [(-1, sizes[0])], (-1, sizes[1]), sizes)], (-1, sizes[0]))
        return explanation_of(graph, Workload(batch_size=4096, mode="infer"), v100).layers[0].seconds.bound

    tiny = chain("tiny", [node("Relu", [(-1, 4)], (-1, 4))], (-1, 4))
    wide = chain("wide", [node("Relu", [(-1, 4096)], (-1, 4096))], (-1, 4096))
    assert explanation_of(tiny, Workload(mode="infer"), v100).layers[0].seconds.bound == "launch"
    assert explanation_of(wide, Workload(batch_size=4096, mode="infer"), v100).layers[0].seconds.bound == "bandwidth"
    assert bound(4096, 4096) == "compute"


def test_a_card_is_explained_like_the_model_that_it_was_made_of(v100: Gpu) -> None:
    graph = convolution_graph()
    run = Workload(batch_size=8)
    assert explanation_of(decode(encode(graph)), run, v100) == explanation_of(graph, run, v100)


def test_a_model_without_nodes_has_no_layers(v100: Gpu) -> None:
    empty = ModelGraph(name="empty", source="t", nodes=(), producers=(), inputs=(), parameter_count=0)
    assert explanation_of(empty, Workload(mode="infer"), v100).layers == ()


def test_memory_names_gradients_and_the_optimizer_only_in_training(v100: Gpu) -> None:
    graph = perceptron_graph()
    trained = {part.name for part in explanation_of(graph, Workload(batch_size=8, optimizer="adam"), v100).memory}
    served = {part.name for part in explanation_of(graph, Workload(batch_size=8, mode="infer"), v100).memory}
    assert {"parameters", "gradients", "optimizer", "CUDA context"} <= trained
    assert "parameters" in served
    assert not served & {"gradients", "optimizer", "loss"}


def test_layers_that_are_alike_are_shown_as_one(resnet: Explanation) -> None:
    shown = explain.merge_layers(resnet.layers)
    assert sum(layer.times for layer in shown) == len(resnet.layers)
    times = [layer.seconds.total_s for layer in shown]
    assert times == sorted(times, reverse=True)
    assert sum(times) == pytest.approx(sum(layer.seconds.total_s for layer in resnet.layers))
    # the last stage's four convolutions but the first, which doubles the channels
    assert [layer.times for layer in shown if layer.first.weight == (512, 512, 3, 3)] == [3]


class Page(HTMLParser):
    """Reads a page: what is open, every cell, every bar, every link."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.widths: list[float] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what is opened, drawn or linked."""
        values = dict(attrs)
        if tag != "meta":
            self.open.append(tag)
        if tag == "td":
            self.cells.append("")
        if tag == "div" and (values.get("style") or "").startswith("width:"):
            self.widths.append(float((values["style"] or "").removeprefix("width:").partition("%")[0]))
        self.links += [values[name] or "" for name in ("src", "href") if name in values]

    def handle_endtag(self, tag: str) -> None:
        """Expect what was opened last."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Collect the text of cells."""
        if self.open[-1:] == ["td"]:
            self.cells[-1] += data


def of(explanation: Explanation, title: str = "resnet18", notes: Sequence[str] = ()) -> explain_page.Model:
    """What the page says of one model, with two cells of needs."""
    rows = [["v100", "1 ms (1-2)"]]
    return explain_page.Model(
        title=title, words="words", columns=["GPU", "step"], rows=rows, notes=notes, explanations=[explanation]
    )


def test_the_page_draws_and_lists_the_predictors_figures(resnet: Explanation) -> None:
    page = Page(explain_page.page([of(resnet)], "legend"))
    assert page.open == []
    assert page.links == ["#model-1", "#model-1-v100-sxm2-16gb", "#definitions"]  # nothing of the network
    cells = ["v100", "1 ms (1-2)", *(cell for row in explain.class_rows(resnet) for cell in row)]
    assert page.cells[: len(cells)] == cells
    # three parts a class, the longest class as wide as the page, the others in proportion
    longest = resnet.classes[0].seconds.total_s
    for number, part in enumerate(resnet.classes):
        drawn = sum(page.widths[3 * number : 3 * number + 3])
        assert drawn == pytest.approx(100 * part.seconds.total_s / longest, abs=0.02)


def test_the_page_shows_a_strange_name_as_text(resnet: Explanation) -> None:
    text = explain_page.page([of(resnet, title="<script>alert(1)</script>", notes=["<script>alert(2)</script>"])], "&")
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_the_command_explains_in_json_and_writes_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    arguments = ["predict", str(MODELS / "lstm_lm.onnx"), "--gpu", "t4", "--gpu", "a100", "--explain", "--json"]
    result = CliRunner().invoke(main, [*arguments, "-o", str(page)])
    assert result.exit_code == 0, result.stderr
    needs = json.loads(result.stdout)["predictions"][0]["needs"]
    assert [need["explanation"]["step_time_s"] for need in needs] == [need["step_time_s"]["value"] for need in needs]
    text = page.read_text()
    assert re.findall(r"<h3 id='[^']*'>([^:]+):", text) == [need["gpu"] for need in needs]


def test_the_page_shows_every_need_with_its_interval_and_what_is_doubtful(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    arguments = ["predict", f"{MODELS / 'lstm_lm.onnx'},batch=4096,steps=100", "--gpu", "t4", "--json", "-o", str(page)]
    (need,) = json.loads(CliRunner().invoke(main, arguments).stdout)["predictions"][0]["needs"]
    text = page.read_text()
    step, memory = Interval(**need["step_time_s"]), Interval(**need["required_memory_bytes"])
    cells = Page(text).cells[: len(COLUMNS) + 1]
    assert cells[:4] == ["t4 *", tables.time_text(step), tables.memory_text(memory), "yes" if need["fits"] else "no"]
    assert cells[-1] == tables.time_text(documents.scaled(step, 100))
    assert need["notes"]
    assert all(f"<li>{escape(sentence)}</li>" in text for sentence in need["notes"])
    assert escape(LEGEND) in text


def test_without_a_gpu_the_newest_one_is_explained() -> None:
    arguments = ["predict", str(MODELS / "lstm_lm.onnx"), "--explain", "--json"]
    needs = json.loads(CliRunner().invoke(main, arguments).stdout)["predictions"][0]["needs"]
    assert [number for number, need in enumerate(needs) if "explanation" in need] == [len(needs) - 1]


def test_a_page_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "page.html"
    result = CliRunner().invoke(main, ["predict", str(MODELS / "lstm_lm.onnx"), "--gpu", "t4", "-o", str(missing)])
    assert result.exit_code == 1
    assert str(missing) in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_share_says_which_classes_it_slows_down_and_explains_each_gpu_once() -> None:
    shares = ["--share", "100", "--share", "50", "--share", "25"]
    arguments = ["predict", str(MODELS / "resnet18.onnx"), "--batch", "32", "--gpu", "v100", *shares, "--explain"]
    (predicted,) = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)["predictions"]
    slowdowns = [part["slowdowns"] for part in predicted["needs"][1]["explanation"]["classes"]]
    assert all(1.0 == each["100"] <= each["50"] <= each["25"] for each in slowdowns)
    assert max(each["50"] for each in slowdowns) > 1.5
    text = CliRunner().invoke(main, arguments).stdout
    assert "on 50 %" in text
    assert text.count("a step takes") == 1


def test_the_page_says_what_made_it_and_what_its_words_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767225600")
    monkeypatch.setattr("sys.argv", ["/usr/bin/gpusage", "predict", "a model.onnx"])
    page = tmp_path / "page.html"
    arguments = ["predict", str(MODELS / "resnet18.onnx"), "--gpu", "t4", "--gpu", "a100", "-o", str(page)]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    text = page.read_text()
    assert (
        f"gpusage {version('gpusage')}, 2026-01-01 00:00 UTC: <code>gpusage predict &#x27;a model.onnx&#x27;</code>"
        in text
    )
    assert all(f"<dt>{escape(term)}</dt>" in text for term in DEFINITIONS)
    assert set(re.findall(r"href='#([^']+)'", text)) == set(re.findall(r"<h[23] id='([^']+)'", text))
    assert text.count("<span>t4</span>") == 1  # GPUs side by side


def test_each_word_of_the_tables_is_defined_on_the_page_and_in_the_docs() -> None:
    docs = (MODELS.parents[1] / "docs" / "predictions.md").read_text()
    titles = {column.title for column in (*COLUMNS, *SHARE_COLUMNS)} - {"GPU", "fits", "share"}
    assert titles <= set(DEFINITIONS)
    assert all(f"| {term} | {text} |" in docs for term, text in DEFINITIONS.items())


@pytest.mark.parametrize("model", sorted(path.stem for path in MODELS.glob("*.onnx")))
def test_time_and_activities_are_one_account_of_the_step_at_any_batch(model: str, v100: Gpu) -> None:
    """Parts are no more than the whole; a larger batch keeps the GPU no less busy, hardly fewer samples a second."""
    graph = advisor().read(str(MODELS / f"{model}.onnx"))
    busy, rates = [], []
    for batch_size in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
        run = Workload(batch_size=batch_size)
        explanation, (need,) = explanation_of(graph, run, v100), advisor().predict(graph, run, [v100])
        assert (
            need.step_time_s.value
            == explanation.step_time_s
            == pytest.approx(explanation.busy_s + explanation.waiting_s)
        )
        together_s = explanation.step_time_s + explanation.gaps_s
        parts_s = (explanation.busy_s, explanation.sm_s, explanation.dram_s)
        shares = [min(part_s / together_s, GREATEST_SHARE) for part_s in parts_s]
        predicted = (need.gpu_utilization, need.sm_activity, need.dram_activity)
        assert [each.value for each in predicted] == pytest.approx(shares)
        assert max(parts_s) == explanation.busy_s <= explanation.step_time_s
        busy.append(need.gpu_utilization.value)
        rates.append(need.throughput_samples_per_s.value)
    assert all(later >= earlier - 1e-3 for earlier, later in pairwise(busy))
    assert all(later >= 0.97 * earlier for earlier, later in pairwise(rates))


def test_gaps_that_change_the_shares_are_said_with_the_shares_that_they_leave(resnet: Explanation) -> None:
    """100 ms, of them kernels 98, SMs 60 and memory 30 ms; 25 ms of gaps leave 98 / 125, 60 / 125 and 30 / 125.

    A gap that changes no shown figure is left out.
    """
    plain = replace(resnet, step_time_s=0.1, busy_s=0.098, sm_s=0.06, dram_s=0.03, gaps_s=0.0)
    text = "Kernels run for 98 % of it; SMs have work for 60 %; the memory is at its peak for 30 %."
    assert explain.account(plain) == explain.account(replace(plain, gaps_s=0.0001)) == text
    assert explain.account(replace(plain, gaps_s=0.025)) == (
        f"{text} A usual host leaves gaps of 25.0 ms between the kernels beside that: of both together GPU busy, "
        "SM activity and DRAM activity are 78 %, 48 %, 24 %."
    )


def test_what_a_gpu_waits_for_others_is_said_beside_the_step_of_one() -> None:
    graph, t4 = gpusage.read_model("timm:resnet18"), builtin_catalogue().find("t4")
    alone, several = (explanation_of(graph, Workload(batch_size=4, gpus=count), t4) for count in (1, 4))
    assert "other" not in explain.account(alone)
    assert several.step_time_s == alone.step_time_s
    need = predicted(graph, Workload(batch_size=4, gpus=4), [t4])[0]
    assert several.step_time_s + several.exchange_s == pytest.approx(need.step_time_s.value)
    assert f"waits {tables.seconds_text(several.exchange_s)} for the others" in explain.account(several)
