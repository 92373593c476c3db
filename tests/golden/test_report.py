"""What `gpusage report` prints of a small site's month, compared whole."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from gpusage.cli.report import show_report, show_user_text
from gpusage.reports.report import Period
from gpusage.store.opening import open_store
from gpusage_slurm import scontrol
from observed import DAY_S, NOW_S, fill, month_before


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a site with a store and with prices, one of a GPU under an alias."""
    url = f"sqlite:///{tmp_path}/d.db"
    (tmp_path / "c.toml").write_text(f'[store]\nurl = "{url}"\n[money]\nprice_per_hour = {{ v100 = 3.0 }}\n')
    monkeypatch.setenv("GPUSAGE_CONFIG", str(tmp_path / "c.toml"))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(int(NOW_S)))
    monkeypatch.setattr(scontrol, "is_slurm_host", lambda: False)  # another test's Slurm may run on this host
    monkeypatch.setattr("sys.argv", ["gpusage", "report", "-o", "report.html"])
    with closing(open_store(url)) as store:
        fill(store)
        store.record_usage([each.usage for each in month_before()])


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("form", ["txt", "json"])
def test_a_report_is_its_golden_file(
    form: str, golden: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    show_report(Period(since_s=NOW_S - 30 * DAY_S, until_s=NOW_S, user=""), None, as_json=form == "json")
    golden(f"report.{form}", capsys.readouterr().out)


@pytest.mark.usefixtures("site")
def test_the_text_for_a_user_is_its_golden_file(
    golden: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    show_user_text(Period(since_s=NOW_S - 30 * DAY_S, until_s=NOW_S, user="ada"))
    golden("report-user.txt", capsys.readouterr().out)


@pytest.mark.usefixtures("site")
def test_the_page_of_a_report_is_its_golden_file(golden: Callable[[str, str], None], tmp_path: Path) -> None:
    show_report(Period(since_s=NOW_S - 30 * DAY_S, until_s=NOW_S, user="bob"), tmp_path / "report.html", as_json=False)
    golden("report.html", (tmp_path / "report.html").read_text())
