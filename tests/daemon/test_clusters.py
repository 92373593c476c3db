"""Two clusters whose settings name one store: the second one's jobs are answered, and stay out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.daemon.conftest import Daemon


def test_gpusaged_keeps_out_of_the_store_of_another_cluster_and_says_so(idle: Daemon, second: Daemon) -> None:
    idle.behave(name="alpha", usage=["7"])
    idle.start()
    assert idle.ask()["code"] == "REWRITE"
    (record,) = idle.records()

    settings = second.folder / "c.toml"
    settings.write_text(settings.read_text().replace(str(second.store), str(idle.store)))
    second.behave(name="beta")
    second.start()
    assert second.ask()["code"] == "REWRITE"
    second.wait(lambda: second.status()["records"]["error"])
    status = second.status()
    assert (
        "must hold the jobs of one cluster; got slurm 'alpha' there and slurm 'beta' here" in status["records"]["error"]
    )
    assert (status["records"]["waiting"], status["records"]["lost"]) == (1, 0)
    assert idle.records() == (record,)
