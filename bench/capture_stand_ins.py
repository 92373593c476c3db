"""`python capture_stand_ins.py SCRIPT ARGUMENTS`: runs a script whose data sets have random values and no network.

Beside it, `write_files` writes the files that `capture.py`'s scripts read.
"""

from __future__ import annotations

import io
import json
import runpy
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

MNIST_SAMPLES, SAMPLES = 60_000, 2048
WORDS = [f"word{number}" for number in range(1000)]
GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_head": 4, "n_embd": 64, "n_positions": 512, "vocab_size": 1003}
BERT = {
    "model_type": "bert",
    "architectures": ["BertForSequenceClassification"],
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 64,
    "intermediate_size": 256,
    "vocab_size": 1003,
}


def write_files(work: Path) -> None:
    """Write images, texts and models to ``data``, and the data of each repository to where its scripts read it."""
    random = np.random.default_rng(0)
    data = work / "data"
    for part in ("train", "val"):
        for name in ("a", "b"):
            _write_images(data / "images" / part / name, [f"{name}_{number}" for number in range(80)], random)
    _write_images(data / "pets", [f"breed{number % 37}_{number}" for number in range(160)], random)
    text = "\n".join(" ".join(random.choice(WORDS, 40)) for _ in range(2000))
    (data / "text.txt").write_text(text)
    rows = [json.dumps({"sentence1": line, "label": number % 2}) for number, line in enumerate(text.splitlines()[:400])]
    (data / "rows.json").write_text("\n".join(rows))
    _write_model(data / "gpt2", GPT2)
    _write_model(data / "bert", BERT)
    _write_repository_data(work, text, random)


def _write_repository_data(work: Path, text: str, random: np.random.Generator) -> None:
    examples = work / "pytorch" / "examples"
    tokens = random.integers(0, 50_000, 200_000).astype(np.uint16)
    for path in ("karpathy/nanoGPT/data/openwebtext/train.bin", "karpathy/nanoGPT/data/openwebtext/val.bin"):
        _write(work / path, tokens.tobytes())
    for part in ("train", "valid", "test"):
        _write(examples / f"word_language_model/data/wikitext-2/{part}.txt", text.encode())
    for path in ("karpathy/minGPT/projects/chargpt", "pytorch/examples/distributed/minGPT-ddp/mingpt/data"):
        _write(work / path / "input.txt", text.encode())
    _write(work / "yunjey/pytorch-tutorial/tutorials/02-intermediate/language_model/data/train.txt", text.encode())
    for part in ("train", "test"):
        _write_images(examples / "super_resolution/dataset/BSDS300/images" / part, list(map(str, range(100))), random)
    unet = work / "milesial" / "Pytorch-UNet" / "data"
    names = [f"car{number}" for number in range(12)]
    _write_images(unet / "imgs", names, random)
    _write_images(unet / "masks", [f"{name}_mask" for name in names], random, is_mask=True)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _write_images(folder: Path, names: list[str], random: np.random.Generator, *, is_mask: bool = False) -> None:
    from PIL import Image

    folder.mkdir(parents=True)
    pixels = random.integers(0, 255, (320, 320, 3), dtype=np.uint8)
    image = Image.fromarray(pixels[..., 0] // 128) if is_mask else Image.fromarray(pixels)
    for name in names:
        image.save(folder / f"{name}.{'png' if is_mask else 'jpg'}")


def _write_model(folder: Path, configuration: dict[str, Any]) -> None:
    words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[EOS]", *WORDS])}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"},
    }
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "[EOS]"}
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 128}
    folder.mkdir()
    header = b'{"__metadata__":{"format":"pt"}}'  # of a file without weights: all get initial values
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (folder / "config.json").write_text(json.dumps(configuration))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({**special, **kind}))


def replace_data_sets() -> None:
    """Let what the scripts would download be of random values."""
    from torchvision import datasets

    def of_mnist(self: Any) -> Any:
        import torch

        images = torch.randint(0, 255, (MNIST_SAMPLES, 28, 28), dtype=torch.uint8)
        return images, torch.randint(0, 10, (MNIST_SAMPLES,))

    def begin_cifar(self: Any, root: Any, *_: Any, transform: Any = None, **__: Any) -> None:
        datasets.VisionDataset.__init__(self, root, transform=transform)
        self.data = np.zeros((SAMPLES, 32, 32, 3), dtype=np.uint8)
        self.targets = [number % 10 for number in range(SAMPLES)]
        self.classes = list(map(str, range(10)))

    replaced = {"_check_exists": lambda _: True, "_load_data": of_mnist, "download": lambda _: None}
    for name, function in replaced.items():
        setattr(datasets.MNIST, name, function)
    cifar: Any = datasets.CIFAR10
    cifar.__init__ = begin_cifar


def replace_downloads() -> None:
    """Let accuracies be nothing, weights of timm be initial ones, and the graph of papers be one of random edges."""
    metrics: Any = ModuleType("evaluate")
    metrics.load = lambda *_, **__: None
    sys.modules["evaluate"] = metrics
    import requests

    library: Any = requests
    library.get = _open_archive
    try:
        import timm
    except ImportError:
        return
    create: Any = timm.create_model
    for place in (timm, timm.models):
        models: Any = place
        models.create_model = lambda *words, **keywords: create(*words, **{**keywords, "pretrained": False})


@contextmanager
def _open_archive(*_: object, **__: object) -> Iterator[SimpleNamespace]:
    """Yield what a server would answer."""
    yield SimpleNamespace(raw=io.BytesIO(_papers()))


def _papers() -> bytes:
    """Return an archive in the form of the citation graph Cora, whose edges are random: 2,708 papers, 7 subjects."""
    random = np.random.default_rng(0)
    words = random.integers(0, 2, (2708, 1433)).astype(str)
    content = "\n".join("\t".join([str(paper), *row, f"subject{paper % 7}"]) for paper, row in enumerate(words))
    cites = "\n".join("\t".join(map(str, edge)) for edge in random.integers(0, 2708, (5429, 2)))
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in (("cora/cora.content", content), ("cora/cora.cites", cites)):
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return file.getvalue()


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    replace_data_sets()
    replace_downloads()
    runpy.run_path(sys.argv[0], run_name="__main__")
