"""The site's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusage.settings.configuration import Configuration
from gpusage.settings.configuration_file import load_configuration, parse_configuration
from gpusage_hooks.errors import RequestError
from gpusage_yarn.settings import YarnSettings


def test_an_empty_file_means_all_defaults() -> None:
    assert parse_configuration("", origin="f", managers={}) == Configuration()


def test_no_file_means_all_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GPUSAGE_CONFIG", raising=False)
    monkeypatch.setattr("gpusage.settings.configuration_file.DEFAULT_PATH", tmp_path / "none.toml")
    assert load_configuration().mode == "observe"


def test_a_file_that_was_named_must_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUSAGE_CONFIG", str(tmp_path / "none.toml"))
    with pytest.raises(RequestError, match="must exist"):
        load_configuration()


def test_each_value_tells_where_it_came_from() -> None:
    text = 'mode = "enforce"\n[sharing]\nmaximum_partners = 6\n[daemon]\nrefresh_s = 5\n'
    configuration = parse_configuration(text, origin="site.toml")
    effective = {key: (value, origin) for key, value, origin in configuration.effective()}
    assert effective["mode"] == ("enforce", "site.toml")
    assert effective["sharing.maximum_partners"] == (6, "site.toml")
    assert effective["daemon.refresh_s"] == (5.0, "site.toml")
    assert effective["slo.enabled"] == (True, "default")
    assert configuration.rules.sharing.maximum_partners == 6


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('mod = "observe"', "Did you mean 'mode'"),
        ("[sharing]\nmaximum_partnrs = 3", "Did you mean 'sharing.maximum_partners'"),
        ('mode = "force"', "one of observe, advise, enforce"),
        ('[sharing]\nmaximum_partners = "6"', "whole number"),
        ("[sharing]\nenabled = 1", "true or false"),
        ("sharing = 3", "a section"),
        ("[daemon]\nrefresh_s = -1", "a number from 0.1 to 3600; got -1"),
        ("[daemon]\nstale_after_s = -1", "a number of at least 0; got -1"),
        ("[daemon]\nstale_after_s = inf", "a number of at least 0; got inf"),
        ("[daemon]\nstale_after_s = nan", "a number of at least 0; got nan"),
        ("[store]\nkeep_days = 2.5", "a whole number of at least 0; got 2.5"),
        ("[store]\nkeep_days = true", "a whole number of at least 0; got True"),
        ("[store]\nurl = 1979-05-27", "a text; got datetime.date"),
        ('[daemon]\nallowed_users = "root"', "list of texts"),
        ("[sharing]\nsizes = [50, 100]", "whole numbers, each from 1 to 99"),
        ("[sharing]\nsizes = 50", "a list of whole numbers"),
        ("[sharing]\nmaximum_slowdown = 0.9", "a number from 1 to 100"),
        ('[sharing]\nbind = "rom"', "one of room, never, always"),
        ("mode =", "must be TOML"),
        ("[slrum]\nlimit_ms = 3", "Did you mean 'slurm'"),
        ("[slurm]\nlimit = 3", "Did you mean 'slurm.limit_ms'"),
        ("[slurm]\nlimit_ms = 0", "'slurm.limit_ms' .* a number from 1 to 1000; got 0"),
        ("[yarn]\nrm_urls = 'rm'", "'yarn.rm_urls' .* list of texts"),
        ("[pbs]\nserver = 'x'", r"Section \[pbs\] .* no plugin describes. Known are .* yarn. Install"),
        ("[managers]\nx = 1", r"Section \[managers\] "),
    ],
)
def test_a_mistake_gets_a_sentence_that_names_the_key(text: str, sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        parse_configuration(text, origin="site.toml")


def test_the_section_of_a_manager_is_of_the_type_that_its_plugin_names() -> None:
    configuration = parse_configuration("[yarn]\nrm_urls = ['http://rm']\n", origin="site.toml")
    assert configuration.of_manager(YarnSettings) == YarnSettings(rm_urls=("http://rm",))
    effective = {key: (value, origin) for key, value, origin in configuration.effective()}
    assert effective["yarn.rm_urls"] == (("http://rm",), "site.toml")
    assert effective["slurm.limit_ms"] == (40.0, "default")


def test_the_answer_limit_is_the_managers_own() -> None:
    configuration = parse_configuration("[slurm]\nlimit_ms = 70\n", origin="site.toml")
    assert configuration.answer_limit_s("slurm") == 0.07
    assert configuration.answer_limit_s("no-such") == 0.04


def test_who_asks_for_the_managers_may_ask_where_the_site_names_nobody() -> None:
    assert parse_configuration("", origin="f").daemon.allowed_users == ("root", "slurm")
    named = parse_configuration("[daemon]\nallowed_users = ['ada']", origin="f")
    assert named.daemon.allowed_users == ("ada",)
