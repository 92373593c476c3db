"""Modules are read with example inputs in every form that people hand over."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import gpusage
from gpusage_hooks.errors import RequestError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class Two(torch.nn.Module):
    """A module of two inputs."""

    def forward(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """Return scores."""
        return query @ key.transpose(1, 2)


def test_one_tensor_is_one_input_however_many_samples_it_has() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(1024, 64), torch.nn.ReLU())
    graph = gpusage.read_model(module, torch.randn(1, 1024))
    assert graph.fixed_batch_size is None
    assert [shape for _, shape in graph.inputs] == [(-1, 1024)]
    assert graph.inputs == gpusage.read_model(module, (torch.randn(4, 1024),)).inputs


def test_an_encoder_given_one_tensor_is_the_one_given_a_tuple() -> None:
    layer = torch.nn.TransformerEncoderLayer(32, 4, batch_first=True)
    alone, inside = torch.randn(1, 16, 32), (torch.randn(1, 16, 32),)
    assert gpusage.read_model(layer, alone).nodes == gpusage.read_model(layer, inside).nodes


@pytest.mark.parametrize("form", [list, tuple, lambda pair: dict(zip(("query", "key"), pair, strict=True))])
def test_inputs_are_told_apart_in_a_list_a_tuple_and_a_dictionary(form: Callable[..., object]) -> None:
    graph = gpusage.read_model(Two(), form([torch.randn(2, 5, 8), torch.randn(2, 7, 8)]))
    assert graph.inputs == (("query", (-1, 5, 8)), ("key", (-1, 7, 8)))


@pytest.mark.parametrize("family", ["Llama", "Bert"])
def test_a_language_model_is_read_with_its_mask(family: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    name = {"Llama": "LlamaForCausalLM", "Bert": "BertForMaskedLM"}[family]
    module = getattr(transformers, name)(getattr(transformers, f"{family}Config")(vocab_size=100, **sizes))
    tokens = torch.zeros(4, 16, dtype=torch.int64)
    graph = gpusage.read_model(module, {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)})
    assert graph.fixed_batch_size is None
    assert "assumes that all are 1" in graph.notes[-1]


def test_a_shape_beside_a_module_is_refused() -> None:
    with pytest.raises(RequestError, match="'shape' must be left out where the model is a module"):
        gpusage.read_model(torch.nn.Linear(2, 2), torch.randn(1, 2), shape={"seq": 3})


class Adapted(torch.nn.Module):
    """A frozen layer of Llama-7B with an adapter of rank 16, as LoRA makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = torch.nn.Linear(4096, 4096, bias=False).requires_grad_(requires_grad=False)
        self.down = torch.nn.Linear(4096, 16, bias=False)
        self.up = torch.nn.Linear(16, 4096, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the layer's rows and the adapter's."""
        return self.frozen(rows) + self.up(self.down(rows))


def test_an_adapted_module_says_which_share_it_trains() -> None:
    with torch.device("meta"):
        graph = gpusage.read_model(Adapted(), torch.empty(2, 4096))
    # 4096 x 4096 = 128 x 131,072 frozen, 2 x 4096 x 16 = 131,072 trained: one in 129
    assert graph.trainable == 1 / 129
    assert "The module trains 0.775 % of its parameters" in graph.notes[-1]
    # Adam's two moments of 4 bytes: 8 x 131,072 is 1 MiB
    states = {part.name: part.memory_bytes for part in gpusage.explain(graph, gpu="a100", optimizer="adam").memory}
    assert states["optimizer"] == pytest.approx(1024 * 1024)
    by_itself = gpusage.predict(graph, gpu="a100", optimizer="adam")
    assert by_itself == gpusage.predict(graph, gpu="a100", optimizer="adam", trainable=1 / 129)
    assert by_itself != gpusage.predict(graph, gpu="a100", optimizer="adam", trainable=1.0)
    assert gpusage.predict(graph, gpu="a100", mode="infer").memory_bytes.value > 0


def test_a_module_that_trains_all_or_nothing_is_predicted_with_all() -> None:
    module = torch.nn.Linear(8, 8)
    assert gpusage.read_model(module, torch.empty(2, 8)).notes == ()
    frozen = gpusage.read_model(module.requires_grad_(requires_grad=False), torch.empty(2, 8))
    assert (frozen.trainable, len(frozen.notes)) == (1.0, 1)
    assert "No parameter of the module has requires_grad" in frozen.notes[0]


def test_a_module_with_channels_last_is_said_to_be_one() -> None:
    module, example = torch.nn.Conv2d(8, 8, 3), torch.zeros(2, 8, 16, 16)
    assert gpusage.read_model(module, example).notes == ()
    (note,) = gpusage.read_model(module.to(memory_format=torch.channels_last), example).notes
    assert "layout='channels_last'" in note


def test_what_a_module_was_told_of_its_run_is_said() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    example = torch.zeros(2, 8)
    assert gpusage.read_model(module, example).notes == ()
    assert "The module is compiled" in gpusage.read_model(torch.compile(module), example).notes[0]
    for word in ("gradient_checkpointing", "grad_checkpointing"):  # as transformers and timm mark parts
        setattr(module[0], word, True)
        assert "checkpointing=True" in gpusage.read_model(module, example).notes[0]
        setattr(module[0], word, False)
    note = gpusage.read_model(module.half(), example.half()).notes[-1]
    assert "weights of torch.float16" in note
    assert "precision='fp16-pure'" in note
