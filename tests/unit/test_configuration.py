"""The site's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusage.configuration import Configuration, load_configuration, parse_configuration
from gpusage_hooks.errors import RequestError


def test_an_empty_file_means_all_defaults() -> None:
    assert parse_configuration("", origin="f") == Configuration()


def test_no_file_means_all_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GPUSAGE_CONFIG", raising=False)
    monkeypatch.setattr("gpusage.configuration.DEFAULT_PATH", tmp_path / "none.toml")
    assert load_configuration().mode == "observe"


def test_a_file_that_was_named_must_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUSAGE_CONFIG", str(tmp_path / "none.toml"))
    with pytest.raises(RequestError, match="must exist"):
        load_configuration()


def test_each_value_tells_where_it_came_from() -> None:
    text = 'mode = "enforce"\n[sharing]\nmaximum_percent = 60\n[daemon]\nrefresh_s = 5\n'
    configuration = parse_configuration(text, origin="site.toml")
    effective = {key: (value, origin) for key, value, origin in configuration.effective()}
    assert effective["mode"] == ("enforce", "site.toml")
    assert effective["sharing.maximum_percent"] == (60, "site.toml")
    assert effective["daemon.refresh_s"] == (5.0, "site.toml")
    assert effective["slo.enabled"] == (True, "default")
    assert configuration.rules.sharing.maximum_percent == 60


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('mod = "observe"', "Did you mean 'mode'"),
        ("[sharing]\nmaximum_percnt = 3", "Did you mean 'sharing.maximum_percent'"),
        ('mode = "force"', "one of observe, advise, enforce"),
        ('[sharing]\nmaximum_percent = "60"', "whole number"),
        ("[sharing]\nenabled = 1", "true or false"),
        ("sharing = 3", "a section"),
        ("[daemon]\nrefresh_s = -1", "at least 0"),
        ('[daemon]\nallowed_users = "root"', "list of texts"),
        ("mode =", "must be TOML"),
    ],
)
def test_a_mistake_gets_a_sentence_that_names_the_key(text: str, sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        parse_configuration(text, origin="site.toml")
