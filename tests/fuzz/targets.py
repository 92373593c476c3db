"""What is fuzzed: for each reader good examples, and what takes a mutant of them."""

from __future__ import annotations

import base64
import io
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from onnx import TensorProto, ValueInfoProto, helper

from daemon.conftest import Daemon, made_daemon
from gpusage.decisions.advisor import make_advisor
from gpusage.graphs.card.text import decode, decode_document, encode
from gpusage.graphs.named.huggingface import read_configuration
from gpusage.graphs.onnx.reader import read_model as read_onnx
from gpusage.graphs.torch.pt2 import read_model as read_pt2
from gpusage.service.protocol import ProtocolError, json_line, parse_line
from gpusage_hooks.types import Workload
from graphs import attention_graph, convolution_graph, perceptron_graph, recurrent_graph
from unit.graphs.torch.test_pt2 import document

Consumer = Callable[[bytes], object]
MODELS = Path(__file__).resolve().parents[2] / "examples" / "models"
MEMORY_LIMIT_BYTES = 150e6
LARGEST_SEED_BYTES = 300_000


@dataclass(frozen=True)
class Target:
    """A reader.

    Attributes:
        seeds: Returns good examples; they are tried as they are, first.
        consumer: Gives what takes a mutant, with a folder of its own.
    """

    seeds: Callable[[], list[bytes]]
    consumer: Callable[[Path], AbstractContextManager[Consumer]]


def onnx_seeds() -> list[bytes]:
    """Return a small model with a little of everything, and the examples where they were made."""
    examples = [path.read_bytes() for path in sorted(MODELS.glob("*.onnx")) if path.stat().st_size < LARGEST_SEED_BYTES]
    return [small_onnx(), *examples]


def small_onnx() -> bytes:
    """Return a model that has a little of everything."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [8, 3, 3, 3], bytes(8 * 27 * 4), raw=True)
    flat = helper.make_tensor("flat", TensorProto.INT64, [2], [0, -1])
    yes = helper.make_tensor("yes", TensorProto.BOOL, [], [True])
    branch = helper.make_graph([helper.make_node("Relu", ["c"], ["b"])], "branch", [], [_value("b", None)])
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("If", ["yes"], ["i"], then_branch=branch, else_branch=branch),
        helper.make_node("twice", ["i"], ["t"], domain="ours"),
        helper.make_node("Reshape", ["t", "flat"], ["r"]),
        helper.make_node("Softmax", ["r"], ["y"], axis=-1),
    ]
    twice = [helper.make_node("Add", ["a", "a"], ["z"])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ours", 1)]
    function = helper.make_function("ours", "twice", ["a"], ["z"], twice, opsets[:1])
    graph = helper.make_graph(nodes, "g", [_value("x", ["n", 3, 16, 16])], [_value("y", None)], [weight, flat, yes])
    return helper.make_model(graph, opset_imports=opsets, functions=[function]).SerializeToString()


def _value(name: str, shape: list[int | str] | None) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def pt2_seeds() -> list[bytes]:
    """Return a program as a zip; JSON alone is zipped by the taker, so that mutants reach what is inside."""
    text = json.dumps(document()).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model/models/model.json", text)
        archive.writestr("model/data/weights/model_weights_config.json", b'{"config":{"weight":{"path_name":"w0"}}}')
    return [text, text, packed.getvalue()]


def card_seeds() -> list[bytes]:
    """Return cards, unpacked and as they travel."""
    cards = [encode(graph) for graph in (perceptron_graph(), convolution_graph(), attention_graph(), recurrent_graph())]
    return [*map(decode_document, cards), *(card.encode() for card in cards[:2])]


def configuration_seeds() -> list[bytes]:
    """Return small configurations of several kinds of models."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    kinds = [
        {"model_type": "bert", "architectures": ["BertModel"], "vocab_size": 100, **sizes},
        {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 32, "n_layer": 1, "n_head": 2},
        {"model_type": "vit", "image_size": 32, "patch_size": 16, **sizes},
        {"model_type": "llama", "num_key_value_heads": 1, "rope_theta": 1e4, "vocab_size": 100, **sizes},
    ]
    return [json.dumps(kind).encode() for kind in kinds]


def line_seeds() -> list[bytes]:
    """Return what clients send."""
    card = encode(perceptron_graph())
    ask = json_line(Daemon.question(card))
    return [ask, json_line({"v": 1, "op": "ping"}), json_line({"v": 1, "op": "status"}), ask + ask]


@contextmanager
def reader(name: str, read: Callable[[str, dict[str, tuple[int, ...]]], object], folder: Path) -> Iterator[Consumer]:
    """Give what writes a mutant to a file called *name* and reads it."""
    path = folder / name

    def consume(mutant: bytes) -> object:
        path.write_bytes(mutant)
        return read(str(path), {})

    yield consume


@contextmanager
def pt2_taker(folder: Path) -> Iterator[Consumer]:
    """Give what reads a zip, or puts JSON into one first."""
    with reader("m.pt2", read_pt2, folder) as read:

        def consume(mutant: bytes) -> object:
            if mutant.startswith(b"PK"):
                return read(mutant)
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w") as archive:
                archive.writestr("model/models/model.json", mutant)
            return read(packed.getvalue())

        yield consume


@contextmanager
def card_taker(_: Path) -> Iterator[Consumer]:
    """Give what decodes a card, and predicts for what it takes for one: a forged graph goes that far."""
    advisor = make_advisor()
    gpus = [advisor.catalogue.find(name) for name in ("v100", "h100")]

    def consume(mutant: bytes) -> object:
        text = base64.b64encode(zlib.compress(mutant)).decode() if mutant.startswith(b"{") else mutant.decode("latin-1")
        graph = decode(text)
        return [advisor.predict(graph, workload, gpus) for workload in (Workload(), Workload(batch_size=64))]

    yield consume


@contextmanager
def configuration_taker(folder: Path) -> Iterator[Consumer]:
    """Give what reads a Hugging Face folder; what is imported for the first one is no mutant's fault."""
    with reader("config.json", lambda path, shape: read_configuration(path, path, shape), folder) as consume:
        consume(configuration_seeds()[0])
        yield consume


@contextmanager
def socket_taker(_: Path) -> Iterator[Consumer]:
    """Give what sends a mutant to a real gpusaged: a whole line has one answer at most, and it stays alive."""
    with made_daemon() as daemon:
        daemon.start()

        def consume(mutant: bytes) -> None:
            lines = daemon.all(mutant).splitlines()
            assert len(lines) <= mutant.count(b"\n") + 1
            assert all(isinstance(json.loads(line), dict) for line in lines)
            with suppress(ProtocolError):
                parse_line(mutant.partition(b"\n")[0])
            assert daemon.ask({"v": 1, "op": "ping"})["code"] == "OK"
            assert daemon.highest_memory_bytes() <= MEMORY_LIMIT_BYTES

        yield consume
        assert daemon.status()["lines"]["failed"] == 0
        assert daemon.stop() == 0


TARGETS = {
    "onnx": Target(onnx_seeds, lambda folder: reader("m.onnx", read_onnx, folder)),
    "pt2": Target(pt2_seeds, pt2_taker),
    "card": Target(card_seeds, card_taker),
    "configuration": Target(configuration_seeds, configuration_taker),
    "socket": Target(line_seeds, socket_taker),
}
