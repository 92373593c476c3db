"""Generation on several GPUs that compute one after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage.decisions.serving import Server, serving_of
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import analyze
from gpusage.predictors.explanation import explanation_of
from gpusage.predictors.needs import predicted
from gpusage_hooks.errors import GraphError, RequestError
from gpusage_hooks.types import Decoding, GpuNeed, Workload
from graphs import language_model, with_layers

MISTRAL = with_layers(language_model(4096, 32, 8, 14336, 32000, length=128), 16)
A100 = builtin_catalogue().find("a100-sxm4-80gb")
ALONE = Workload(mode="infer", precision="fp16", generate=Decoding(prompt_tokens=512, new_tokens=128))


def need_of(gpus: int) -> GpuNeed:
    return predicted(MISTRAL, replace(ALONE, gpus=gpus, strategy="pipeline"), [A100])[0]


def test_each_gpu_holds_a_part_of_the_weights_and_of_all_keys_and_values() -> None:
    """Unlike heads of keys that GPUs divide, layers can be divided among more GPUs than there are heads of keys."""
    one, several = (
        analyze(MISTRAL, replace(ALONE, gpus=gpus, strategy="pipeline")).divided_decoding for gpus in (1, 16)
    )
    assert one is not None
    assert several is not None
    whole, part = one.held, several.held
    assert part.prompt.parameter_count == pytest.approx(whole.prompt.parameter_count / 16, abs=1)
    assert part.kv_cache_bytes == whole.kv_cache_bytes / 16
    assert need_of(16).required_bytes.value < need_of(4).required_bytes.value < need_of(1).required_bytes.value


def test_several_gpus_take_as_long_as_one_and_what_they_hand_on() -> None:
    there = analyze(MISTRAL, replace(ALONE, gpus=4, strategy="pipeline")).on([A100])
    assert there.exchange is not None
    assert (there.exchange.prompt_count, there.exchange.token_count) == (3, 3)
    assert need_of(4).step_time_s.value == pytest.approx(need_of(1).step_time_s.value + there.waiting_s[0])


def test_each_gpu_is_idle_while_the_others_have_their_turn() -> None:
    assert need_of(4).gpu_utilization.value == pytest.approx(need_of(1).gpu_utilization.value / 4)
    assert any("compute one after the other" in note for note in need_of(4).notes)


def test_the_parts_of_the_memory_add_up_to_that_of_one_gpu() -> None:
    explanation = explanation_of(MISTRAL, replace(ALONE, gpus=4, strategy="pipeline"), A100)
    assert sum(part.memory_bytes for part in explanation.memory) == pytest.approx(need_of(4).memory_bytes.value)


def test_each_gpu_must_have_a_layer() -> None:
    with pytest.raises(GraphError, match=r"got 16 layers, gpus=17\. Write 'gpus=16' or less\.$"):
        need_of(17)


def test_a_server_is_not_predicted_so() -> None:
    with pytest.raises(RequestError, match="GPUs that serve must divide each layer"):
        serving_of(Server(MISTRAL, replace(ALONE, gpus=4, strategy="pipeline", engine="vllm"), A100))
