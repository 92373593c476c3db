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


def test_a_shape_beside_a_module_is_refused() -> None:
    with pytest.raises(RequestError, match="'shape' must be left out where the model is a module"):
        gpusage.read_model(torch.nn.Linear(2, 2), torch.randn(1, 2), shape={"seq": 3})
