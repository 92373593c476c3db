"""The catalogue on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpusage.cli import main
from gpusage.decisions.advisor import advisor
from gpusage.devices.catalogue import Catalogue, describe_gpus
from gpusage.settings.configuration_file import parse_configuration
from gpusage_hooks.errors import RequestError

CATALOGUE = Catalogue(describe_gpus())


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
        "gpusage: error: Key 'gpus.aliases.big' must name a GPU of the catalogue; got 'h1000'. 'gpusage gpus' lists "
        "the names."
    )
    assert "must be a word of your own" in str(taken_for(tmp_path, monkeypatch, '{ t4 = "v100" }', "gpus")[1])
    assert "got a vendor's" in str(taken_for(tmp_path, monkeypatch, '{ nvidia = "v100" }', "gpus")[1])
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
