"""Where ResourceManagers are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusage_hooks.errors import RequestError
from gpusage_yarn.cluster.configuration import addresses_of, find_addresses, require_addresses
from gpusage_yarn.settings import YarnSettings

RM = "yarn.resourcemanager"
PAIR = {f"{RM}.ha.enabled": "true", f"{RM}.ha.rm-ids": "a, b", f"{RM}.hostname.a": "one", f"{RM}.hostname.b": "two"}


@pytest.mark.parametrize(
    ("settings", "addresses"),
    [
        ({f"{RM}.webapp.address": "rm:80"}, ("http://rm:80",)),
        ({f"{RM}.hostname": "rm"}, ("http://rm:8088",)),
        ({f"{RM}.hostname": "rm", "yarn.http.policy": "HTTPS_ONLY"}, ("https://rm:8090",)),
        (PAIR, ("http://one:8088", "http://two:8088")),
        ({f"{RM}.hostname": "rm", f"{RM}.webapp.address": "0.0.0.0:80"}, ("http://rm:80",)),
        ({**PAIR, f"{RM}.ha.enabled": "TRUE"}, ("http://one:8088", "http://two:8088")),
        ({**PAIR, f"{RM}.webapp.address.b": "two:9"}, ("http://one:8088", "http://two:9")),
        ({}, ()),
    ],
)
def test_addresses_are_hadoop_s_own(settings: dict[str, str], addresses: tuple[str, ...]) -> None:
    assert addresses_of(settings) == addresses


def site(folder: Path, *properties: str) -> YarnSettings:
    (folder / "yarn-site.xml").write_text(f"<configuration>{''.join(properties)}</configuration>")
    return YarnSettings(conf_dir=str(folder))


def entry(name: str, value: str, more: str = "") -> str:
    return f"<property><name> {name} </name><value>{value}</value>{more}</property>"


def test_variables_are_filled_in(tmp_path: Path) -> None:
    settings = site(tmp_path, entry(f"{RM}.hostname", "rm"), entry(f"{RM}.webapp.address", f"${{{RM}.hostname}}:1"))
    assert find_addresses(settings) == ("http://rm:1",)


def test_variables_of_the_environment_are_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RM_HOST", "rm")
    settings = site(tmp_path, entry(f"{RM}.webapp.address", "${env.RM_HOST}:${env.NO_PORT:-8}"))
    assert find_addresses(settings) == ("http://rm:8",)


def test_included_files_and_attributes_are_read_as_hadoop_reads_them(tmp_path: Path) -> None:
    """Relative to the file that includes them, in their place: what follows wins."""
    xi = 'xmlns:xi="http://www.w3.org/2001/XInclude"'
    (tmp_path / "hosts.xml").write_text(
        f'<configuration><property name="{RM}.hostname" value="rm"/>'
        f'<property name="{RM}.webapp.address" value="old:1"/></configuration>'
    )
    lacking = f"<xi:include {xi} href='none.xml'><xi:fallback>{entry('a', 'b')}</xi:fallback></xi:include>"
    here = (f"<xi:include {xi} href='hosts.xml'/>", lacking, entry(f"{RM}.webapp.address", f"${{{RM}.hostname}}:2"))
    assert find_addresses(site(tmp_path, *here)) == ("http://rm:2",)

    (tmp_path / "hosts.xml").unlink()
    with pytest.raises(RequestError, match=r"yarn-site.xml' must include files that are there; .*hosts.xml' is not"):
        find_addresses(site(tmp_path, *here))
    with pytest.raises(RequestError, match="must not include itself"):
        find_addresses(site(tmp_path, f"<xi:include {xi} href='yarn-site.xml'/>"))


def test_the_last_value_is_in_force_unless_an_earlier_one_is_final(tmp_path: Path) -> None:
    name = f"{RM}.hostname"
    assert find_addresses(site(tmp_path, entry(name, "a"), entry(name, "b"))) == ("http://b:8088",)
    final = "<final>true</final>"
    assert find_addresses(site(tmp_path, entry(name, "a", final), entry(name, "b"))) == ("http://a:8088",)


def test_what_is_named_comes_first(tmp_path: Path) -> None:
    settings = site(tmp_path, entry(f"{RM}.hostname", "rm"))
    assert find_addresses(settings, ["other:1", "https://x"]) == ("http://other:1", "https://x")
    set_here = YarnSettings(conf_dir=str(tmp_path), rm_urls=("http://y",))
    assert find_addresses(set_here) == ("http://y",)


def test_none_at_all_is_told_with_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"got none from .*yarn-site\.xml\. Set HADOOP_CONF_DIR"):
        require_addresses(YarnSettings(conf_dir=str(tmp_path)))


def test_a_file_that_is_no_xml_is_told(tmp_path: Path) -> None:
    (tmp_path / "yarn-site.xml").write_text("<configuration>")
    with pytest.raises(RequestError, match="must be readable XML"):
        find_addresses(YarnSettings(conf_dir=str(tmp_path)))
