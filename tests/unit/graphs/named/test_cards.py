"""Cards of named models: no library is needed, and one submission costs a fraction of a second."""

from __future__ import annotations

import sys

import pytest

from gpusage.graphs.reader import read_model
from gpusage_hooks.errors import GraphError


@pytest.fixture(autouse=True)
def no_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a library would be imported."""
    for library in ("torch", "timm", "torchvision", "transformers"):
        monkeypatch.setitem(sys.modules, library, None)


@pytest.mark.parametrize(
    ("source", "shape", "parameters", "inputs"),
    [
        ("timm:resnet50", {}, 25_557_032, (-1, 3, 224, 224)),
        ("timm:resnet50.a1_in1k", {}, 25_557_032, (-1, 3, 224, 224)),
        # 21,841 classes in place of 1,000: 20,841 rows of 768, and their biases, more
        ("timm:vit_base_patch16_224.augreg_in21k", {}, 86_567_656 + 20_843 * 769, (-1, 3, 224, 224)),
        ("timm:vit_base_patch16_384", {"size": (384,)}, 86_859_496, (-1, 3, 384, 384)),
        ("torchvision:vgg16", {"input": (3, 224, 224)}, 138_357_544, (-1, 3, 224, 224)),
        ("torchvision:r3d_18", {}, 33_371_472, (-1, 3, 16, 112, 112)),
        ("hf:gpt2", {}, 124_439_808, (-1, 128)),
        ("hf:openai-community/gpt2", {"seq": (512,)}, 124_439_808, (-1, 512)),
    ],
)
def test_a_name_needs_no_library(
    source: str, shape: dict[str, tuple[int, ...]], parameters: int, inputs: tuple[int, ...]
) -> None:
    graph = read_model(source, shape)
    assert graph is not None
    assert (graph.source, graph.name) == (source, source.partition(":")[2])
    assert graph.parameter_count == parameters
    assert graph.inputs[0][1] == inputs


@pytest.mark.parametrize(
    ("source", "near"), [("timm:resnet5O", "timm:resnet50"), ("torchvision:vgg61", "torchvision:vgg16")]
)
def test_a_misspelt_name_is_told_with_the_nearest_where_its_library_is_not_installed(source: str, near: str) -> None:
    with pytest.raises(GraphError, match=rf"got neither\. Did you mean .*{near}"):
        read_model(source, {})
