"""Any slurm.conf is its own again after an installation and an uninstallation."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from gpusage.boundary.edits import make_edits
from gpusage.settings.configuration import SiteMode
from gpusage_slurm.install.site import Site, plan_installation, plan_uninstallation
from gpusage_slurm.install.slurm_conf import list_contains, read_files, setting

SETTINGS = [
    "ClusterName=Big",
    "JobSubmitPlugins=throttle,job_submit/lua",
    "JobSubmitPlugins=throttle  # the site's",
    "cliFilterPlugins=user_defaults",
    "Prolog=/site/prolog",
    "Prolog=/site/prolog.d/*",
    "EPILOG = /site/epilog",
    "TaskProlog=/site/task",
    "TaskProlog=",
    "AccountingStorageType=accounting_storage/slurmdbd",
    "SchedulerParameters=bf_interval=1",
    "Include other_%c.conf",
    "include plain.conf",
    "# a comment",
    "",
]
texts = st.builds(
    lambda lines, end, last: end.join(lines) + (end if last else ""),
    st.lists(st.sampled_from(SETTINGS), max_size=8),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
modes = st.sampled_from([None, "observe", "enforce"])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@settings(max_examples=25)  # each writes a dozen files to the disk
@given(main=texts, other=texts, mode=modes, twice=st.booleans())
def test_every_byte_comes_back(main: str, other: str, mode: SiteMode | None, *, twice: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in ("other_big.conf", "plain.conf"):
            (folder / file).write_bytes(other.encode())
        (folder / "slurm.conf").write_bytes(main.encode())
        toml = folder / "gpusage.toml"
        site = Site(
            slurm_conf=folder / "slurm.conf",
            gpusage_toml=toml,
            command=Path("/opt/gpusage/bin/gpusage"),
            libexec=folder / "libexec",
        )
        before = contents(folder)
        with mock.patch.dict(os.environ, {"GPUSAGE_CONFIG": str(toml)}):
            make_edits(plan_installation(site, mode))
            assert all(in_force(site, key) for key in ("TaskProlog", "Prolog", "Epilog"))
            if twice:
                assert not any(edit.changes for edit in plan_installation(site, mode))
            for _ in range(2):
                make_edits(plan_uninstallation(site))
        assert contents(folder) == before


def in_force(site: Site, key: str) -> bool:
    """Return whether a file sets *key* to a script of ours."""
    values = [setting(text, key) for text in read_files(site.slurm_conf).values()]
    return any("gpusage" in value for value in values if value)


@given(st.lists(st.sampled_from(["lua", "LUA", "job_submit/lua", "throttle", "luau", "x/lua"]), max_size=4))
def test_a_plugin_is_found_by_its_short_and_its_long_name(names: list[str]) -> None:
    assert list_contains(",".join(names), "lua") == any(name.lower() in ("lua", "job_submit/lua") for name in names)
