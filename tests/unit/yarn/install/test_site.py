"""What installing changes in Hadoop's files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from gpusage.boundary.edits import make_edits
from gpusage_hooks.errors import RequestError
from gpusage_yarn.cluster.configuration import (
    CALCULATOR,
    CLASSES,
    LISTENERS,
    PROCESSORS,
    RULES,
    SAMPLER,
    SERVICES,
    TYPES,
    read_settings,
)
from gpusage_yarn.doctor.inspection import read_sampler_command
from gpusage_yarn.install.site import (
    Role,
    Site,
    find_site,
    installation_notes,
    plan_installation,
    plan_uninstallation,
    with_item,
)
from gpusage_yarn.install.xml_block import with_block, without_block

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

YARN_SITE = """\
<?xml version="1.0"?>
<!-- the site's; </configuration> is not its end -->
<configuration>
  <property> <!-- why -->
    <name>yarn.scheduler.queue-placement-rules</name>
    <value>app-name,user-group</value>
  </property>
  <property><name>yarn.nodemanager.aux-services</name><value>mapreduce_shuffle</value></property>
</configuration>
<!-- end -->
"""
SCHEDULER = "<configuration><property><name>a</name><value>b</value></property></configuration>"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("GPUSAGE_CONFIG", str(tmp_path / "gpusage.toml"))
    monkeypatch.setenv("GPUSAGE_LIBEXEC", str(tmp_path / "libexec"))
    (tmp_path / "yarn-site.xml").write_text(YARN_SITE)
    (tmp_path / "capacity-scheduler.xml").write_text(SCHEDULER)
    return find_site(tmp_path, gpus=4, mps_command="/opt/gpusage-mps")


def settings(site: Site, name: str) -> dict[str, str]:
    return read_settings(site.folder / name)


def test_our_classes_join_those_of_the_site(site: Site) -> None:
    make_edits(plan_installation(site))
    actual = settings(site, "yarn-site.xml")
    assert actual[RULES] == f"{CLASSES[RULES]},app-name,user-group"
    assert actual[PROCESSORS] == CLASSES[PROCESSORS]
    assert actual[LISTENERS] == CLASSES[LISTENERS]
    assert actual[SERVICES] == "mapreduce_shuffle,gpusage_mps"
    assert actual["yarn.nodemanager.resource-type.gpusage.io/share"] == "400"
    assert actual[SAMPLER] == f"{site.libexec}/gpusage-python gpusage_yarn.usage.node"
    assert settings(site, "capacity-scheduler.xml")[CALCULATOR] == CLASSES[CALCULATOR]
    assert settings(site, "resource-types.xml")[TYPES] == "gpusage.io/share"
    assert 'mode = "observe"' in site.gpusage_toml.read_text()


def test_the_sampler_of_the_site_stays(site: Site) -> None:
    path = site.folder / "yarn-site.xml"
    theirs = f"<property><name>{SAMPLER}</name><value>/site/sampler</value></property></configuration>"
    path.write_text(path.read_text().replace("</configuration>", theirs))
    make_edits(plan_installation(site))
    assert (settings(site, path.name)[SAMPLER], read_sampler_command(site.folder)) == ("/site/sampler", "/site/sampler")


def test_what_a_node_runs_is_a_copy_that_needs_no_package(site: Site, tmp_path: Path) -> None:
    make_edits(plan_installation(site))
    assert {path.name for path in site.libexec.iterdir()} == {
        "gpusage-mps",
        "gpusage-wall",
        "probe.py",
        "gpusage-python",
    }
    assert all(os.access(path, os.X_OK) for path in site.libexec.iterdir())
    command = [str(site.libexec / "gpusage-python"), "json.tool", "--help"]
    assert "usage" in subprocess.run(command, check=True, capture_output=True, text=True).stdout
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 1\n")  # as one without gpusage
    bare.chmod(0o755)
    for python in (bare, tmp_path / "gone"):
        done = subprocess.run(command, check=True, capture_output=True, env={"GPUSAGE_PYTHON": str(python)})
        assert (done.stdout, done.stderr) == (b"", b"")


def test_only_a_node_gets_copies(site: Site) -> None:
    make_edits(plan_installation(find_site(site.folder, frozenset({"rm", "client"}))))
    assert not site.libexec.exists()


@pytest.mark.parametrize("wanted", ["true", "false"])
def test_one_setting_lets_users_share_a_gpu_as_on_slurm(site: Site, wanted: str) -> None:
    site.gpusage_toml.write_text(f"[sharing]\nacross_users = {wanted}\n")
    make_edits(plan_installation(site))
    assert settings(site, "yarn-site.xml").get("gpusage.node.across-users", "false") == wanted


def test_a_second_installation_changes_nothing(site: Site) -> None:
    make_edits(plan_installation(site))
    assert not any(edit.changes for edit in plan_installation(site))


def test_uninstalling_gives_each_file_its_own_bytes_again(site: Site) -> None:
    before = {path.name: path.read_bytes() for path in site.folder.iterdir()}
    make_edits(plan_installation(site))
    make_edits(plan_uninstallation(site))
    assert site.libexec.is_dir()  # a NodeManager that has not restarted yet runs what lies there
    assert {path.name: path.read_bytes() for path in site.folder.iterdir() if path != site.libexec} == before


def test_what_the_site_changed_meanwhile_stays(site: Site) -> None:
    make_edits(plan_installation(site))
    path = site.folder / "yarn-site.xml"
    path.write_text(path.read_text().replace("app-name,", "").replace("<!-- why -->", ""))
    make_edits(plan_uninstallation(site))
    assert path.read_text() == YARN_SITE.replace("app-name,", "").replace("<!-- why -->", "")


def test_a_new_installation_follows_what_the_site_changed(site: Site) -> None:
    make_edits(plan_installation(site))
    path = site.folder / "yarn-site.xml"
    path.write_text(path.read_text().replace("<value>app-name,user-group</value>", "<value>user</value>"))
    make_edits(plan_installation(site))
    assert settings(site, "yarn-site.xml")[RULES] == f"{CLASSES[RULES]},user"


def test_each_host_gets_what_its_daemons_read(site: Site) -> None:
    node = find_site(site.folder, frozenset({"node"}))
    make_edits(plan_installation(node))
    _, mark, block = (site.folder / "yarn-site.xml").read_text().partition(">>> gpusage")
    assert mark
    assert RULES not in block
    assert CALCULATOR not in settings(site, "capacity-scheduler.xml")
    assert not site.gpusage_toml.exists()


def test_the_roles_of_one_host_add_up_in_any_order(site: Site) -> None:
    before = {path.name: path.read_bytes() for path in site.folder.iterdir()}
    hosts: list[Role] = ["rm", "node", "client"]
    for role in (*hosts, "rm"):
        make_edits(plan_installation(replace(site, roles=frozenset({role}))))
    both = settings(site, "yarn-site.xml")
    assert {RULES, LISTENERS, SAMPLER, "gpusage.daemon.socket", "gpusage.node.mps-command"} <= both.keys()
    assert settings(site, "capacity-scheduler.xml")[CALCULATOR] == CLASSES[CALCULATOR]
    for role in hosts:
        assert not any(edit.changes for edit in plan_installation(replace(site, roles=frozenset({role}))))

    # What a role has no more goes, and so does what the site has taken up itself.
    own = f"<property><name>{TYPES}</name><value>gpusage.io/share,x/y</value></property>\n</configuration>\n<!-- end"
    path = site.folder / "yarn-site.xml"
    path.write_text(path.read_text().replace("</configuration>\n<!-- end", own))
    make_edits(plan_installation(replace(site, roles=frozenset({"node"}), mps_command="")))
    assert both.keys() - settings(site, path.name).keys() == {
        "gpusage.node.mps-command",
        f"{SERVICES}.gpusage_mps.class",
    }
    assert TYPES not in settings(site, "resource-types.xml")
    make_edits(plan_uninstallation(site))
    path.write_text(path.read_text().replace(own, "</configuration>\n<!-- end"))
    assert {path.name: path.read_bytes() for path in site.folder.iterdir() if path != site.libexec} == before


def test_what_every_role_has_follows_gpusage_toml_whatever_the_role(site: Site) -> None:
    alone = replace(site, roles=frozenset({"rm"}), gpus=None, mps_command="")
    for first in (alone, site):
        site.gpusage_toml.write_text('[yarn]\nshare_resource = "site/gpu-share"\n')
        make_edits(plan_installation(first))
        assert settings(site, "yarn-site.xml")["gpusage.share.resource"] == "site/gpu-share"
        site.gpusage_toml.write_text("")
        make_edits(plan_installation(alone))
        assert "gpusage.share.resource" not in settings(site, "yarn-site.xml")
        assert settings(site, "resource-types.xml") == {
            TYPES: "gpusage.io/share",
            f"{TYPES}.gpusage.io/share.maximum-allocation": "1600",
        }

    # What the node's own installation was told is told of the share as it is named now.
    both = settings(site, "yarn-site.xml")
    offers = {key: value for key, value in both.items() if key.startswith("yarn.nodemanager.resource-type.")}
    assert offers == {"yarn.nodemanager.resource-type.gpusage.io/share": "400"}
    assert both["gpusage.node.mps-command"] == "/opt/gpusage-mps"


def test_what_the_site_changed_is_checked_for_each_role_of_its_host(site: Site) -> None:
    make_edits(plan_installation(site))
    rm = find_site(site.folder, frozenset({"rm"}))
    path = site.folder / "yarn-site.xml"
    text = path.read_text()

    def add(name: str, rest: str) -> None:
        path.write_text(
            text.replace("<configuration>", f"<configuration><property><name>{name}</name>{rest}</property>", 1)
        )

    add(LISTENERS, "<value>org.site.Audit</value>")
    make_edits(plan_installation(rm))
    assert settings(site, path.name)[LISTENERS] == f"org.site.Audit,{CLASSES[LISTENERS]}"
    add(LISTENERS, "<value>org.site.Audit</value><final>true</final>")
    with pytest.raises(RequestError, match=r"listener\.classes' in .* must not be final"):
        plan_installation(rm)
    add("yarn.nodemanager.resource-plugins", "<value>yarn.io/gpu</value>")
    with pytest.raises(RequestError, match="must be offered once"):
        plan_installation(rm)


@pytest.mark.parametrize(("gone", "stays"), [("rm", "node"), ("node", "rm"), ("client", "rm")])
def test_uninstalling_one_role_leaves_the_other(site: Site, gone: Role, stays: Role) -> None:
    before = {path.name: path.read_bytes() for path in site.folder.iterdir()}
    last = replace(site, roles=frozenset({stays}))
    make_edits(plan_installation(last))
    alone = {name: settings(site, name) for name in ("yarn-site.xml", "capacity-scheduler.xml", "resource-types.xml")}
    make_edits(plan_installation(replace(site, roles=frozenset({gone}))))
    make_edits(plan_uninstallation(replace(site, roles=frozenset({gone}))))
    assert {name: settings(site, name) for name in alone} == alone
    assert site.gpusage_toml.exists() == (stays == "rm")
    make_edits(plan_uninstallation(last))
    assert {path.name: path.read_bytes() for path in site.folder.iterdir() if path != site.libexec} == before


def test_lists_that_stand_in_an_included_file_keep_their_items(site: Site) -> None:
    """Our block wins over the included file: what it forgot would be gone, mapreduce_shuffle for example."""
    included = site.folder / "shuffle.xml"
    included.write_text(YARN_SITE)
    include = '<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="shuffle.xml"/>'
    (site.folder / "yarn-site.xml").write_text(f"<configuration>{include}</configuration>")
    make_edits(plan_installation(site))
    assert settings(site, "yarn-site.xml")[SERVICES] == "mapreduce_shuffle,gpusage_mps"
    assert settings(site, "yarn-site.xml")[RULES] == f"{CLASSES[RULES]},app-name,user-group"
    assert included.read_text() == YARN_SITE

    included.write_text(YARN_SITE.replace("shuffle</value>", "shuffle</value><final>true</final>"))
    with pytest.raises(RequestError, match=r"aux-services' in '.*/shuffle\.xml' must not be final"):
        plan_installation(site)


def test_resource_types_that_stand_in_yarn_site_stay(site: Site) -> None:
    own = f"<property><name>{TYPES}</name><value>yarn.io/gpu</value></property>\n</configuration>\n<!-- end"
    text = YARN_SITE.replace("</configuration>\n<!-- end", own)
    (site.folder / "yarn-site.xml").write_text(text)
    make_edits(plan_installation(site))
    assert settings(site, "resource-types.xml")[TYPES] == "yarn.io/gpu,gpusage.io/share"


@pytest.mark.parametrize(("theirs", "notes"), [("", 1), ("Default", 1), ("Dominant", 0)])
def test_an_admin_is_told_where_vcores_count_from_now_on(site: Site, theirs: str, notes: int) -> None:
    if theirs:
        name = f"org.apache.hadoop.yarn.util.resource.{theirs}ResourceCalculator"
        with_property(site, "capacity-scheduler.xml", CALCULATOR, name)
    make_edits(plan_installation(site))
    assert settings(site, "capacity-scheduler.xml")[CALCULATOR] == CLASSES[CALCULATOR]
    vcores = [note for note in installation_notes(site) if "yarn.nodemanager.resource.cpu-vcores" in note]
    assert len(vcores) == notes


def test_the_site_s_own_calculator_is_left_alone(site: Site) -> None:
    own = f"<configuration><property><name>{CALCULATOR}</name><value>org.site.Own</value></property></configuration>"
    (site.folder / "capacity-scheduler.xml").write_text(own)
    make_edits(plan_installation(site))
    assert settings(site, "capacity-scheduler.xml")[CALCULATOR] == "org.site.Own"


def with_property(site: Site, file: str, name: str, value: str) -> None:
    path = site.folder / file
    text = path.read_text() if path.exists() else SCHEDULER
    line = f"<property><name>{name}</name><value>{value}</value></property></configuration>"
    path.write_text(line.join(text.rsplit("</configuration>", 1)))


@pytest.mark.parametrize(
    ("file", "name", "value"),
    [
        ("yarn-site.xml", "yarn.nodemanager.resource-plugins", "yarn.io/fpga, yarn.io/gpu"),
        ("yarn-site.xml", "yarn.nodemanager.resource-type.yarn.io/gpu", "4"),
        ("node-resources.xml", "yarn.nodemanager.resource-type.yarn.io/gpu", "4"),
    ],
)
def test_gpus_that_are_on_offer_whole_are_not_offered_again(site: Site, file: str, name: str, value: str) -> None:
    with_property(site, file, name, value)
    with pytest.raises(RequestError, match=rf"must be offered once; {name} in {file} offers them whole"):
        plan_installation(site)
    assert plan_installation(find_site(site.folder, frozenset({"rm"})))
    with_property(site, "yarn-site.xml", "gpusage.node.gpus", "0,1")
    with_property(site, "yarn-site.xml", "yarn.nodemanager.resource-plugins.gpu.allowed-gpu-devices", "2:2,3:3")
    assert plan_installation(site)


def test_a_scheduler_that_does_not_ask_us_is_refused_on_every_host(site: Site) -> None:
    name = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fair.FairScheduler"
    with_property(site, "yarn-site.xml", "yarn.resourcemanager.scheduler.class", name)
    for role in get_args(Role):
        with pytest.raises(RequestError, match=r"must be the CapacityScheduler, .*class is .*\.FairScheduler\."):
            plan_installation(find_site(site.folder, frozenset({role})))


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("yarn.nodemanager.runtime.linux.allowed-runtimes", "default, docker", "must run outside Docker .* docker"),
        ("gpusage.share.for-whole-gpus", "False", "must give whole GPUs as well, .* is false"),
    ],
)
def test_a_site_where_shares_cannot_do_what_they_promise_is_refused(
    site: Site, name: str, value: str, sentence: str
) -> None:
    with_property(site, "yarn-site.xml", name, value)
    assert plan_installation(find_site(site.folder, frozenset({"rm"}), gpus=4))
    with pytest.raises(RequestError, match=sentence):
        plan_installation(find_site(site.folder, frozenset({"node"}), gpus=4))


def test_what_yarn_has_by_itself_is_no_reason_to_refuse(site: Site) -> None:
    scheduler = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler"
    with_property(site, "yarn-site.xml", "yarn.resourcemanager.scheduler.class", scheduler)
    with_property(site, "yarn-site.xml", "yarn.nodemanager.runtime.linux.allowed-runtimes", "default")
    with_property(site, "yarn-site.xml", "gpusage.share.for-whole-gpus", "true")
    assert plan_installation(site)


def test_a_queue_with_absolute_resources_and_no_shares_is_told_with_what_to_add(site: Site) -> None:
    root = "yarn.scheduler.capacity.root"
    for name, value in {
        f"{root}.capacity": "100",
        f"{root}.cpu.capacity": "[memory=10,vcores=1]",
        f"{root}.old.capacity": "[memory=10,vcores=1,yarn.io/gpu=1]",
        f"{root}.lab.vision.accessible-node-labels.v100.capacity": "[ memory=10, vcores=1]",
        f"{root}.lab.text.accessible-node-labels.v100.capacity": "[memory=10,vcores=1,gpusage.io/share=100]",
    }.items():
        with_property(site, "capacity-scheduler.xml", name, value)
    assert [re.findall(r"'?(root[.\w]*)'? must have", text) for text in installation_notes(site)] == [
        ["root.old"],
        ["root.lab.vision"],
        [],  # on vcores
        [],  # on isolation
    ]
    assert (
        "accessible-node-labels.v100.capacity has none. Add gpusage.io/share=100 for each GPU"
        in installation_notes(site)[1]
    )
    (isolation,) = installation_notes(find_site(site.folder, frozenset({"node"})))
    assert "one that asked for none no GPU (gpusage.node.hide-gpus); nvidia-smi shows all GPUs" in isolation


def test_a_property_that_is_final_is_the_admin_s_to_set(site: Site) -> None:
    path = site.folder / "yarn-site.xml"
    path.write_text(YARN_SITE.replace("user-group</value>", "user-group</value><final>true</final>"))
    with pytest.raises(RequestError, match=r"queue-placement-rules' in '.*/yarn-site\.xml' must not be final"):
        plan_installation(site)


@pytest.mark.parametrize("text", ["", "<configuration>", "<configuration/>", "no xml"])
def test_a_file_that_cannot_be_added_to_is_refused(site: Site, text: str) -> None:
    (site.folder / "capacity-scheduler.xml").write_text(text)
    with pytest.raises(RequestError, match="Fix it"):
        plan_installation(site)


def test_a_folder_without_a_configuration_is_told(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"must hold yarn-site\.xml; .* Name it with --conf-dir"):
        find_site(tmp_path)


@pytest.mark.parametrize(
    "text", [None, YARN_SITE, SCHEDULER, "<configuration>\r\n</configuration>\r\n", "<configuration></configuration >"]
)
def test_a_block_leaves_no_trace(text: str | None) -> None:
    first = with_block(text, {"a": "<&>", "b": "2"}, "f")
    assert first is not None
    assert with_block(first, {"a": "<&>", "b": "2"}, "f") == first
    assert without_block(first) == text


def test_values_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "f").write_text(with_block(None, {"a<b": "c&d"}, "f") or "")
    assert read_settings(tmp_path / "f") == {"a<b": "c&d"}


@pytest.mark.parametrize(
    "text",
    [
        'kill_switch = "/x"\n[daemon]\n',
        '# ours\nmode = "observe" # for now\n[yarn]\n',
        "mode = 'advise'",
        'mode = "enforce"\n',
    ],
)
def test_a_mode_that_was_there_comes_back(site: Site, text: str) -> None:
    site.gpusage_toml.parent.mkdir(parents=True, exist_ok=True)
    site.gpusage_toml.write_text(text)
    for mode in ("enforce", "advise", None, "enforce"):
        make_edits(plan_installation(site, mode))  # type: ignore[arg-type]
    assert tomllib.loads(site.gpusage_toml.read_text())["mode"] == "enforce"
    assert not any(edit.changes for edit in plan_installation(site, "enforce"))
    make_edits(plan_uninstallation(site))
    assert site.gpusage_toml.read_text() == text


def test_a_mode_that_the_site_changed_after_us_stays(site: Site) -> None:
    site.gpusage_toml.parent.mkdir(parents=True, exist_ok=True)
    site.gpusage_toml.write_text('mode = "observe"\n')
    make_edits(plan_installation(site, "enforce"))
    site.gpusage_toml.write_text(site.gpusage_toml.read_text().replace('\nmode = "enforce"', '\nmode = "advise"'))
    make_edits(plan_uninstallation(site))
    assert site.gpusage_toml.read_text() == 'mode = "advise"\n'


def test_an_item_joins_a_list_once() -> None:
    assert with_item("", "x", default="d", first=True) == "x,d"
    assert with_item("a, x", "x") == "a,x"
    assert with_item("a", "x") == "a,x"
