"""Files that are broken, or made to hurt: one clear sentence each, in bounded time and memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from gpusage.graphs.onnx.reader import read_model
from gpusage_hooks.errors import GraphError

EVIL = "\x1b]0;owned\x07\u202efdp.\x9b31m"

LIMIT_S = 5.0
LIMIT_BYTES = 512 * 1024**2

READ = """
import re, sys, time
from gpusage.graphs.onnx.reader import read_model
from gpusage_hooks.errors import GraphError
start = time.process_time()
try:
    read_model(sys.argv[1], {})
    print("accepted")
except GraphError as error:
    print(error)
print(time.process_time() - start)
# Not getrusage: what the process that started this one had in memory would count.
print(1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]))
"""


def varint(number: int) -> bytes:
    """Return *number* as protocol buffers write it."""
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def field(number: int, content: bytes) -> bytes:
    """Return a field that holds bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def model_of(graph: bytes, *more: bytes) -> bytes:
    """Return a model around the bytes of a graph."""
    return b"\x08\x08" + field(8, b"\x10\x11") + b"".join(more) + field(7, graph)


RELU = field(1, field(1, b"x") + field(2, b"y") + field(4, b"Relu"))
INPUT = field(11, field(1, b"x") + field(2, field(1, b"\x08\x01" + field(2, field(1, b"\x08\x02")))))


def relu(name: str = "x", size: int = 4) -> onnx.ModelProto:
    """Return a model that works."""
    shape = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    return helper.make_model(
        helper.make_graph([helper.make_node("Relu", [name], ["y"])], "g", [shape], [out]),
        opset_imports=[helper.make_opsetid("", 17)],
    )


def refusal(path: Path, **shape: tuple[int, ...]) -> str:
    """Return the sentence with which the file at *path* is refused."""
    with pytest.raises(GraphError) as caught:
        read_model(str(path), shape)
    sentence = str(caught.value)
    assert sentence.isprintable()
    return sentence


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a test puts its model."""
    return tmp_path / "model.onnx"


@pytest.mark.parametrize("length", [0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused(path: Path, length: float) -> None:
    content = relu().SerializeToString()
    path.write_bytes(content[: int(length * len(content))])
    assert "must be a whole ONNX file" in refusal(path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(b"", "an empty file", id="empty"),
        pytest.param(b"PK\x03\x04" + b"\0" * 99, "a ZIP archive", id="checkpoint"),
        pytest.param(b"\x80\x02}q\x00.", "a Python pickle", id="pickle"),
        pytest.param(b"<html></html>", "a web page", id="html"),
        pytest.param(b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer", id="lfs"),
        pytest.param(b"\0" * 4096, "something else", id="zeros"),
        pytest.param(os.urandom(64) + b"\xff" * 64, "must be a whole ONNX file", id="noise"),
    ],
)
def test_what_is_no_model_is_refused_by_its_kind(path: Path, content: bytes, expected: str) -> None:
    path.write_bytes(content)
    assert expected in refusal(path)


def test_a_missing_file_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path starts in this folder, which the message names."""
    assert refusal(path).endswith("got: no such file or directory. Check the path.")
    monkeypatch.chdir(path.parent)
    assert f"no such file or directory in '{path.parent}'. Check" in refusal(Path(path.name))


def test_a_folder_is_refused(path: Path) -> None:
    path.mkdir()
    assert "got a folder" in refusal(path)


def test_a_fifo_is_refused_without_waiting(path: Path) -> None:
    os.mkfifo(path)
    assert "got a FIFO" in refusal(path)


def test_an_endless_device_is_refused(path: Path) -> None:
    path.symlink_to("/dev/zero")
    assert "got a device" in refusal(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything; the next test covers root")
def test_a_file_without_permission_is_refused(path: Path) -> None:
    path.write_bytes(relu().SerializeToString())
    path.chmod(0)
    assert "permission denied" in refusal(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_file_without_permission_is_refused_to_somebody_else() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to others
        Path(folder).chmod(0o755)
        path = Path(folder) / "model.onnx"
        path.write_bytes(relu().SerializeToString())
        path.chmod(0)
        child = os.fork()
        if not child:
            os.setuid(65534)
            try:
                read_model(str(path), {})
            except GraphError as error:
                os._exit(10 if "permission denied" in str(error) else 11)
            os._exit(12)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 10


def test_a_name_with_a_null_byte_is_refused() -> None:
    assert "must be a file that you can read" in refusal(Path("a\0b.onnx"))


def test_a_cycle_is_refused(path: Path) -> None:
    model = relu()
    model.graph.node.append(helper.make_node("Add", ["y", "b"], ["a"], name="first"))
    model.graph.node.append(helper.make_node("Add", ["y", "a"], ["b"], name="second"))
    path.write_bytes(model.SerializeToString())
    assert "must have no cycle; got one through node 'first'" in refusal(path)


def test_nodes_out_of_order_are_sorted(path: Path) -> None:
    model = relu()
    model.graph.node.insert(0, helper.make_node("Tanh", ["y"], ["z"]))
    model.graph.output[0].name = "z"
    path.write_bytes(model.SerializeToString())
    graph = read_model(str(path), {})
    assert graph is not None
    assert [node.op_type for node in graph.nodes] == ["Relu", "Tanh"]


def test_a_name_that_nothing_gives_is_refused(path: Path) -> None:
    model = relu()
    model.graph.node[0].input[0] = "elsewhere"
    path.write_bytes(model.SerializeToString())
    assert "got 'elsewhere', which does not exist" in refusal(path)


def test_free_dimensions_without_a_value_are_named_with_the_option(path: Path) -> None:
    model = relu()
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "seq"
    path.write_bytes(model.SerializeToString())
    sentence = refusal(path)
    assert "got none for 'seq'" in sentence
    assert "--shape seq=128" in sentence


def test_shapes_that_do_not_fit_are_refused_with_the_node(path: Path) -> None:
    model = relu()
    weight = helper.make_tensor("w", TensorProto.FLOAT, [5, 2], [0.0] * 10)
    model.graph.initializer.append(weight)
    model.graph.node.append(helper.make_node("MatMul", ["y", "w"], ["z"], name="head"))
    model.graph.output[0].name = "z"
    path.write_bytes(model.SerializeToString())
    assert "MatMul node 'head' cannot take inputs of 8x4, 5x2" in refusal(path)


def test_dimensions_of_a_thousand_million_do_not_overflow(path: Path) -> None:
    path.write_bytes(relu(size=10**9).SerializeToString())
    graph = read_model(str(path), {})
    assert graph is not None
    assert graph.nodes[0].outputs == ((-1, 10**9),)


def test_dimensions_beyond_all_memory_are_refused(path: Path) -> None:
    model = relu(size=10**9)
    weight = TensorProto(name="w", dims=[10**9, 10**9], data_type=TensorProto.FLOAT, data_location=1)
    model.graph.initializer.append(weight)
    path.write_bytes(model.SerializeToString())
    assert "must have at most 2^48 elements; got 1000000000x1000000000" in refusal(path)


def test_dimensions_that_become_too_large_inside_are_refused(path: Path) -> None:
    model = relu(size=10**9)
    model.graph.node.append(helper.make_node("Unsqueeze", ["y", "axes"], ["z"]))
    model.graph.node.append(helper.make_node("Unsqueeze", ["y", "other"], ["v"]))
    model.graph.node.append(helper.make_node("Add", ["z", "v"], ["w"]))
    model.graph.initializer.append(helper.make_tensor("axes", TensorProto.INT64, [1], [1]))
    model.graph.initializer.append(helper.make_tensor("other", TensorProto.INT64, [1], [2]))
    model.graph.output[0].name = "w"
    path.write_bytes(model.SerializeToString())
    assert "Output 'w' must have at most 2^48 elements" in refusal(path)


@pytest.mark.parametrize("location", ["/etc/passwd", "../secret.bin", "a/../../b", "..", "", "..\\windows.bin", "a\0b"])
def test_external_data_outside_the_folder_is_refused(path: Path, location: str) -> None:
    model = relu()
    weight = TensorProto(name="w", dims=[4, 4], data_type=TensorProto.FLOAT, data_location=1)
    weight.external_data.add(key="location", value=location)
    model.graph.initializer.append(weight)
    path.write_bytes(model.SerializeToString())
    assert "External data must lie in the model's own folder" in refusal(path)


def test_missing_weights_are_no_error(path: Path) -> None:
    model = relu()
    weight = TensorProto(name="w", dims=[4, 3], data_type=TensorProto.FLOAT, data_location=1)
    weight.external_data.add(key="location", value="absent.bin")
    model.graph.initializer.append(weight)
    model.graph.node.append(helper.make_node("MatMul", ["y", "w"], ["z"]))
    model.graph.output[0].name = "z"
    path.write_bytes(model.SerializeToString())
    graph = read_model(str(path), {})
    assert graph is not None
    assert graph.parameter_count == 12


def test_an_unknown_operator_is_counted_and_said(path: Path) -> None:
    model = relu()
    model.graph.node.append(helper.make_node("Mystery", ["y"], ["z"], domain="com.acme"))
    model.graph.output[0].name = "z"
    path.write_bytes(model.SerializeToString())
    graph = read_model(str(path), {})
    assert graph is not None
    assert graph.unknown_op_types == (("com.acme.Mystery", 1),)
    assert graph.notes == ("Counted by their shapes alone, because no rule describes them: 1 com.acme.Mystery.",)


def write_deep(path: Path) -> None:
    """Write graphs within graphs, each the branch of an If."""
    graph = RELU
    for _ in range(2_000):
        branch = field(5, field(1, b"then_branch") + field(6, graph))
        graph = field(1, field(1, b"x") + field(2, b"y") + field(4, b"If") + branch)
    path.write_bytes(model_of(INPUT + field(12, field(1, b"y")) + graph))


def write_branches(path: Path) -> None:
    """Write an If whose two branches are as long and hold another such If each."""
    graph = field(12, field(1, b"y")) + RELU
    for _ in range(40):
        branches = b"".join(field(5, field(1, name) + field(6, graph)) for name in (b"then_branch", b"else_branch"))
        node = field(1, b"x") + field(2, b"y") + field(4, b"If")
        if len(branches) > 64 * 1024**2:
            break
        graph = field(12, field(1, b"y")) + field(1, node + branches)
    path.write_bytes(model_of(INPUT + graph))


def write_functions(path: Path) -> None:
    """Write functions that each call the one before ten times: a thousand million steps in a kilobyte."""
    functions = []
    for level in range(1, 10):
        name = b"f%d" % (level - 1) if level > 1 else b"Relu"
        domain = field(7, b"local") if level > 1 else b""
        calls = b"".join(
            field(7, field(1, b"x") + field(2, b"y%d" % number) + field(4, name) + domain) for number in range(10)
        )
        functions.append(
            field(25, field(1, b"f%d" % level) + field(10, b"local") + field(4, b"x") + field(5, b"y0") + calls)
        )
    call = field(1, field(1, b"x") + field(2, b"y") + field(4, b"f9") + field(7, b"local"))
    path.write_bytes(model_of(INPUT + field(12, field(1, b"y")) + call, *functions))


def write_itself(path: Path) -> None:
    """Write a function that calls itself."""
    call = field(1, b"x") + field(2, b"y") + field(4, b"f") + field(7, b"local")
    function = field(1, b"f") + field(10, b"local") + field(4, b"x") + field(5, b"y") + field(7, call)
    path.write_bytes(model_of(INPUT + field(12, field(1, b"y")) + field(1, call), field(25, function)))


def write_many_nodes(path: Path) -> None:
    """Write a million nodes."""
    path.write_bytes(model_of(INPUT + RELU * 1_000_000))


def write_many_sizes(path: Path) -> None:
    """Write a constant with fifty million packed numbers where a rank should stand."""
    path.write_bytes(model_of(INPUT + RELU + field(5, field(1, b"\x01" * 50_000_000))))


def write_many_numbers(path: Path) -> None:
    """Write many nodes with attributes of many numbers each."""
    node = field(1, b"x") + field(2, b"y") + field(4, b"Relu")
    attribute = field(5, field(1, b"a") + field(8, b"\x01" * 8_000))
    path.write_bytes(model_of(INPUT + field(1, node + attribute) * 10_000))


def write_empty_fields(path: Path) -> None:
    """Write ten million empty fields."""
    path.write_bytes(model_of(INPUT + RELU + field(10, b"") * 10_000_000))


def write_many_small_weights(path: Path) -> None:
    """Write a gigabyte of weights just small enough to be read with their headers."""
    weight = field(5, b"\x08\x04" + b"\x10\x01" + field(8, b"w") + field(9, b"\0" * 16_000))
    graph = INPUT + RELU
    head = b"\x08\x08" + field(8, b"\x10\x11")
    count = 1024**3 // len(weight)
    with path.open("wb") as file:
        file.write(head + varint(7 << 3 | 2) + varint(len(graph) + count * len(weight)) + graph)
        for _ in range(count // 1024):
            file.write(weight * 1024)
        file.write(weight * (count % 1024))


def write_sparse_gigabytes(path: Path) -> None:
    """Write a file of a hundred gigabytes that takes no room."""
    with path.open("wb") as file:
        file.write(model_of(INPUT + RELU))
        file.truncate(100 * 1024**3)


def write_long_name(path: Path) -> None:
    """Write a node whose name has fifty million letters."""
    path.write_bytes(model_of(INPUT + field(1, field(1, b"x" * 50_000_000) + field(2, b"y") + field(4, b"Relu"))))


def write_large_range(path: Path) -> None:
    """Write a constant that would be expanded to a thousand million numbers."""
    model = relu()
    for name, number in (("start", 0), ("limit", 10**9), ("delta", 1)):
        model.graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, [], [number]))
    model.graph.node.append(helper.make_node("Range", ["start", "limit", "delta"], ["r"]))
    model.graph.node.append(helper.make_node("Tile", ["r", "times"], ["t"]))
    model.graph.initializer.append(helper.make_tensor("times", TensorProto.INT64, [1], [10**4]))
    path.write_bytes(model.SerializeToString())


def write_large_power(path: Path) -> None:
    """Write numbers that square themselves again and again."""
    model = relu()
    model.graph.initializer.append(helper.make_tensor("n0", TensorProto.INT64, [64], [3] * 64))
    for number in range(64):
        model.graph.node.append(helper.make_node("Mul", [f"n{number}"] * 2, [f"n{number + 1}"]))
    path.write_bytes(model.SerializeToString())


def write_loops(path: Path) -> None:
    """Write loops in loops, each of which turns a thousand million times."""
    turn: list[onnx.NodeProto] = [helper.make_node("Relu", ["s0"], ["n0"])]
    for level in range(6):
        inputs = [("turn", TensorProto.INT64, []), ("go", TensorProto.BOOL, []), (f"s{level}", TensorProto.FLOAT, None)]
        body = helper.make_graph(
            [helper.make_node("Identity", ["go"], ["still"]), *turn],
            "body",
            [helper.make_tensor_value_info(*one) for one in inputs],
            [helper.make_empty_tensor_value_info(name) for name in ("still", f"n{level}")],
        )
        state = "x" if level == 5 else f"s{level + 1}"
        turn = [helper.make_node("Loop", ["most", "", state], ["y" if level == 5 else f"n{level + 1}"], body=body)]
    model = relu()
    del model.graph.node[:]
    model.graph.node.extend(turn)
    model.graph.initializer.append(helper.make_tensor("most", TensorProto.INT64, [], [10**9]))
    path.write_bytes(model.SerializeToString())


BOMBS = [
    write_loops,
    write_deep,
    write_branches,
    write_functions,
    write_itself,
    write_many_nodes,
    write_many_sizes,
    write_many_numbers,
    write_empty_fields,
    write_many_small_weights,
    write_sparse_gigabytes,
    write_long_name,
    write_large_range,
    write_large_power,
]


@pytest.mark.parametrize("write", BOMBS)
def test_a_bomb_is_refused_or_read_in_bounded_time_and_memory(path: Path, write: Callable[[Path], None]) -> None:
    write(path)
    try:
        done = subprocess.run(
            ["prlimit", f"--as={LIMIT_BYTES}", sys.executable, "-c", READ, str(path)],
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
        )
    finally:
        path.unlink()
    output, time_s, memory_bytes = done.stdout.splitlines()
    assert output == "accepted" or output.endswith(".")
    assert float(time_s) <= LIMIT_S
    assert int(memory_bytes) <= LIMIT_BYTES


def test_an_operator_with_a_hostile_name_is_read_as_harmless(tmp_path: Path) -> None:
    """Operator and domain stand in a file as free text, and are shown where no rule knows them."""
    node = helper.make_node(EVIL, ["x"], ["y"], domain=EVIL)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy"]
    model = helper.make_model(helper.make_graph([node], "g", values[:1], values[1:]))
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    graph = read_model(str(path), {})
    assert graph is not None
    assert all(each.op_type.isprintable() for each in graph.nodes)
    assert all(text.isprintable() for text, _ in graph.unknown_op_types)
    assert all(note.isprintable() for note in graph.notes)
    assert graph.unknown_op_types
