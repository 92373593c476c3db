"""Which HDFS Hadoop's configuration names; `tests/yarn/test_submit.py` puts files into a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusage_hooks.errors import RequestError
from gpusage_sandboxes.yarn.settings import render_configuration
from gpusage_yarn.submission.hdfs import find_hdfs


def configured(folder: Path, core: dict[str, str], hdfs: dict[str, str] | None = None) -> Path:
    (folder / "core-site.xml").write_text(render_configuration(core))
    (folder / "hdfs-site.xml").write_text(render_configuration(hdfs or {}))
    return folder


@pytest.mark.parametrize(
    ("url", "settings", "addresses"),
    [
        ("hdfs://nn:8020", {}, ("http://nn:9870",)),
        ("hdfs://nn", {"dfs.namenode.http-address": "0.0.0.0:50070"}, ("http://nn:50070",)),
        ("hdfs://nn", {"dfs.http.policy": "HTTPS_ONLY"}, ("https://nn:9871",)),
        (
            "hdfs://cluster",
            {
                "dfs.ha.namenodes.cluster": "a, b",
                "dfs.namenode.http-address.cluster.a": "one:9870",
                "dfs.namenode.http-address.cluster.b": "two:9870",
            },
            ("http://one:9870", "http://two:9870"),
        ),
    ],
)
def test_the_name_nodes_are_those_of_the_configuration(
    tmp_path: Path, url: str, settings: dict[str, str], addresses: tuple[str, ...]
) -> None:
    actual, why = find_hdfs(configured(tmp_path, {"fs.defaultFS": url}, settings), "alice")
    assert actual is not None
    assert (actual.url, actual.addresses, why) == (url, addresses, "")


def test_without_hdfs_files_are_where_they_lie(tmp_path: Path) -> None:
    assert find_hdfs(configured(tmp_path, {"fs.defaultFS": "file:///"}), "alice") == (None, "")
    assert find_hdfs(tmp_path / "none", "alice") == (None, "")


def test_an_hdfs_with_kerberos_is_left_alone_with_a_word(tmp_path: Path) -> None:
    core = {"fs.defaultFS": "hdfs://nn", "hadoop.security.authentication": "kerberos"}
    actual, why = find_hdfs(configured(tmp_path, core), "alice")
    assert actual is None
    assert why.startswith("a submission carries no delegation tokens for an HDFS with Kerberos")


def test_an_hdfs_that_does_not_answer_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    core = {"fs.defaultFS": "hdfs://127.0.0.1:1"}
    actual, _ = find_hdfs(configured(tmp_path, core, {"dfs.namenode.http-address": "127.0.0.1:1"}), "alice")
    assert actual is not None
    with pytest.raises(
        RequestError, match=r"^HDFS must take --file; got: http://127\.0\.0\.1:1: ConnectionError\. Check"
    ):
        actual.upload(tmp_path / "f")
