"""The wheel that anyone builds from the source distribution, without Maven: everything but the YARN jar."""

from __future__ import annotations

import shutil
from email.parser import Parser
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

from installations import CHECKOUT, Installation


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


def test_without_the_extra_yarn_a_sandbox_with_gpusage_is_refused_before_anything_is_fetched(
    plain: Installation,
) -> None:
    done = plain.run("gpusage", "yarn", "sandbox", "up", "--gpusage", "observe", check=False)
    assert done.returncode == 1
    assert done.stderr == (
        "gpusage: error: Library requests must be there for this command; got: not installed. "
        "Install gpusage with its extra [yarn].\n"
    )


def test_the_wheel_holds_licence_notice_and_commands(sources: Path, plain: Installation) -> None:  # to build it
    with ZipFile(next(sources.glob("*.whl"))) as wheel:
        held = {name.rpartition(".dist-info/")[2]: name for name in wheel.namelist() if ".dist-info/" in name}
        metadata = Parser().parsestr(wheel.read(held["METADATA"]).decode())
        commands = wheel.read(held["entry_points.txt"]).decode()
    assert {"licenses/LICENSE", "licenses/NOTICE"} <= held.keys()
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {"gpusage = gpusage.cli:main", "yarn = gpusage_yarn.plugin"} <= set(commands.splitlines())
