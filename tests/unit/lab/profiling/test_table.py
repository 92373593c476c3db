from __future__ import annotations

from pathlib import Path

import pytest

from gpusage_hooks.errors import DeviceError, RequestError
from gpusage_lab.profiling.campaign import check_device
from gpusage_lab.profiling.table import CsvTable

COLUMNS = ("item", "status", "power_w")


@pytest.fixture
def table(tmp_path: Path) -> CsvTable:
    made = CsvTable(tmp_path / "new" / "table.csv", COLUMNS)
    made.open()
    return made


def test_rows_are_read_as_they_were_appended(table: CsvTable) -> None:
    table.append([{"item": 'a "b",c', "status": "ok", "power_w": 1 / 3}, {"item": "d"}])
    table.open()
    assert table.rows() == [
        {"item": 'a "b",c', "status": "ok", "power_w": "0.333333"},
        {"item": "d", "status": "", "power_w": ""},
    ]


def test_a_text_of_several_lines_stays_one_row(table: CsvTable) -> None:
    table.append([{"item": "a", "status": "first\nsecond"}])
    assert len(table.path.read_text().splitlines()) == 2
    assert table.rows()[0]["status"] == "first second"


def test_a_row_that_was_cut_off_is_dropped(table: CsvTable) -> None:
    table.append([{"item": "a"}, {"item": "b"}])
    whole = table.path.read_bytes()
    for end in range(len(b"item,status,power_w\n"), len(whole)):
        table.path.write_bytes(whole[:end])
        table.open()
        assert [row["item"] for row in table.rows()] == ["a", "b"][: whole[:end].count(b"\n") - 1]


def test_a_cut_off_header_is_written_again(table: CsvTable) -> None:
    table.path.write_bytes(b"item,sta")
    table.open()
    assert table.path.read_text() == "item,status,power_w\n"


def test_another_table_is_not_touched(table: CsvTable) -> None:
    table.path.write_text("name,age\nAda,36\nunfinished")
    with pytest.raises(RequestError, match="must have the columns of this version"):
        table.open()
    assert table.path.read_text() == "name,age\nAda,36\nunfinished"


def test_what_another_gpu_measured_is_not_mixed_in() -> None:
    rows = [{"device": "cuda", "gpu": "NVIDIA H100"}]
    check_device(rows, {"device": "cuda", "gpu": "NVIDIA H100"})
    with pytest.raises(DeviceError, match="one of NVIDIA H100"):
        check_device(rows, {"device": "cuda", "gpu": "NVIDIA H200"})
    with pytest.raises(DeviceError, match="this machine's cpu"):
        check_device(rows, {"device": "cpu"})
