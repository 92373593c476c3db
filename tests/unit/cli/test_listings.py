"""The catalogue on the command line, and which of its rows this machine's GPUs are."""

from __future__ import annotations

import json
from pathlib import Path

import pynvml  # type: ignore[import-untyped] # has no types
import pytest
from click.testing import CliRunner

from gpusage.cli import listings, main
from gpusage.decisions.advisor import advisor
from gpusage.devices.catalogue import Catalogue, describe_gpus
from gpusage.devices.nvml import LocalGpu
from gpusage.settings.configuration_file import parse_configuration
from gpusage_hooks.errors import RequestError
from gpusage_hooks.units import GIB

CATALOGUE = Catalogue(describe_gpus())
LOCAL = (
    LocalGpu(index=0, nvml_name="Tesla V100-SXM2-16GB", memory_bytes=16 * GIB, gpu=CATALOGUE.find("v100")),
    LocalGpu(index=1, nvml_name="NVIDIA Unheard Of 9000", memory_bytes=4 * GIB, gpu=None),
)


def test_each_row_has_its_source() -> None:
    rows = json.loads(CliRunner().invoke(main, ["gpus", "--json"]).stdout)["gpus"]
    assert len(rows) == len(CATALOGUE)
    assert all(row["source"] for row in rows)
    listed = CliRunner().invoke(main, ["gpus"]).stdout
    assert all(f"{row.name}: " in listed for row in CATALOGUE)


def test_only_the_gpus_that_are_named_are_listed() -> None:
    document = json.loads(CliRunner().invoke(main, ["gpus", "l40s", "a100", "a100-sxm4-40gb", "--json"]).stdout)
    assert [row["name"] for row in document["gpus"]] == ["l40s", "a100-sxm4-40gb"]
    unknown = CliRunner().invoke(main, ["gpus", "a1000"])
    assert unknown.exit_code == 1
    assert "Did you mean 'a100-sxm4-40gb'?" in unknown.stderr
    assert "Leave out the names" in CliRunner().invoke(main, ["gpus", "a100", "--local"]).stderr


def test_a_name_is_taken_for_a_gpu_and_the_site_says_for_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Slurm a100 is what the site says; without a word of it, the one of 40 GB."""
    plain = CliRunner().invoke(main, ["gpus", "a100"]).stdout
    assert "a100 is taken for a100-sxm4-40gb with 39.4 GiB, not for a100-pcie-80gb (79.2 GiB) or" in " ".join(
        plain.split()
    )
    named = ["gpus", "big", "a100", "--json"]
    assert CliRunner().invoke(main, named).exit_code == 1
    assert taken_for(tmp_path, monkeypatch, '{ big = "h100", a100 = "a100l" }', *named) == (
        0,
        {"big": "h100-sxm5-80gb", "a100": "a100-sxm4-80gb"},
    )
    assert taken_for(tmp_path, monkeypatch, '{ big = "h1000" }', "gpus")[1] == (
        "gpusage: error: Key 'gpus.aliases.big' must name a GPU of the catalogue. GPU 'h1000' must be a name of the "
        "catalogue; got an unknown name. Did you mean 'h100-sxm5-80gb'?"
    )
    assert "must be a word of your own" in str(taken_for(tmp_path, monkeypatch, '{ t4 = "v100" }', "gpus")[1])
    assert "got a vendor's alone" in str(taken_for(tmp_path, monkeypatch, '{ nvidia = "v100" }', "gpus")[1])
    cycle = taken_for(tmp_path, monkeypatch, '{ big = "huge", huge = "big" }', "gpus")[1]
    assert "Key 'gpus.aliases.big' must name a GPU of the catalogue" in str(cycle)
    with pytest.raises(RequestError, match=r"Key 'gpus.aliases' of configuration 'x' must be a table; got"):
        parse_configuration("[gpus]\naliases = { big = 1 }", origin="x")


def taken_for(folder: Path, monkeypatch: pytest.MonkeyPatch, aliases: str, *words: str) -> tuple[int, object]:
    """Return the exit status at a site with *aliases*, and what names are taken for or the error."""
    file = folder / "gpusage.toml"
    file.write_text(f"[gpus]\naliases = {aliases}\n")
    monkeypatch.setenv("GPUSAGE_CONFIG", str(file))
    advisor.cache_clear()
    result = CliRunner().invoke(main, words)
    advisor.cache_clear()
    return result.exit_code, json.loads(result.stdout)["names"] if not result.exit_code else result.stderr.strip()


def test_local_gpus_are_shown_by_both_names(capsys: pytest.CaptureFixture[str]) -> None:
    listings.show_local(LOCAL, as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "GPU                   index    memory  NVML's name",
        "v100-sxm2-16gb            0  16.0 GiB  Tesla V100-SXM2-16GB",
        "not in the catalogue      1   4.0 GiB  NVIDIA Unheard Of 9000",
    ]
    listings.show_local(LOCAL, as_json=True)
    assert json.loads(capsys.readouterr().out)["local"] == [
        {"index": 0, "nvml_name": "Tesla V100-SXM2-16GB", "memory_bytes": 16 * GIB, "gpu": "v100-sxm2-16gb"},
        {"index": 1, "nvml_name": "NVIDIA Unheard Of 9000", "memory_bytes": 4 * GIB, "gpu": None},
    ]


def test_local_says_what_is_missing_where_there_is_no_gpu() -> None:
    """On a machine with a GPU, it says which."""
    result = CliRunner().invoke(main, ["gpus", "--local", "--json"])
    document = json.loads(result.stdout)
    if _has_gpu():
        assert result.exit_code == 0
        assert document["local"]
    else:
        assert result.exit_code == 1
        assert document["error"]["code"] == "gpu"
        assert document["error"]["message"].startswith("NVML must answer for the GPUs of this machine")


def _has_gpu() -> bool:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    return bool(pynvml.nvmlDeviceGetCount())
