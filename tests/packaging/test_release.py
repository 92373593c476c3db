"""What `make packages` leaves: the wheel with the YARN jar in it, the manual pages, the deb and the rpm."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from gpusage_sandboxes.slurm.installation import fetch_patchelf
from gpusage_slurm.install import site
from installations import CHECKOUT, Installation, install_wheel

pytestmark = pytest.mark.release

JAVA_8 = 52
UNIT = "/usr/lib/systemd/system/gpusaged.service"
PLACES = ("/opt/gpusage", "/usr/libexec/gpusage", "/etc/gpusage", "/usr/bin/gpusage", "/usr/bin/gpusaged", UNIT)
NAMES = {"/usr/bin/gpusage", "/usr/bin/gpusaged", UNIT, "/etc/gpusage/gpusage.toml", "/usr/share/man/man1/gpusage.1.gz"}
NAMES |= {"/usr/share/bash-completion/completions/gpusage", "/usr/share/doc/gpusage/copyright"}
INSIDE = CHECKOUT / "tests" / "packaging" / "inside.sh"


@pytest.fixture(scope="module")
def wheel() -> Path:
    return release_file("dist/gpusage-*.whl")


@pytest.fixture(scope="module")
def released(wheel: Path) -> Iterator[Installation]:
    with tempfile.TemporaryDirectory(prefix="gpusage-wheel.", dir="/tmp") as folder:
        yield install_wheel(wheel, Path(folder), "[yarn]", desk=release_file("dist/gpusage_desk-*.whl"))


def release_file(pattern: str) -> Path:
    """Return the one file that `make packages` has made."""
    files = sorted(CHECKOUT.glob(pattern))
    assert len(files) == 1, f"make packages must leave one {pattern}; got {files}"
    return files[0]


def test_the_wheel_holds_the_jar_for_java_8(wheel: Path) -> None:
    with ZipFile(wheel) as outer:
        (name,) = (name for name in outer.namelist() if name.endswith(".jar"))
        with outer.open(name) as jar, ZipFile(jar) as inner:
            code = inner.read("org/gpusage/yarn/Plan.class")
    assert int.from_bytes(code[6:8], "big") == JAVA_8


def test_the_wheels_are_the_same_bytes_when_they_are_built_again(wheel: Path) -> None:
    wheels = (wheel, release_file("dist/gpusage_desk-*.whl"))
    before = [path.read_bytes() for path in wheels]
    subprocess.run(["make", "--silent", "wheel"], check=True, cwd=CHECKOUT)
    assert [path.read_bytes() for path in wheels] == before


def test_an_ordinary_user_predicts_with_the_wheel(released: Installation) -> None:
    assert "25.6 M parameters" in released.run("gpusage", "predict", "timm:resnet50", "--gpu", "v100").stdout
    assert released.run("gpusage", "yarn", "jar").stdout.strip().endswith(".jar")


@pytest.mark.parametrize(
    ("manager", "question", "answer"), [("slurm", "sinfo --noheader", "v100"), ("yarn", "yarn node -list", "RUNNING")]
)
def test_the_wheels_bring_up_a_sandbox_with_gpusage_in_it(
    released: Installation, manager: str, question: str, answer: str
) -> None:
    """As the user who runs the tests, whose cache it uses."""
    gpusage = ("gpusage", manager, "sandbox")
    released.run(*gpusage, "up", "--gpusage", "enforce", ordinary=False)
    try:
        assert answer in released.run(*gpusage, "shell", "--", *question.split(), ordinary=False).stdout
        status = released.run(*gpusage, "shell", "--", "gpusage", manager, "status", ordinary=False).stdout
        assert "enforce" in status
    finally:
        released.run(*gpusage, "down", ordinary=False)


def test_the_slurm_sandbox_fetches_patchelf_where_the_host_has_none(tmp_path: Path) -> None:
    program = fetch_patchelf(tmp_path)
    assert subprocess.run([program, "--version"], check=True, capture_output=True).stdout.startswith(b"patchelf")
    assert fetch_patchelf(tmp_path) == program


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc reads the manual pages; it is not installed")
def test_the_manual_pages_are_well_formed() -> None:
    pages = sorted(map(str, CHECKOUT.glob("build/man/*.1")))
    done = subprocess.run(["mandoc", "-Tlint", "-Wwarning", *pages], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    assert {"gpusage.1", "gpusaged.1", "gpusage-slurm-sandbox-up.1"} <= {Path(page).name for page in pages}


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb reads the deb; it is not installed")
def test_the_deb_holds_commands_unit_pages_and_completion() -> None:
    listed = subprocess.run(
        ["dpkg-deb", "--contents", release_file("dist/*.deb")], check=True, capture_output=True, text=True
    ).stdout
    names = {line.split()[5].removeprefix(".") for line in listed.splitlines()}
    assert names >= NAMES | {"/usr/share/zsh/vendor-completions/_gpusage"}
    assert not [name for name in names if "gpusage_planning" in name or "sandbox" in name]


@pytest.mark.skipif(shutil.which("rpm") is None, reason="rpm reads the rpm; it is not installed")
def test_the_rpm_holds_the_same() -> None:
    command = ["rpm", "--query", "--package", release_file("dist/*.rpm")]
    listed = subprocess.run([*command, "--list"], check=True, capture_output=True, text=True).stdout
    configured = subprocess.run([*command, "--configfiles"], check=True, capture_output=True, text=True).stdout
    assert set(listed.splitlines()) >= NAMES | {"/usr/share/zsh/site-functions/_gpusage"}
    assert configured.splitlines() == ["/etc/gpusage/gpusage.toml"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs a package, over a copy of this machine's files")
@pytest.mark.parametrize("kind", ["deb", "rpm"])
def test_the_package_is_installed_used_and_removed(kind: str) -> None:
    tool = {"deb": "dpkg", "rpm": "rpm"}[kind]
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} installs it; it is not installed")
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("this machine lets nobody have mounts of his own")
    command = ["unshare", "--mount", "sh", INSIDE, release_file(f"dist/*.{kind}"), *PLACES]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd="/")
    if done.returncode == 77:
        pytest.skip(f"this machine lets nobody mount an overlay: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "25.6 M parameters" in done.stdout
    assert "must not name gpusage any more" in done.stderr


def test_the_packages_settings_are_those_of_the_installer() -> None:
    """So that `gpusage slurm install` has nothing to change in them."""
    assert (CHECKOUT / "release" / "gpusage.toml").read_text() == site._toml(None, None)
