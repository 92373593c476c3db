"""Slowdown against share, drawn."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from gpusage.cli import main
from gpusage.reports.pages import curves
from gpusage_hooks.types import Interval, Price

MODEL = Path(__file__).parents[4] / "examples" / "models" / "resnet18.onnx"
SVG = "{http://www.w3.org/2000/svg}"


def curve(gpu: str = "v100", times: float = 1.0) -> list[Price]:
    """Prices in proportion, *times* as high, 10 % around."""
    values = {percent: max(times * 100 / percent, 1.0) for percent in curves.PERCENTS}
    return [
        Price(gpu=gpu, share_percent=percent, slowdown=Interval(value=value, low=0.9 * value, high=1.1 * value))
        for percent, value in values.items()
    ]


def test_a_plot_is_one_picture_that_names_its_gpu_and_marks_three_shares() -> None:
    root = ET.fromstring(curves.plot(curve(), 6))
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    # 100 / 25, 100 / 50 and 100 / 75
    assert titles[1:] == ["25 %: 4.00x (3.60-4.40)", "50 %: 2.00x (1.80-2.20)", "75 %: 1.33x (1.20-1.47)"]
    assert "v100" in titles[0]


def test_a_share_that_costs_more_stands_higher_and_all_stands_inside_the_picture() -> None:
    root = ET.fromstring(curves.plot(curve(times=3), 5))
    y_positions = [float(dot.attrib["cy"]) for dot in root.iter(f"{SVG}circle")]
    # 12, 6 and 4 times as long on a scale that ends at 5: the first two at the end, the third below (y grows downwards)
    assert y_positions[0] == y_positions[1] == curves.TOP < y_positions[2]
    numbers = [float(number) for path in root.iter(f"{SVG}path") for number in re.findall(r"[\d.]+", path.attrib["d"])]
    assert max(numbers) <= curves.WIDTH


@pytest.mark.parametrize(("times", "top"), [(0.0, 2), (1.0, 6), (3.0, 8)])
def test_all_gpus_have_the_scale_on_which_the_dearest_has_room(times: float, top: int) -> None:
    # 1.1 x 5 at 20 % is 5.5; whatever is above 8 is cut
    assert curves.top_of([curve(), curve(times=times)] if times else [curve(times=0.0)]) == top


def test_a_strange_name_is_text() -> None:
    assert "<script" not in curves.plot(curve("<script>"), 2)


def test_the_page_draws_each_gpu_that_can_be_shared_and_fits_a_telephone(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    gpus = ["--gpu", "p100", "--gpu", "v100", "--gpu", "h100", "--gpu", "a100:3g.20gb"]
    result = CliRunner().invoke(main, ["predict", str(MODEL), *gpus, "-o", str(page)])
    assert result.exit_code == 0, result.stderr
    text = page.read_text()
    # a share of a P100 cannot be held to its threads, and a slice is not shared
    names = re.findall(r"<title>([^<]*): slowdown against share</title>", text)
    assert [name.split("-")[0] for name in names] == ["v100", "h100"]
    assert curves.WIDTH <= 390 - 2 * 16  # a telephone's screen without the margins of the page


def test_what_the_user_knows_moves_the_curve(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    marks = []
    for known in ("100", "30"):
        arguments = ["predict", str(MODEL), "--gpu", "v100", "--share", "50", "--utilization", known, "-o", str(page)]
        assert CliRunner().invoke(main, arguments).exit_code == 0
        (slowdown,) = re.findall(r">50 %: ([\d.]+)x", page.read_text())
        marks.append(float(slowdown))
    assert marks[1] < marks[0]
