"""A compiled model: operators that follow one another are one kernel, where that was measured; else it is only said."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

import gpusage
from gpusage.cli.options import read_request
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis, analyze
from gpusage.predictors.explanation import explanation_of
from gpusage.predictors.extrapolation import COMPILED_WARNING, FUSED_TRAINING_WARNING, UNFUSED_WARNING
from gpusage.predictors.times.efficiency import GROUPS, INDUCTOR, class_factors, with_compiler
from gpusage.predictors.work.lowering import fused, is_fused, is_fusion_measured
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import Decoding, Mode, ModelGraph, Node, Precision, Workload
from graphs import convolution_graph

A100 = builtin_catalogue().find("a100")
MAP = (-1, 64, 32, 32)
MAP_BYTES = 2 * 8 * 64 * 32 * 32
COMPILED = Workload(batch_size=8, mode="infer", precision="fp16", compile=True)


def branched() -> ModelGraph:
    """Return a convolution, a normalization, a rectifier and a sum with what came before them, and a convolution."""
    convolution = Node(op_type="Conv", inputs=(MAP,), outputs=(MAP,), parameters=((64, 64, 3, 3),))
    nodes = (
        convolution,
        Node(op_type="BatchNormalization", inputs=(MAP,), outputs=(MAP,), parameters=((64,),) * 4),
        Node(op_type="Relu", inputs=(MAP,), outputs=(MAP,)),
        Node(op_type="Add", inputs=(MAP, MAP), outputs=(MAP,)),
        convolution,
    )
    producers = ((-1,), (0,), (1,), (2, 0), (3,))
    return ModelGraph(
        name="branched",
        source="test",
        nodes=nodes,
        producers=producers,
        inputs=(("image", MAP),),
        parameter_count=2 * 64 * 64 * 9 + 4 * 64,
    )


def test_what_follows_one_another_is_one_kernel_by_hand() -> None:
    analysis = WorkloadAnalysis(branched(), COMPILED)
    whole, kinds = fused(analysis.lowering), fused(analysis.lowering).structure.kind_of_node
    # the normalization reads the convolution's map and hands its own on; the sum reads that map again, and writes
    assert whole.read_bytes[kinds].tolist() == [MAP_BYTES, MAP_BYTES, 0, MAP_BYTES, MAP_BYTES]
    assert whole.written_bytes[kinds].tolist() == [MAP_BYTES, 0, 0, MAP_BYTES, MAP_BYTES]
    assert whole.traffic_factor[kinds].tolist() == [3, 1, 1, 1, 3]
    assert whole.sequential_steps[kinds].tolist() == [1, 0, 0, 1, 1]
    assert whole.structure.counts.sum() == 5
    assert whole.flop @ whole.structure.counts == analysis.lowering.flop @ analysis.lowering.structure.counts


def test_a_result_that_a_convolution_reads_too_is_written() -> None:
    graph = branched()
    both = replace(graph, producers=((-1,), (0,), (1,), (2, 0), (2,)))
    whole = fused(WorkloadAnalysis(both, COMPILED).lowering)
    # the rectifier's map goes to the sum, which is fused with it, and to the second convolution
    assert whole.written_bytes[whole.structure.kind_of_node].tolist() == [MAP_BYTES, 0, MAP_BYTES, MAP_BYTES, MAP_BYTES]


def test_a_compiled_model_is_faster_in_inference_and_its_time_known_less_well() -> None:
    graph = gpusage.read_model("timm:convnext_tiny")
    plain, quick = (
        gpusage.predict(graph, gpu="rtx-4090", batch_size=64, mode="infer", precision="fp16", compile=one)
        for one in (False, True)
    )
    # timm's own rows of it: compiled takes half of the eager time
    assert 0.4 < quick.step_time_s.value / plain.step_time_s.value < 0.75
    assert quick.step_time_s.high / quick.step_time_s.value > plain.step_time_s.high / plain.step_time_s.value
    assert quick.memory_bytes == plain.memory_bytes
    assert (plain.familiar, quick.familiar, quick.notes[-1]) == (True, False, COMPILED_WARNING)


@pytest.mark.parametrize("mode", get_args(Mode))
@pytest.mark.parametrize("precision", ["fp32"])
def test_what_was_never_measured_compiled_has_the_figures_of_the_plain_model(mode: Mode, precision: Precision) -> None:
    workload = Workload(batch_size=64, mode=mode, precision=precision, compile=True)
    assert not is_fused(workload)
    graph, reported = convolution_graph(), {"batch_size": 64, "mode": mode, "precision": precision}
    plain = gpusage.predict(graph, gpu="a100", **reported)  # type: ignore[arg-type]
    quick = gpusage.predict(graph, gpu="a100", compile=True, **reported)  # type: ignore[arg-type]
    assert quick == replace(plain, familiar=False, notes=(*plain.notes, UNFUSED_WARNING))


def test_a_compiled_step_of_training_has_no_sums_of_gradients_and_no_casts_of_activations() -> None:
    """The sum's map is read twice: eager adds two gradients, a compiler makes that a part of a kernel beside it."""
    training = Workload(batch_size=2, optimizer="adam", precision="bf16")
    eager, compiled = (analyze(branched(), replace(training, compile=one)) for one in (False, True))
    of_no_node = [float(one.kernels.counts[one.kernels.kind < 0].sum()) for one in (eager, compiled)]
    assert of_no_node[1] < of_no_node[0]
    moved = [float(one.kernels.counts @ one.kernels.traffic_bytes) for one in (eager, compiled)]
    assert moved[1] < moved[0]
    assert eager.peak == compiled.peak
    assert compiled.warnings([A100])[0][-1] == FUSED_TRAINING_WARNING


def test_a_compiled_answer_is_no_compiled_pass() -> None:
    workload = replace(COMPILED, generate=Decoding(prompt_tokens=8, new_tokens=8))
    assert is_fusion_measured(COMPILED)
    assert not is_fusion_measured(workload)
    assert not is_fusion_measured(replace(COMPILED, compile=False))


def test_parts_of_a_compiled_step_add_up() -> None:
    explained = explanation_of(branched(), COMPILED, A100)
    in_classes = sum(part.seconds.total_s for part in explained.classes)
    assert in_classes + explained.waiting_s == pytest.approx(explained.step_time_s)
    assert sum(layer.seconds.total_s for layer in explained.layers) < in_classes  # casts are no layer's


def test_a_factor_is_of_its_classes_and_of_no_other() -> None:
    factors = class_factors(INDUCTOR)
    assert factors[OperatorClass.CONVOLUTION] == INDUCTOR.factors[0]
    assert factors[OperatorClass.UNKNOWN] == 1
    assert len({one for group in GROUPS for one in group}) == sum(map(len, GROUPS))
    eager = WorkloadAnalysis(branched(), replace(COMPILED, compile=False)).efficiency
    change = with_compiler(eager).second_bias - eager.second_bias
    assert np.exp(-change[:, 0]) == pytest.approx(factors)


def test_it_is_an_option_of_each_model_that_says_nothing_else() -> None:
    first, second = (read_request(each, {"compile": "on"}) for each in ("r.onnx", "s.onnx,compile=off"))
    assert (first.workload.compile, second.workload.compile) == (True, False)
