"""Which format a source is of, and which sources are of none."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusage.graphs.reader import read_model
from gpusage_hooks.errors import GraphError


@pytest.mark.parametrize("source", ["", "model", "model.acme", "acme:net", "/no/such/folder/net.acme"])
def test_a_source_of_no_built_in_format_is_left_to_other_readers(source: str) -> None:
    assert read_model(source, {}) is None


def test_files_of_weights_are_refused_and_not_read(tmp_path: Path) -> None:
    (tmp_path / "model.pth").write_bytes(b"weights")
    with pytest.raises(GraphError, match="got weights, which gpusage never loads"):
        read_model(str(tmp_path / "model.pth"), {})


def test_a_configuration_under_another_name_is_told_its_own(tmp_path: Path) -> None:
    path = tmp_path / "qwen3.json"
    path.write_text("{}")
    with pytest.raises(GraphError, match=r"must be called config\.json; got another name\. Rename it"):
        read_model(str(path), {})


def test_a_file_of_another_program_is_told_what_to_give_instead(tmp_path: Path) -> None:
    path = tmp_path / "llama.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(GraphError, match=r"got \.gguf\. Export it to ONNX, or give the Hugging Face folder"):
        read_model(str(path), {})
