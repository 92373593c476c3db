"""Where the host's own apt gets its packages from."""

from __future__ import annotations

import pytest

from gpusage_hooks.errors import RequestError
from gpusage_sandboxes.packages import PackageSource, choose_source, parse_deb822, parse_one_line, render_deb822

DEBIAN = {"ID": "debian", "VERSION_CODENAME": "bookworm"}
MAIN = PackageSource(uri="http://mirror/debian", suite="bookworm", components=("main", "contrib"))


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
    source = PackageSource(uri="http://m", suite="forky", components=("main",), verification=(("Signed-By", "/k.gpg"),))
    assert list(parse_deb822(render_deb822(source))) == [source]


def test_a_release_comes_from_the_host_s_own_mirror() -> None:
    sources = [
        PackageSource(uri="http://vendor", suite="stable", components=("main",)),
        PackageSource(uri="http://mirror/debian", suite="bookworm-updates", components=("main",)),
        MAIN,
    ]
    assert choose_source(sources, DEBIAN, None).suite == "bookworm"
    chosen = choose_source(sources, DEBIAN, "trixie")
    assert (chosen.uri, chosen.suite, chosen.components) == ("http://mirror/debian", "trixie", ("main",))


def test_on_ubuntu_slurm_is_in_universe() -> None:
    own = PackageSource(uri="http://u", suite="noble", components=("main", "universe"))
    assert choose_source([own], {"ID": "ubuntu", "VERSION_CODENAME": "noble"}, None).components == ("main", "universe")


def test_a_host_whose_apt_knows_no_archive_is_told_so() -> None:
    with pytest.raises(RequestError, match="got 1 sources, none such"):
        choose_source([PackageSource(uri="http://v", suite="x/", components=())], DEBIAN, None)
