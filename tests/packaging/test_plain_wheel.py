"""The wheels that anyone builds from the source distribution, without Maven: everything but the YARN jar."""

from __future__ import annotations

import shutil
import sys
from email.parser import Parser
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import pytest

from installations import CHECKOUT, Installation

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def test_it_predicts_a_file_and_a_name_for_an_ordinary_user(plain: Installation) -> None:
    shutil.copy(CHECKOUT / "examples" / "models" / "resnet18.onnx", plain.folder / "home")
    assert "resnet18" in plain.run("gpusage", "predict", "resnet18.onnx", "--batch", "8", "--gpu", "v100").stdout
    assert "25.6 M parameters" in plain.run("gpusage", "predict", "timm:resnet50", "--gpu", "v100").stdout


def test_every_way_to_call_it_knows_its_version(plain: Installation) -> None:
    ways = (("gpusage",), ("gpusaged",), ("python", "-m", "gpusage.cli"))
    assert {plain.run(*way, "--version").stdout.split()[-1] for way in ways} == {version("gpusage")}


def test_it_has_no_heavy_package(plain: Installation) -> None:
    packages = {path.name for path in plain.folder.glob("venv/lib/python3*/site-packages/*")}
    assert not packages & {"torch", "sklearn", "scipy", "pandas"}


def test_without_the_jar_it_says_how_to_get_one(plain: Installation) -> None:
    done = plain.run("gpusage", "yarn", "jar", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "gpusage: error: This installation of gpusage must hold its YARN jar; it was installed without one. "
        "Install a released wheel, or one that 'make wheel' makes in a checkout.\n"
    )


@pytest.mark.parametrize("words", ["plan", "simulate --generate 50", "train", "slurm sandbox up", "yarn sandbox down"])
def test_without_the_second_wheel_its_commands_say_which_one_to_install(plain: Installation, words: str) -> None:
    done = plain.run("gpusage", *words.split(), check=False)
    command = words.removesuffix(" up").removesuffix(" down").partition(" --")[0]
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"gpusage: error: Command '{command}' must come from gpusage-desk, which is not installed. "
        f"Install gpusage_desk-{version('gpusage')}-py3-none-any.whl beside gpusage.\n"
    )


def test_the_second_wheel_brings_plans_simulations_and_sandboxes(with_desk: Installation) -> None:
    home = with_desk.folder / "home"
    shutil.copytree(CHECKOUT / "examples" / "models", home / "examples" / "models")
    shutil.copytree(CHECKOUT / "examples" / "plan", home / "examples" / "plan")
    jobs, cluster = "examples/plan/jobs.csv", "examples/plan/cluster.toml"
    plan = with_desk.run("gpusage", "plan", "--jobs", jobs, "--cluster", cluster)
    assert "resnet" in plan.stdout
    assert "slots" in with_desk.run("gpusage", "simulate", "--generate", "20", "--repetitions", "1").stdout
    assert "restart" in with_desk.run("gpusage", "yarn", "sandbox", "--help").stdout


def test_without_the_extra_yarn_a_sandbox_with_gpusage_is_refused_before_anything_is_fetched(
    with_desk: Installation,
) -> None:
    done = with_desk.run("gpusage", "yarn", "sandbox", "up", "--gpusage", "observe", check=False)
    assert done.returncode == 1
    assert done.stderr == (
        "gpusage: error: Library requests must be there for this command; got: not installed. "
        "Install gpusage with its extra [yarn].\n"
    )


def test_both_wheels_are_of_one_version() -> None:
    site, desk = (
        tomllib.loads((CHECKOUT / name).read_text(encoding="utf-8"))["project"]
        for name in ("pyproject.toml", "release/desk/pyproject.toml")
    )
    assert desk["version"] == site["version"]
    assert desk["dependencies"] == [f"gpusage[plan]=={site['version']}"]


def test_the_wheel_holds_licence_notice_and_commands(plain_wheel: Path) -> None:
    with ZipFile(plain_wheel) as wheel:
        held = {name.rpartition(".dist-info/")[2]: name for name in wheel.namelist() if ".dist-info/" in name}
        metadata = Parser().parsestr(wheel.read(held["METADATA"]).decode())
        commands = wheel.read(held["entry_points.txt"]).decode()
        packages = {name.partition("/")[0] for name in wheel.namelist() if ".dist-info/" not in name}
    assert {"licenses/LICENSE", "licenses/NOTICE"} <= held.keys()
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {"gpusage = gpusage.cli:main", "yarn = gpusage_yarn.plugin"} <= set(commands.splitlines())
    assert packages == {"gpusage", "gpusage_hooks", "gpusage_slurm", "gpusage_yarn"}
