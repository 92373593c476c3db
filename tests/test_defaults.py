"""Defaults that another language must state again are those of the Python side, and the guide's are the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpusage.settings.configuration import DaemonSettings
from gpusage_slurm.doctor.evidence import LONGEST_PAUSE_S
from gpusage_slurm.install.lua_scripts import LUA_FOLDER
from gpusage_slurm.settings import SlurmSettings
from sources import ROOT, python_files

JAVA = ROOT / "plugins/yarn/java/src/main/java/org/gpusage/yarn"
SLURM, SOCKET = SlurmSettings(), DaemonSettings().socket


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        (LUA_FOLDER / "gpusage.lua", r'local M = \{ socket = "([^"]+)"', SOCKET),
        (LUA_FOLDER / "gpusage.lua", r"local M = \{.*limit_ms = ([0-9.]+)", SLURM.limit_ms),
        (LUA_FOLDER / "gpusage_cli.lua", r"local M = \{.*limit_s = ([0-9.]+)", SLURM.card_limit_s),
        (JAVA / "PlanRequester.java", r'DAEMON_SOCKET, "([^"]+)"', SOCKET),
        (ROOT / "docs/admin.md", r"`slurm.limit_ms` \(([0-9]+) ms\)", SLURM.limit_ms),
        (ROOT / "docs/admin.md", r"`slurm.card_limit_s` \(about ([0-9]+) s of `sbatch`", SLURM.card_limit_s),
    ],
)
def test_what_is_stated_again_is_the_default(path: Path, pattern: str, expected: str | float) -> None:
    stated = re.search(pattern, path.read_text(encoding="utf-8"))
    assert stated is not None
    assert type(expected)(stated[1]) == expected


def test_doctor_waits_longer_than_the_lua_rests() -> None:
    rest = re.search(r"local MAXIMUM_PAUSE_S = ([0-9.]+)", (LUA_FOLDER / "gpusage.lua").read_text(encoding="utf-8"))
    assert rest is not None
    assert float(rest[1]) < LONGEST_PAUSE_S


@pytest.mark.parametrize(("places", "marks"), [("CLUSTER_TESTS", "slurm|yarn|release|browser"), ("LONG_TESTS", "long")])
def test_make_looks_where_the_tests_are_that_it_runs_apart(places: str, marks: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (folders,) = re.findall(rf"^{places} := (.*)$", makefile, re.MULTILINE)
    marked = [
        path for path in python_files("tests") if re.search(rf"pytest\.mark\.({marks})\b", path.read_text("utf-8"))
    ]
    assert marked
    lost = [path for path in marked if not any(path.is_relative_to(ROOT / folder) for folder in folders.split())]
    assert lost == []
