"""Whatever stands in a saved program, its reader gives a graph or says in one sentence that it cannot."""

from __future__ import annotations

import copy
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpusage.graphs.card import text as card
from gpusage.graphs.torch.pt2 import read_model
from gpusage_hooks.errors import GraphError

SIZES = [{"as_expr": {"expr_str": "2*s0", "hint": {"as_int": 4}}}, {"as_int": 8}]


def _call(target: str, *arguments: tuple[str, Any]) -> dict[str, Any]:
    return {
        "target": f"torch.ops.aten.{target}.default",
        "inputs": [{"name": name, "arg": value, "kind": 1} for name, value in arguments],
        "outputs": [{"as_tensor": {"name": target}}],
    }


def _tensor(name: str) -> dict[str, Any]:
    return {"as_tensor": {"name": name}}


PROGRAM: dict[str, Any] = {
    "graph_module": {
        "graph": {
            "nodes": [
                _call("linear", ("input", _tensor("x")), ("weight", _tensor("w"))),
                _call("conv1d", ("input", _tensor("linear")), ("weight", _tensor("w")), ("stride", {"as_ints": [2]})),
                _call("max_pool1d", ("self", _tensor("conv1d")), ("kernel_size", {"as_ints": [2]})),
                _call("lstm", ("input", _tensor("x")), ("params", {"as_tensors": [{"name": "w"}, {"name": "w"}]})),
                _call("cat", ("tensors", {"as_tensors": [{"name": "lstm"}, {"name": "max_pool1d"}]})),
            ],
            "tensor_values": {
                name: {"dtype": 7, "sizes": SIZES} for name in ("x", "linear", "conv1d", "max_pool1d", "lstm", "cat")
            }
            | {"w": {"dtype": 7, "sizes": [{"as_int": 8}, {"as_int": 8}]}},
            "sym_int_values": {},
        },
        "signature": {
            "input_specs": [
                {"parameter": {"arg": {"name": "w"}, "parameter_name": "w"}},
                {"user_input": {"arg": _tensor("x")}},
            ],
            "output_specs": [{"user_output": {"arg": _tensor("cat")}}],
        },
    }
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:  # JSON
    """Return the path to every value inside *value*."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    inside = [place for key, item in items for place in places(item, (*path, key))]
    return [*([path] if path else []), *inside]


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["s0", "x", "w", "s0**s0", "nothing"]),
    st.just([]),
    st.just({}),
    st.just([_tensor("x")]),
    st.just({"as_int": -1}),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None)
@given(place=st.sampled_from(places(PROGRAM)), value=ANYTHING)
def test_a_program_with_anything_in_it_gives_a_graph_or_one_sentence(
    place: tuple[Any, ...],
    value: Any,  # JSON
    tmp_path: Path,
) -> None:
    program = copy.deepcopy(PROGRAM)
    around: Any = program
    for key in place[:-1]:
        around = around[key]
    around[place[-1]] = value
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/models/model.json", json.dumps(program))
    output = ""
    try:
        graph = read_model(str(path), {})
    except GraphError as error:
        output = str(error)
    assert "\n" not in output
    if not output:
        assert graph is not None
        assert card.decode(card.encode(graph)).nodes == graph.nodes


def test_the_program_itself_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/models/model.json", json.dumps(PROGRAM))
    graph = read_model(str(path), {})
    assert graph is not None
    assert [node.op_type for node in graph.nodes] == ["Gemm", "Conv", "MaxPool", "LSTM", "Concat"]
    assert graph.inputs == (("x", (-2, 8)),)


@pytest.mark.parametrize("cut", range(0, 400, 23))
def test_a_program_cut_off_anywhere_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/models/model.json", json.dumps(PROGRAM))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(GraphError):
        read_model(str(path), {})
