"""The private apt of a sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusage_hooks.errors import RequestError
from gpusage_sandboxes.packages import parse_uris, require_apt


def test_without_apt_one_sentence_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RequestError, match=r"needs apt-get and dpkg.* not found on PATH\. Run it on"):
        require_apt()


def test_apt_s_list_of_archives_is_read() -> None:
    text = (
        "Reading...\n'http://m/pool/m/munge.deb' munge_0.5_amd64.deb 100 SHA256:aa\n'http://m/x' x_1%3a2_all.deb 23 \n"
    )
    assert parse_uris(text) == {"munge_0.5_amd64.deb": 100, "x_1%3a2_all.deb": 23}
