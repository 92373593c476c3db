"""Sealed families: left out of what is shown unless the look is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusage_hooks.errors import RequestError
from gpusage_lab.learning.scores import by_family
from gpusage_lab.learning.splits import count_evaluation, evaluation_count, is_sealed
from gpusage_lab.learning.step_absolute import left_out_rows
from gpusage_lab.learning.step_rows import step_rows
from gpusage_lab.measurements.tables import DataFolder
from gpusage_planning.zoo import load_zoo
from measurements import write_measurements


def test_a_familys_name_alone_decides_whether_it_is_sealed() -> None:
    sealed = {name for name in ("resnet", "regnet", "vgg", "densenet", "efficientnet", "convnext") if is_sealed(name)}
    assert sealed == {"resnet", "regnet"}


def test_each_look_is_one_more_line_and_none_is_counted_before_the_first(tmp_path: Path) -> None:
    counter = tmp_path / "looks.txt"
    assert evaluation_count(counter) == 0
    count_evaluation(counter, ["memory"])
    count_evaluation(counter, ["step_time", "memory"])
    assert evaluation_count(counter) == 2
    assert counter.read_text().splitlines()[1].endswith(" step_time,memory")


def test_a_look_that_cannot_be_counted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"must be one to which a look can be added.*--sealed"):
        count_evaluation(tmp_path, ["memory"])


def test_sealed_families_are_in_no_row_of_a_sealed_folder_and_in_those_of_an_open_one(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    folder, zoo = write_measurements(tmp_path), load_zoo()
    shown, everything = (
        {row.family for row in step_rows(DataFolder(folder, is_sealed=sealed), zoo)} for sealed in (True, False)
    )
    assert {name for name in everything if is_sealed(name)} == everything - shown == {"resnet"}
    assert left_out_rows(DataFolder(folder), zoo).rows == []


def test_a_mean_of_families_counts_each_family_alike() -> None:
    numpy = pytest.importorskip("numpy")
    assert by_family(numpy.array([1.0, 1.0, 1.0, 5.0]), numpy.array(["a", "a", "a", "b"])) == 3.0
