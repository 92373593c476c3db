"""Two clusters whose settings name one store: both are served from it and write into it, and `doctor` tells."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from gpusage.cli import admin
from gpusage.settings.configuration import Configuration, StoreSettings
from gpusage.store.opening import open_store

if TYPE_CHECKING:
    from tests.daemon.conftest import Daemon


def require_recorded(daemon: Daemon) -> None:
    """Require that *daemon* shares a GPU for one more job, and keeps that decision."""
    written = daemon.status()["records"]["written"]
    assert daemon.ask()["code"] == "REWRITE"
    daemon.wait(lambda: daemon.status()["records"]["written"] == written + 1)
    assert daemon.status()["records"]["error"] is None


def test_two_clusters_on_one_store_lose_nothing_and_doctor_fails(idle: Daemon, second: Daemon) -> None:
    settings = second.folder / "c.toml"
    settings.write_text(settings.read_text().replace(str(second.store), str(idle.store)))
    for daemon, name in ((idle, "alpha"), (second, "beta")):
        daemon.behave(name=name)
        daemon.start()
        require_recorded(daemon)

    url = f"sqlite:///{idle.store}"
    with closing(open_store(url)) as store:
        second.wait(store.mixed_clusters)
    for daemon in (idle, second):
        require_recorded(daemon)

    own = admin.gather_own(Configuration(store=StoreSettings(url=url)), "", (str(idle.socket),))
    finding = admin.store(own)
    assert finding.verdict == "fail"
    assert "got slurm 'alpha' and slurm 'beta' in the last 3 days. Give each" in finding.observation
    assert len(idle.records()) == 4
