"""A third workload manager comes as a stranger's plugin: observed, asked, validated, shown and set up like ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpusage.graphs.card.text import encode
from gpusage.python.functions import read_model
from gpusage.service import client
from gpusage_hooks.errors import RequestError
from waiting import LIMIT_S

MODEL = Path(__file__).resolve().parents[2] / "examples/models/mobilenet_v3_large.onnx"
COMMENT = f"model={MODEL},batch=1,mode=infer,precision=fp32"
STATE = {"v100": {"count": 8, "free": 3}}


class Site:
    """A host with Toy, its plugin, and a gpusage.toml that --config or GPUSAGE_CONFIG names."""

    def __init__(self, folder: Path, plugin: Path) -> None:
        self.folder = folder
        self.settings = folder / "gpusage.toml"
        self.state = folder / "state.json"
        self.socket = folder / "s.sock"
        self.environment = {**os.environ, "PYTHONPATH": str(plugin)}
        self.state.write_text(json.dumps(STATE))
        self.configure(f'state = "{self.state}"')

    def configure(self, section: str) -> None:
        """Write gpusage.toml, with *section* below ``[toy]``."""
        daemon = f'[daemon]\nsocket = "{self.socket}"\nrefresh_s = 0.2\n[store]\nurl = "sqlite:///{self.folder}/d.db"\n'
        self.settings.write_text(f'mode = "enforce"\nkill_switch = "{self.folder}/off"\n{daemon}[toy]\n{section}\n')

    def gpusage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command with these settings."""
        environment = {**self.environment, "GPUSAGE_CONFIG": str(self.settings)}
        command = [sys.executable, "-m", "gpusage.cli", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.fixture(scope="module")
def plugin(install: Callable[[Path], Path]) -> Path:
    return install(Path(__file__).parent / "toy_manager")


@pytest.fixture
def site(plugin: Path) -> Iterator[Site]:
    """Yield a host; its folder's name is short, as a socket's must be."""
    with tempfile.TemporaryDirectory(prefix="toy-") as folder:
        yield Site(Path(folder), plugin)


@pytest.fixture
def daemon(site: Site) -> Iterator[Site]:
    """Yield a host whose gpusaged has seen Toy; only its --config names the settings."""
    command = [sys.executable, "-m", "gpusage.service.daemon", "--config", str(site.settings)]
    environment = {name: value for name, value in site.environment.items() if name != "GPUSAGE_CONFIG"}
    with (site.folder / "log").open("w+") as log, subprocess.Popen(command, env=environment, stderr=log) as process:
        try:
            _wait(lambda: "toy" in _status(site)["clusters"], process, site.folder / "log")
            yield site
        finally:
            process.terminate()


def test_it_is_observed_with_the_settings_and_the_catalogue_that_it_is_given(daemon: Site) -> None:
    cluster = _status(daemon)["clusters"]["toy"]
    pools = [(pool["site_type"], pool["gpu"], pool["free_gpu_count"]) for pool in cluster["pools"]]
    assert pools == [("v100", "v100-sxm2-16gb", 3)]


def test_it_is_asked_for_over_the_socket(daemon: Site) -> None:
    card = encode(read_model(str(MODEL)))
    fields = {"gpus": "1", "comment": COMMENT, "card": card, "user": "ada"}
    question = {"v": 1, "manager": "toy", "until_s": time.time() + 4, "fields": fields}
    answer = client.ask(daemon.socket, question, LIMIT_S)
    assert answer["code"] == "REWRITE", answer
    assert 1 <= int(answer["set.share"]) < 100


def test_status_shows_it_beside_the_others(daemon: Site) -> None:
    shown = daemon.gpusage("status")
    assert shown.returncode == 0, shown.stderr
    assert "\nToy 1.0, seen " in shown.stdout
    assert "  v100 (v100-sxm2-16gb): 3 of 8 free, shared in 100 units, memory limited by cap" in shown.stdout


def test_what_status_prints_is_a_cluster_file(daemon: Site) -> None:
    cluster, script = daemon.folder / "cluster.json", daemon.folder / "train.toy"
    cluster.write_text(daemon.gpusage("status", "--json").stdout)
    script.write_text("#!/bin/sh\n#TOY gpus=1\n")
    document = json.loads(daemon.gpusage("validate", str(script), "--cluster", str(cluster), "--json").stdout)
    assert document["cluster"]["origin"] == "file"
    assert [pool["gpu_count"] for pool in document["cluster"]["pools"]] == [8]


def test_validate_knows_its_scripts_and_its_cluster(site: Site) -> None:
    script = site.folder / "train.toy"
    script.write_text(f"#!/bin/sh\n#TOY gpus=1\n#TOY comment={COMMENT}\npython serve.py\n")
    document = json.loads(site.gpusage("validate", str(script), "--json").stdout)
    assert document["cluster"]["origin"] == "local"
    assert document["cluster"]["manager"] == "toy"
    (decision,) = document["decisions"]
    assert (decision["code"], decision["before"]) == ("REWRITE", "gpus=1")
    assert decision["after"].startswith("share=")


def test_validate_says_that_it_is_not_on_this_host(site: Site) -> None:
    site.state.unlink()
    script = site.folder / "train.toy"
    script.write_text("#!/bin/sh\n#TOY gpus=1\n")
    shown = site.gpusage("validate", str(script))
    assert "Example cluster" in shown.stdout
    assert "There is no Toy on this host." in shown.stdout


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ("limit_ms = 0", "Key 'toy.limit_ms' of configuration '{}' must be a number from 1 to 5000; got 0. Change it."),
        ("sate = ''", "Key 'toy.sate' of configuration '{}' must be a known one; got ''. Did you mean 'toy.state'?"),
        ("state = 1", "Key 'toy.state' of configuration '{}' must be a text; got 1. Change it."),
    ],
)
def test_a_mistake_in_its_section_is_one_sentence(site: Site, section: str, sentence: str) -> None:
    site.configure(section)
    shown = site.gpusage("validate", os.devnull)
    assert (shown.returncode, shown.stderr) == (1, f"gpusage: error: {sentence.format(site.settings)}\n")


def test_its_settings_are_shown_with_where_they_came_from(site: Site) -> None:
    document = json.loads(site.gpusage("yarn", "doctor", "--json").stdout)
    shown = {row["key"]: (row["value"], row["origin"]) for row in document["configuration"]}
    assert shown["toy.state"] == (str(site.state), str(site.settings))
    assert shown["toy.limit_ms"] == (100.0, "default")


def test_its_section_without_its_plugin_is_one_sentence(site: Site) -> None:
    del site.environment["PYTHONPATH"]
    shown = site.gpusage("validate", os.devnull)
    assert shown.returncode == 1
    assert f"Section [toy] of configuration '{site.settings}' must be gpusage's own or that of an" in shown.stderr
    assert shown.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("sound", "broken", "trouble"),
    [
        ("import json", "import no_such_module as json", "must be imported without an error"),
        (
            'state: str = "/var/lib/toy/state.json"',
            "state: str",
            "describe_manager must describe a manager: setting 'state' must have a default; got none.",
        ),
    ],
    ids=["import", "settings"],
)
def test_where_its_plugin_is_broken_its_section_stops_nothing(
    site: Site, plugin: Path, sound: str, broken: str, trouble: str
) -> None:
    """One sentence says what is wrong with the plugin; Slurm's scripts are judged all the same."""
    site.environment["PYTHONPATH"] = str(shutil.copytree(plugin, site.folder / "broken"))
    module = site.folder / "broken/toy_manager.py"
    module.write_text(module.read_text().replace(sound, broken))
    script = site.folder / "train.sbatch"
    script.write_text("#!/bin/sh\n#SBATCH --gres=gpu:1\n")
    shown = site.gpusage("validate", str(script))
    assert shown.returncode == 0
    assert shown.stderr.startswith("gpusage: warning: Plugin 'toy'")
    assert trouble in shown.stderr
    assert shown.stderr.count("\n") == 1
    assert "DECLINE: gres/gpu:1 is left as it is" in shown.stdout


def test_its_author_can_check_it(site: Site) -> None:
    script = "import toy_manager; from gpusage_hooks.checks import check_plugin; print(*check_plugin(toy_manager))"
    command = [sys.executable, "-c", script]
    checked = subprocess.run(command, env=site.environment, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert checked.stdout.split() == ["describe_manager", "observe_cluster", "parse_submission", "render_decision"]


def _status(site: Site) -> dict[str, Any]:
    return client.status(site.socket, LIMIT_S)


def _wait(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        with suppress(RequestError):
            if condition():
                return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline_s, log.read_text()
        time.sleep(0.05)
