"""What a run costs by the site's prices, and the cheapest GPU on which it ends in time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpusage.cli import main

RESNET = str(Path(__file__).parents[4] / "examples" / "models" / "resnet18.onnx")
GPUS = ("--gpu", "t4", "--gpu", "v100", "--gpu", "h100")


def predicted(*words: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["predict", RESNET, *GPUS, "--json", *words])
    assert result.exit_code == 0, result.stderr
    (prediction,) = json.loads(result.stdout)["predictions"]
    return dict(prediction)


@pytest.fixture
def priced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "gpusage.toml"
    file.write_text("[money]\nprice_per_hour = { t4 = 0.5, v100 = 1.0, h100 = 1000.0 }\n")
    monkeypatch.setenv("GPUSAGE_CONFIG", str(file))


@pytest.mark.usefixtures("priced")
def test_a_run_costs_its_time_by_the_price_with_an_interval() -> None:
    for need, price in zip(predicted("--steps", "100000")["needs"], (0.5, 1.0, 1000.0), strict=True):
        for end in ("low", "value", "high"):
            assert need["cost"][end] == pytest.approx(need["run_time_s"][end] / 3600 * price, rel=1e-4)


@pytest.mark.usefixtures("priced")
def test_a_run_on_several_gpus_costs_all_of_them() -> None:
    one, four = (predicted("--steps", "100000", *words)["needs"] for words in ((), ("--gpus", "4")))
    for need, price in zip(four, (0.5, 1.0, 1000.0), strict=True):
        assert need["cost"]["value"] == pytest.approx(4 * need["run_time_s"]["value"] / 3600 * price, rel=1e-4)
    # a T4 waits for the gradients of the others, as its board has no NVLink
    assert [big["cost"]["value"] > 4.2 * small["cost"]["value"] for small, big in zip(one, four, strict=True)] == [
        True,
        False,
        False,
    ]


@pytest.mark.usefixtures("priced")
def test_the_cheapest_in_time_is_judged_by_the_upper_end() -> None:
    needs = predicted("--steps", "100000")["needs"]
    all_in_time = max(need["run_time_s"]["high"] for need in needs) + 1
    only_hopper = needs[2]["run_time_s"]["high"] + 1
    cheapest = min(needs, key=lambda need: need["cost"]["value"])["gpu"]
    assert predicted("--steps", "100000", "--deadline", f"{all_in_time}s")["deadline"]["cheapest"] == cheapest
    assert predicted("--steps", "100000", "--deadline", f"{only_hopper}s")["deadline"]["cheapest"] == needs[2]["gpu"]
    assert predicted("--steps", "100000", "--deadline", "1s")["deadline"]["cheapest"] is None


def test_without_prices_the_slowest_in_time_is_named_and_said_so() -> None:
    words = ["predict", RESNET, *GPUS, "--steps", "10", "--deadline", "2d"]
    result = CliRunner().invoke(main, words, env={"COLUMNS": "300", "GPUSAGE_CONFIG": None})
    assert (
        "The slowest GPU on which the run ends within 48 h 0 min, by the upper end: t4. No GPU has a price: set "
        "money.price_per_hour in /etc/gpusage/gpusage.toml, or in a file that GPUSAGE_CONFIG names."
    ) in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("words", "text", "sentence"),
    [
        (("--deadline", "8h"), "", "Option --deadline needs the number of steps; got none. Add --steps."),
        (("--deadline", "-8h", "--steps", "5"), "", "Invalid value for '--deadline': must be a time such as"),
        (
            ("--steps", "5"),
            "[money]\nprice_per_hour = { v999 = 1.0 }\n",
            "Key 'money.price_per_hour.v999' must name a GPU",
        ),
        (
            ("--steps", "5"),
            "[money]\nprice_per_hour = { t4 = -1.0 }\n",
            "Key 'money.price_per_hour.t4' must be a number",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(
    words: tuple[str, ...], text: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gpusage.toml"
    file.write_text(text)
    monkeypatch.setenv("GPUSAGE_CONFIG", str(file))
    result = CliRunner().invoke(main, ["predict", RESNET, *words])
    assert result.exit_code != 0
    assert result.stderr.startswith(f"gpusage: error: {sentence}")


@pytest.mark.usefixtures("priced")
def test_where_no_gpu_with_a_price_is_in_time_the_sentence_claims_no_more() -> None:
    words = ["predict", RESNET, "--gpu", "t4", "--gpu", "a100", "--steps", "100000", "--deadline", "90s"]
    result = CliRunner().invoke(main, words, env={"COLUMNS": "200"})
    assert "No GPU with a price here certainly ends the run within 90.0 s." in result.stdout


@pytest.mark.usefixtures("priced")
@pytest.mark.parametrize(("price", "expected"), [("2.5", [2.5, 2.5, 2.5]), ("t4=0.1,h100=3", [0.1, None, 3.0])])
def test_a_price_of_the_users_own_takes_the_place_of_the_sites(price: str, expected: list[float | None]) -> None:
    needs = predicted("--steps", "100000", "--price", price)["needs"]
    hours = [need["cost"]["value"] / need["run_time_s"]["value"] * 3600 if "cost" in need else None for need in needs]
    assert hours == [None if one is None else pytest.approx(one, rel=1e-4) for one in expected]


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (["--price", "2.5"], "Option --price needs --serve or --steps; got it alone."),
        (["--price", "t4=cheap", "--steps", "5"], "must be one price, or GPU=PRICE joined by commas, each GPU once"),
        (["--price", "t4=1,2", "--steps", "5"], "each GPU once; got 't4=1,2'. Correct it."),
        (["--price", "2,3", "--steps", "5"], "each GPU once; got '2,3'. Correct it."),
        (["--price", "t4=1,t4=2", "--steps", "5"], "each GPU once; got 't4=1,t4=2'. Correct it."),
        (["--price", "v999=1", "--steps", "5"], "Option --price must name a GPU of the catalogue"),
        (["--price", "-1", "--steps", "5"], "Option --price must be a number of at least 0; got -1.0"),
        (["--price", "nan", "--steps", "5"], "Option --price must be a number of at least 0; got nan"),
        (["--price", "t4=-1", "--steps", "5"], "Option --price must be a number of at least 0; got -1.0"),
    ],
)
def test_a_price_that_makes_no_sense_is_refused(words: list[str], rule: str) -> None:
    result = CliRunner().invoke(main, ["predict", RESNET, *GPUS, *words])
    assert result.exit_code in (1, 2)
    assert rule in result.stderr
