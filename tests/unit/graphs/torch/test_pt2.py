"""Saved programs are read as JSON in a zip: without PyTorch, without a pickle, and whatever is in the file."""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
import sys
import tracemalloc
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpusage.graphs.torch.pt2 import MAXIMUM_PROGRAM_BYTES, read_model
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph

BATCH = {"as_expr": {"expr_str": "Symbol('s0', positive=True, integer=True)", "hint": {"as_int": 2}}}


Json = dict[str, Any]
Spoil = Callable[[Json], object]


def tensor(*sizes: int | Json, dtype: int = 7) -> dict[str, Any]:
    return {"dtype": dtype, "sizes": [size if isinstance(size, dict) else {"as_int": size} for size in sizes]}


def call(target: str, inputs: dict[str, Any], *outputs: str) -> dict[str, Any]:
    return {
        "target": target,
        "inputs": [{"name": name, "arg": argument, "kind": 1} for name, argument in inputs.items()],
        "outputs": [{"as_tensor": {"name": name}} for name in outputs],
    }


def named(name: str) -> dict[str, Any]:
    return {"as_tensor": {"name": name}}


def document(batch: Json = BATCH) -> dict[str, Any]:
    """Return a program of one linear layer, 4 to 3, and a ReLU."""
    linear = {"input": named("x"), "weight": named("p_weight"), "bias": named("p_bias")}
    return {
        "graph_module": {
            "graph": {
                "nodes": [
                    call("torch.ops.aten.linear.default", linear, "linear"),
                    call("torch.ops.aten.relu.default", {"self": named("linear")}, "relu"),
                ],
                "tensor_values": {
                    "x": tensor(batch, 4),
                    "p_weight": tensor(3, 4),
                    "p_bias": tensor(3),
                    "linear": tensor(batch, 3),
                    "relu": tensor(batch, 3),
                },
                "sym_int_values": {},
            },
            "signature": {
                "input_specs": [
                    {"parameter": {"arg": {"name": "p_weight"}, "parameter_name": "weight"}},
                    {"parameter": {"arg": {"name": "p_bias"}, "parameter_name": "bias"}},
                    {"user_input": {"arg": named("x")}},
                ],
                "output_specs": [{"user_output": {"arg": named("relu")}}],
            },
        }
    }


def saved(folder: Path, program: Json | bytes, **members: str | bytes) -> str:
    path = folder / "model.pt2"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        text = program if isinstance(program, bytes) else json.dumps(program)
        archive.writestr("model/models/model.json", text)
        for name, content in members.items():
            archive.writestr(name.replace("__", "/"), content)
    return str(path)


def read(path: str, **shape: tuple[int, ...]) -> ModelGraph:
    graph = read_model(path, shape)
    assert graph is not None
    return graph


def test_a_program_is_its_calls_for_any_batch(tmp_path: Path) -> None:
    graph = read(saved(tmp_path, document()))
    assert [(node.op_type, node.inputs, node.outputs) for node in graph.nodes] == [
        ("Gemm", ((-1, 4),), ((-1, 3),)),
        ("Relu", ((-1, 3),), ((-1, 3),)),
    ]
    assert graph.inputs == (("x", (-1, 4)),)
    assert graph.parameter_count == 15
    assert graph.name == "model"
    assert graph.fixed_batch_size is None


def test_a_program_for_one_batch_size_is_scaled_where_each_first_size_is_the_batch(tmp_path: Path) -> None:
    graph = read(saved(tmp_path, document(batch={"as_int": 5})))
    assert graph.nodes == read(saved(tmp_path, document())).nodes
    assert graph.notes == ("The file was exported for batch size 5; every size in it still follows the batch.",)


def test_a_program_for_one_batch_size_whose_batch_leaves_the_first_axis_says_so(tmp_path: Path) -> None:
    program = document(batch={"as_int": 5})
    program["graph_module"]["graph"]["tensor_values"]["relu"] = tensor(3, 5)
    graph = read(saved(tmp_path, program))
    assert graph.fixed_batch_size == 5
    assert graph.nodes[0].outputs == ((5, 3),)


def test_weights_that_share_a_place_are_counted_once(tmp_path: Path) -> None:
    program = document()
    program["graph_module"]["graph"]["tensor_values"]["p_again"] = tensor(3, 4)
    specs = program["graph_module"]["signature"]["input_specs"]
    specs.insert(0, {"parameter": {"arg": {"name": "p_again"}, "parameter_name": "again"}})
    weights = {"config": {name: {"path_name": "weight_0"} for name in ("weight", "again")}}
    path = saved(tmp_path, program, model__data__weights__model_weights_config__json=json.dumps(weights))
    os.rename(path, tmp_path / "old.pt2")  # noqa: PTH104 - the member's name has a dot, which a keyword cannot have
    with zipfile.ZipFile(tmp_path / "old.pt2") as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(name.replace("config/json", "config.json"), old.read(name))
    assert read(path).parameter_count == 15


def test_a_free_size_is_as_the_option_says_or_as_in_the_example(tmp_path: Path) -> None:
    program = document()
    length = {"as_expr": {"expr_str": "s1", "hint": {"as_int": 16}}}
    for name in ("x", "linear", "relu"):
        program["graph_module"]["graph"]["tensor_values"][name]["sizes"].insert(1, length)
    path = saved(tmp_path, program)
    assert read(path).inputs == (("x", (-1, 16, 4)),)
    assert read(path).notes == ("Free size s1 is 16, as in the example that the program was exported with.",)
    for option in ({"s1": (32,)}, {"x": (32, 4)}):
        assert read(path, **option).inputs == (("x", (-1, 32, 4)),)
        assert read(path, **option).notes == ()


@pytest.mark.parametrize(
    ("shape", "rule"),
    [
        ({"y": (4,)}, "must name an input or a free size of the model, x, s0; got 'y'"),
        ({"x": (4, 4)}, "must have 1 sizes, batch left out; got 2"),
        ({"x": (8,)}, "must have the size 4 that it was exported with; got 8"),
    ],
)
def test_an_option_that_does_not_fit_is_refused(tmp_path: Path, shape: dict[str, tuple[int, ...]], rule: str) -> None:
    with pytest.raises(GraphError, match=rule):
        read_model(saved(tmp_path, document()), shape)


def test_a_graph_that_is_wrapped_in_a_call_is_played_in_its_place(tmp_path: Path) -> None:
    program = document()
    graph = program["graph_module"]["graph"]
    inner = {
        "inputs": [named("inside")],
        "outputs": [named("exp")],
        "nodes": [call("torch.ops.aten.exp.default", {"self": named("inside")}, "exp")],
        "tensor_values": {"inside": tensor(BATCH, 3), "exp": tensor(BATCH, 3)},
        "sym_int_values": {},
    }
    wrapped = call("torch.ops.higher_order.wrap_with_set_grad_enabled", {}, "wrapped")
    wrapped["inputs"] = [
        {"name": "", "arg": {"as_bool": False}, "kind": 1},
        {"name": "", "arg": {"as_graph": {"name": "sub", "graph": inner}}, "kind": 1},
        {"name": "", "arg": named("linear"), "kind": 1},
    ]
    graph["nodes"] = [
        graph["nodes"][0],
        wrapped,
        call("torch.ops.aten.relu.default", {"self": named("wrapped")}, "relu"),
    ]
    graph["tensor_values"]["wrapped"] = tensor(BATCH, 3)
    read_graph = read(saved(tmp_path, program))
    assert [node.op_type for node in read_graph.nodes] == ["Gemm", "Exp", "Relu"]
    assert read_graph.producers == ((-1,), (0,), (1,))


def test_an_operator_without_a_rule_is_counted(tmp_path: Path) -> None:
    program = document()
    program["graph_module"]["graph"]["nodes"][1]["target"] = "torch.ops.mine.spline.default"
    assert read(saved(tmp_path, program)).unknown_op_types == (("mine.spline", 1),)


def test_no_pickle_is_opened(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    path = saved(tmp_path, document(), model__data__sample_inputs__model=pickle.dumps(Trap()))
    assert len(read(path).nodes) == 2
    assert not (tmp_path / "sprung").exists()


def test_pytorch_is_not_imported(tmp_path: Path) -> None:
    script = (
        "import sys; from gpusage.graphs.torch.pt2 import read_model; g = read_model(sys.argv[1], {});"
        "assert len(g.nodes) == 2; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, saved(tmp_path, document())], check=True)


def spoilt(change: Spoil) -> bytes:
    program = document()
    change(program["graph_module"])
    return json.dumps(program).encode()


HOSTILE = {
    "no JSON": b"{",
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "nothing in it": b"{}",
    "no input": spoilt(lambda module: module["signature"]["input_specs"].pop()),
    "a huge size": spoilt(lambda module: module["graph"]["tensor_values"].update(linear=tensor(BATCH, 10**15))),
    "a negative size": spoilt(lambda module: module["graph"]["tensor_values"].update(linear=tensor(BATCH, -3))),
    "many sizes": spoilt(lambda module: module["graph"]["tensor_values"].update(linear=tensor(*[1] * 99))),
    "sizes of 10^9": spoilt(lambda module: module["graph"]["tensor_values"].update(x=tensor(BATCH, 10**9, 10**9))),
    "a size that is code": spoilt(
        lambda module: module["graph"]["tensor_values"].update(
            linear=tensor({"as_expr": {"expr_str": "__import__('os').abort()"}})
        )
    ),
    "a tensor that is not there": spoilt(lambda module: module["graph"]["tensor_values"].pop("linear")),
    "calls that are text": spoilt(lambda module: module["graph"].update(nodes=["a", "b"])),
    "too large": b" " * (MAXIMUM_PROGRAM_BYTES + 1),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_program_that_makes_no_sense_is_refused_in_one_sentence(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(GraphError) as caught:
        read_model(saved(tmp_path, text), {})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("length", [0, 10, 300])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, length: int) -> None:
    path = Path(saved(tmp_path, document()))
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(GraphError, match=r"must be a program as torch\.export\.save writes it"):
        read_model(str(path), {})


def end_record(size_bytes: int, offset_bytes: int) -> bytes:
    """Return the record at the end of a zip whose table of contents has *size_bytes*, and begins at *offset_bytes*."""
    return struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, size_bytes, offset_bytes, 0)


def long_end_records(size_bytes: int, offset_bytes: int) -> bytes:
    """Return the same for a zip of any length: the record, where it is, and the short one that points to it."""
    record = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, size_bytes, offset_bytes)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, offset_bytes + size_bytes, 1)
    return record + locator + end_record(0xFFFFFFFF, 0xFFFFFFFF)


@pytest.mark.parametrize("records", [end_record, long_end_records])
@pytest.mark.parametrize("decoy", [b"", b"PK\6\6" + bytes(52)], ids=["plain", "decoy"])
def test_a_table_of_contents_that_would_fill_the_memory_is_refused(
    tmp_path: Path, records: Callable[[int, int], bytes], decoy: bytes
) -> None:
    """The file is sparse: a few KiB on the disk; a decoy that says another length deceives nobody."""
    path = tmp_path / "model.pt2"
    with path.open("wb") as file:
        file.truncate(1_000_000_000)
        file.seek(0, os.SEEK_END)
        end = records(1_000_000_000 - len(decoy), len(decoy))
        file.write(end[:-2] + struct.pack("<H", len(decoy)) + decoy if decoy else end)
    tracemalloc.start()
    with pytest.raises(GraphError, match="must have a table of contents of at most"):
        read_model(str(path), {})
    assert tracemalloc.get_traced_memory()[1] < 100e6
    tracemalloc.stop()


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_member_that_is_not_unpacked_piece_by_piece_is_refused(tmp_path: Path, method: int) -> None:
    """889 bytes of bz2 became two gigabytes before anyone could look at their length."""
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("model/models/model.json", json.dumps(document()))
    with pytest.raises(GraphError, match="must be stored or deflated"):
        read_model(str(path), {})


def test_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    path = Path(saved(tmp_path, document()))
    content = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        content[content.find(mark) + offset] |= 1
    path.write_bytes(content)
    with pytest.raises(GraphError, match="a member that is encrypted"):
        read_model(str(path), {})


def test_a_place_before_the_file_begins_is_refused(tmp_path: Path) -> None:
    """The kernel answers with an error of its own, which is no fault of ours."""
    path = Path(saved(tmp_path, document()))
    content = path.read_bytes()
    end = content.rfind(b"PK\5\6")
    path.write_bytes(content[: end + 12] + struct.pack("<LL", len(content), 0) + content[end + 20 :])
    with pytest.raises(GraphError, match=r"must be a program as torch\.export\.save writes it"):
        read_model(str(path), {})


def test_a_zip_without_a_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data/aotinductor/model.so", b"")
    with pytest.raises(GraphError, match="must hold a program"):
        read_model(str(path), {})


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.pt2").mkdir()
    os.mkfifo(tmp_path / "pipe.pt2")
    for name, expected in (("folder", "a folder"), ("pipe", "a FIFO"), ("none", "no such file")):
        with pytest.raises(GraphError, match=expected):
            read_model(str(tmp_path / f"{name}.pt2"), {})


@pytest.mark.torch
def test_a_file_that_pytorch_saved_is_the_same_graph_as_the_live_module(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from gpusage.graphs.torch.module import graph_from_module  # after the skip

    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    module = torch.nn.Sequential(torch.nn.Conv1d(8, 32, 1), torch.nn.Flatten(2), torch.nn.Linear(32, 32), layer).eval()
    example = torch.zeros(2, 8, 32)
    path = tmp_path / "saved.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = torch.export.Dim("batch", min=1, max=4096)
        program = torch.export.export(module, (example,), dynamic_shapes=({0: batch},), strict=False)
        torch.export.save(program, path)
    ours, theirs = read(str(path)), graph_from_module(module, (example,))
    assert ours.fixed_batch_size is None
    assert ours.parameter_count == theirs.parameter_count
    counted = [Counter((node.op_type, node.outputs) for node in graph.nodes) for graph in (ours, theirs)]
    assert counted[0] == counted[1]
