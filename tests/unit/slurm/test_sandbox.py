"""What the sandbox works out before it starts anything."""

from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path

import pytest

from gpusage.sandboxes.host import free_ports, private_folder, require_own
from gpusage.sandboxes.packages import parse_uris, require_apt
from gpusage.sandboxes.sources import Source, choose_source, parse_deb822, parse_one_line, render_deb822
from gpusage_hooks.errors import RequestError
from gpusage_slurm.sandbox import ClusterPlan, open_sandbox, parse_nodes
from gpusage_slurm.sandbox.installation import leave_login_alone, read_installation, slurm_version
from gpusage_slurm.sandbox.layout import Layout, render_cgroup_conf, render_gres_conf, render_node

LAYOUT = Layout(folder=Path("/s"))
DEBIAN = {"ID": "debian", "VERSION_CODENAME": "bookworm"}
MAIN = Source(uri="http://mirror/debian", suite="bookworm", components=("main", "contrib"))


def test_nodes_are_numbered_within_their_type() -> None:
    nodes = parse_nodes("2xv100:4, h100:8,1xv100:2")
    assert [(node.name, node.gpu_type, node.gpu_count) for node in nodes] == [
        ("v100-1", "v100", 4),
        ("v100-2", "v100", 4),
        ("h100-1", "h100", 8),
        ("v100-3", "v100", 2),
    ]


@pytest.mark.parametrize(
    "text", ["", "v100", "v100:0", "0xv100:1", "v100:4:4", "V100:4", "v100:4,,h100:1", "65xv100:1", "v100:65", "-x:1"]
)
def test_nodes_that_cannot_be_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(RequestError, match=r"Nodes must be .* Write, for example, 2xv100:4,1xh100:8"):
        parse_nodes(text)


def test_more_nodes_than_a_sandbox_holds_are_refused() -> None:
    with pytest.raises(RequestError, match="at most 64 nodes; got 65"):
        parse_nodes("64xv100:1,h100:1")


def test_gres_conf_shares_every_gpu_of_a_node() -> None:
    plan = ClusterPlan(nodes=parse_nodes("v100:2,h100:1"), mps_per_gpu=200)
    assert render_gres_conf(plan, LAYOUT).splitlines() == [
        "NodeName=v100-1 Name=gpu Type=v100 File=/s/gpus/v100-1/gpu[0-1]",
        "NodeName=v100-1 Name=mps Count=400 File=/s/gpus/v100-1/gpu[0-1] Flags=all_sharing",
        "NodeName=h100-1 Name=gpu Type=h100 File=/s/gpus/h100-1/gpu0",
        "NodeName=h100-1 Name=mps Count=200 File=/s/gpus/h100-1/gpu0 Flags=all_sharing",
    ]


def test_without_mps_no_configuration_mentions_it() -> None:
    plan = ClusterPlan(nodes=parse_nodes("v100:2"), mps_per_gpu=0)
    line = render_node(plan.nodes[0], plan, hostname="h", port=1)
    assert "mps" not in line + render_gres_conf(plan, LAYOUT)
    assert "Gres=gpu:v100:2 " in line


def test_cgroups_are_off_in_the_words_of_each_version() -> None:
    assert render_cgroup_conf((22, 5)) == "CgroupPlugin=cgroup/v1\n"
    assert render_cgroup_conf((23, 11)) == "CgroupPlugin=disabled\n"


def test_the_longest_folder_leaves_room_for_a_step_s_socket() -> None:
    plan = ClusterPlan(nodes=parse_nodes("10xrtx-6000-ada:1"))
    node = "rtx-6000-ada-10"
    assert plan.longest_folder + len(f"/spool/{node}/{node}_999999.4294967295") == 107


def test_a_folder_is_made_that_nobody_else_can_look_into(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "a" / "b", 1000)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").touch()
    with pytest.raises(RequestError, match="must be empty; it is not"):
        private_folder(tmp_path, 1000)


def test_a_folder_too_long_for_sockets_is_refused_before_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"at most 10 bytes, for the sockets in it; .* has \d+"):
        private_folder(tmp_path / "long", 10)
    assert not (tmp_path / "long").exists()


@pytest.mark.parametrize("name", ["with space", "with#hash", "with,comma", "brackets[0]", 'quote"'])
def test_a_folder_that_could_not_stand_in_slurm_conf_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError, match="must be a plain word"):
        private_folder(tmp_path / name, 1000)


def test_what_another_user_laid_out_is_not_run(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(tmp_path, 1, 1)
    theirs = tmp_path if os.geteuid() == 0 else Path("/")
    with pytest.raises(RequestError, match="must belong to the user"):
        require_own(theirs)


@pytest.mark.parametrize("record", ["", "{}", "[]", "null", '{"schema": "gpusage.slurm-sandbox/1"}'])
def test_a_folder_without_a_sandbox_cannot_be_opened(tmp_path: Path, record: str) -> None:
    (tmp_path / "sandbox.json").write_text(record)
    with pytest.raises(RequestError, match="must hold a sandbox; got none"):
        open_sandbox(tmp_path)


@pytest.mark.parametrize(
    ("change", "versions"),
    [({}, ["24.11.5"]), ({"schema": "x/1"}, []), ({"folder": "/elsewhere"}, []), ({"version": 24}, [])],
)
def test_an_installation_is_one_that_says_so_and_was_not_moved(
    change: dict[str, object], versions: list[str], tmp_path: Path
) -> None:
    known = {"schema": "gpusage.slurm-installation/1", "release": "trixie", "version": "24.11.5"}
    record = {**known, "folder": str(tmp_path), **change}
    (tmp_path / "installation.json").write_text(json.dumps(record))
    installation = read_installation(tmp_path)
    assert [each.version for each in (installation,) if each] == versions


def test_free_ports_differ_and_are_free() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_without_apt_one_sentence_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RequestError, match=r"needs apt-get and dpkg.* not found on PATH\. Run it on"):
        require_apt()


def test_apt_s_list_of_archives_is_read() -> None:
    text = (
        "Reading...\n'http://m/pool/m/munge.deb' munge_0.5_amd64.deb 100 SHA256:aa\n'http://m/x' x_1%3a2_all.deb 23 \n"
    )
    assert parse_uris(text) == {"munge_0.5_amd64.deb": 100, "x_1%3a2_all.deb": 23}


@pytest.mark.parametrize(
    ("name", "version"),
    [("slurmctld_22.05.8-4+deb12u3_amd64.deb", "22.05.8"), ("slurmctld_1%3a24.11.5-4_arm64.deb", "24.11.5")],
)
def test_slurm_s_version_stands_in_its_archive_s_name(name: str, version: str) -> None:
    assert slurm_version([Path("/c/munge_0.5_amd64.deb"), Path("/c") / name]) == version


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["slurmctld_20.11.7-1_amd64.deb"], "22.05 or newer; the release has 20.11.7"),
        (["munge_1_all.deb"], "bring slu"),
    ],
)
def test_a_release_without_a_slurm_for_us_is_refused(names: list[str], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        slurm_version([Path(name) for name in names])


def test_both_formats_of_apt_s_sources_mean_the_same() -> None:
    one_line = (
        "# deb http://no bookworm main\ndeb [arch=amd64 signed-by=/k.gpg] http://mirror/debian bookworm main contrib\n"
    )
    deb822 = (
        "# mirror\nTypes: deb deb-src\nURIs: http://mirror/debian\nSuites: bookworm\nComponents: main\n contrib\n"
        "Signed-By: /k.gpg\n\nTypes: deb\nEnabled: no\nURIs: http://no\nSuites: bookworm\nComponents: main\n"
    )
    assert list(parse_one_line(one_line)) == list(parse_deb822(deb822))


def test_a_source_that_is_written_is_read_back() -> None:
    source = Source(uri="http://m", suite="forky", components=("main",), verification=(("Signed-By", "/k.gpg"),))
    assert list(parse_deb822(render_deb822(source))) == [source]


def test_a_release_comes_from_the_host_s_own_mirror() -> None:
    sources = [
        Source(uri="http://vendor", suite="stable", components=("main",)),
        Source(uri="http://mirror/debian", suite="bookworm-updates", components=("main",)),
        MAIN,
    ]
    assert choose_source(sources, DEBIAN, None).suite == "bookworm"
    chosen = choose_source(sources, DEBIAN, "trixie")
    assert (chosen.uri, chosen.suite, chosen.components) == ("http://mirror/debian", "trixie", ("main",))


def test_on_ubuntu_slurm_is_in_universe() -> None:
    own = Source(uri="http://u", suite="noble", components=("main", "universe"))
    assert choose_source([own], {"ID": "ubuntu", "VERSION_CODENAME": "noble"}, None).components == ("main", "universe")


def test_a_host_whose_apt_knows_no_archive_is_told_so() -> None:
    with pytest.raises(RequestError, match="got 1 sources, none such"):
        choose_source([Source(uri="http://v", suite="x/", components=())], DEBIAN, None)


def test_slurmd_is_changed_in_exactly_one_place_or_refused(tmp_path: Path) -> None:
    slurmd = tmp_path / "slurmd"
    asks, passes = b"SLURM_GET_USER_ENV=1\0", b"SLURM_GET_USER_ENV=-\0"
    slurmd.write_bytes(b"a" + asks + b"SLURM_GET_USER_ENV=10")
    leave_login_alone(slurmd)
    assert slurmd.read_bytes() == b"a" + passes + b"SLURM_GET_USER_ENV=10"
    for text in (slurmd.read_bytes(), asks * 2):
        slurmd.write_bytes(text)
        with pytest.raises(RequestError, match="in one place; found"):
            leave_login_alone(slurmd)
        assert slurmd.read_bytes() == text
