"""gpusage installed from a wheel into an environment of its own, called far from this checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
NOBODY = 65534
PASSED_ON = ("GPUSAGE_CACHE", "SSL_CERT_FILE", "PIP_CERT", "http_proxy", "https_proxy", "no_proxy", "JAVA_HOME")


@dataclass(frozen=True, kw_only=True)
class Installation:
    """A virtual environment that holds gpusage, and a home for who uses it."""

    folder: Path

    def run(self, *command: str, ordinary: bool = True, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment in the home; as an ordinary user, unless not wanted."""
        home = self.folder / "home"
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        path = f"{self.folder / 'venv' / 'bin'}:/usr/local/bin:/usr/bin:/bin"
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if ordinary and os.geteuid() == 0 else {}
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            cwd=home,
            env={**environment, "PATH": path, "HOME": str(home), "LANG": "C.UTF-8"},
            **user,
        )
        if check and done.returncode != 0:
            pytest.fail(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done


def build(target: str, folder: Path, *, checkout: Path) -> None:
    """Build a wheel or an sdist of *checkout* into *folder*."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=checkout)
    assert done.returncode == 0, done.stderr


def install_wheel(wheel: Path, folder: Path, extras: str = "", desk: Path | None = None) -> Installation:
    """Install *wheel*, and that of *desk*, into a new environment below *folder*; skip where there is no uv."""
    uv = shutil.which("uv", path=f"{os.environ['PATH']}:{Path.home() / '.local' / 'bin'}")
    if uv is None:
        pytest.skip("uv makes the environment; it is not installed")
    folder.chmod(0o755)
    folder.joinpath("home").mkdir()
    folder.joinpath("home").chmod(0o777)
    venv = folder / "venv"
    # A Python that everyone may run: that of a developer is often below a home.
    subprocess.run([uv, "venv", "--quiet", "--python", _python(), str(venv)], check=True)
    into = [uv, "pip", "install", "--quiet", "--python", str(venv / "bin" / "python")]
    wheels = [f"gpusage{extras} @ file://{wheel}", *([f"gpusage-desk @ file://{desk}"] if desk else [])]
    subprocess.run([*into, *wheels], check=True)
    return Installation(folder=folder)


def _python() -> str:
    usual = "/usr/bin/python3"
    enough = ["-c", "import sys; sys.exit(sys.version_info < (3, 10))"]
    return usual if subprocess.run([usual, *enough], check=False).returncode == 0 else sys.executable
