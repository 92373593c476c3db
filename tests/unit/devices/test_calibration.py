"""What a file of `gpusage calibrate` does to predictions; the host is NVIDIA's DGX-1 (bench/calibration.py)."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import date, timedelta
from math import isnan, log
from pathlib import Path

import pytest

from gpusage.decisions.advisor import make_advisor
from gpusage.devices.calibration import calibrated
from gpusage.devices.catalogue import Catalogue, builtin_catalogue
from gpusage.predictors.analysis import analyze
from gpusage.predictors.times.step_time import host_factor_of
from gpusage.settings.configuration_file import parse_configuration
from gpusage_hooks.types import Decoding, Gpu, SoloRun, Workload

MODELS = Path(__file__).parents[3] / "examples" / "models"
ADVISOR = make_advisor()
V100 = "v100-sxm2-16gb"
DOCUMENT = {
    "schema": "gpusage.calibration/1",
    "gpu": "v100",
    "device": "cuda",
    "host": "dgx-1",
    "torch": "1.8",
    "host_factor": 2.2,
    "host_spread": 1.1,
    "gpu_factor": 1.0,
    "models": {},
}


def written(folder: Path, **changes: object) -> str:
    path = folder / f"{len(list(folder.iterdir()))}.json"
    today = {"measured_on": date.today().isoformat()}  # noqa: DTZ011 - as the command writes it
    path.write_text(json.dumps({**DOCUMENT, **today, **changes}))
    return str(path)


def at_site(*paths: str) -> Catalogue:
    """Return the catalogue of a site that names these files."""
    return calibrated(paths, builtin_catalogue())[0]


def test_a_published_run_on_a_slow_host_is_as_predicted_once_others_there_were_measured(tmp_path: Path) -> None:
    """EfficientNet-B0, PyTorch NGC 21.03, one picture in fp32: 13.15 ms (NVIDIA's DeepLearningExamples)."""
    graph, workload = ADVISOR.read("timm:efficientnet_b0"), Workload(batch_size=1, mode="infer")
    misses = []
    for catalogue in (builtin_catalogue(), at_site(written(tmp_path))):
        (need,) = ADVISOR.predict(graph, workload, [catalogue.find(V100)])
        misses.append(abs(log(need.step_time_s.value / 13.15e-3)))
        assert ("By this site's calibration, hosts take 2.2 times" in " ".join(need.notes)) == (len(misses) == 2)
    assert misses[1] < 0.3 * misses[0]
    assert misses[0] > log(1.5)


WORKLOADS = {
    "training": Workload(batch_size=8),
    "training on four GPUs": Workload(batch_size=8, gpus=4),
    "inference": Workload(batch_size=1, mode="infer"),
    "compiled": Workload(batch_size=1, mode="infer", precision="fp16", compile=True),
    "compiled training": Workload(batch_size=8, compile=True),
    "answers": Workload(
        batch_size=1, mode="infer", precision="fp16", generate=Decoding(prompt_tokens=64, new_tokens=16)
    ),
    "an engine": Workload(batch_size=1, mode="infer", precision="fp16", engine="tensorrt"),
}


def step_s(workload: Workload, gpu: Gpu) -> tuple[float, float]:
    """Return the step's point, and its high over its low end."""
    (need,) = ADVISOR.predict(ADVISOR.read(str(MODELS / "gpt2.onnx")), workload, [gpu])
    return need.step_time_s.value, need.step_time_s.high / need.step_time_s.low


@pytest.mark.parametrize("kind", WORKLOADS)
def test_a_host_as_usual_changes_nothing_and_a_slower_one_makes_nothing_faster(kind: str, tmp_path: Path) -> None:
    usual = builtin_catalogue().find(V100)
    known = [at_site(written(tmp_path, host_factor=each)) for each in (0.5, 1.0001, 1.5, 4.0)]
    steps_s = [step_s(WORKLOADS[kind], catalogue.find(V100)) for catalogue in known]
    value, width = step_s(WORKLOADS[kind], usual)
    assert steps_s[1][0] == pytest.approx(value, rel=1e-3)
    assert (steps_s[1][1] < 0.999 * width) == (kind in ("training", "inference"))  # others' are of published runs
    assert [each for each, _ in steps_s] == sorted(each for each, _ in steps_s)
    is_eager = kind != "an engine" and not kind.startswith("compiled")  # nobody measured a host of others
    assert (steps_s[3][0] > value) == is_eager


def test_the_note_stands_where_the_host_shows_alone(tmp_path: Path) -> None:
    catalogue = at_site(written(tmp_path))
    busy = Workload(batch_size=1024)
    known = replace(WORKLOADS["inference"], alone=SoloRun(step_time_s=0.05))
    for gpu, run, is_noted in (
        ("v100", WORKLOADS["inference"], True),
        ("t4", WORKLOADS["inference"], False),
        ("v100", WORKLOADS["compiled"], False),
        ("v100", WORKLOADS["an engine"], False),
        ("v100", busy, False),
        ("v100", known, False),
    ):
        advisor = replace(ADVISOR, catalogue=catalogue)
        (need,) = advisor.predict(ADVISOR.read(str(MODELS / "resnet50.onnx")), run, [catalogue.find(gpu)])
        assert ("By this site's calibration, hosts take 2.2 times" in " ".join(need.notes)) == is_noted, (gpu, run)


def test_a_step_shows_the_host_that_made_it() -> None:
    graph, gpu = ADVISOR.read(str(MODELS / "resnet18.onnx")), builtin_catalogue().find("h100")
    analysis = analyze(graph, Workload(batch_size=1, mode="train"))
    usual, slow = (analysis.timing([replace(gpu, host_factor=each)]) for each in (1.0, 3.0))
    measured_s, predicted_s, busy_s = (float(each[0]) for each in (slow.step_s, usual.step_s, usual.busy_s))
    assert host_factor_of(measured_s, predicted_s, busy_s) == pytest.approx(3)
    assert isnan(host_factor_of(measured_s, busy_s, busy_s))


def test_slices_have_their_boards_host_and_other_gpus_a_usual_one(tmp_path: Path) -> None:
    paths = [written(tmp_path, gpu="a100"), written(tmp_path, host_factor=1.1)]
    known = at_site(*paths)
    assert known is at_site(*paths)  # as predictors cache by identity
    slice_, other = known.find("a100-sxm4-40gb:3g.20gb"), known.find("t4")
    assert slice_.host_factor == 2.2
    assert other == builtin_catalogue().find("t4")
    assert known.find("v100").host_factor == 1.1
    assert at_site() is builtin_catalogue()


def test_names_of_the_site_stand_for_the_same_gpus_beside_a_calibration_and_networks(tmp_path: Path) -> None:
    names = {"v100": "p100", "big": "h100"}
    plain = builtin_catalogue().with_aliases(names)
    site = calibrated([written(tmp_path, gpu="big")], plain.with_networks({"h100": 400.0}))[0]
    assert [site.find(each).name for each in names] == [plain.find(each).name for each in names]
    assert plain.find("v100").name == "p100-pcie-16gb"
    assert (site.find("h100").host_factor, site.find("v100").host_factor) == (2.2, 1.0)


def test_the_newest_of_two_files_of_a_gpu_counts_and_the_other_is_named(tmp_path: Path) -> None:
    day = date.today() - timedelta(days=30)  # noqa: DTZ011 - as the command writes it
    new, old = written(tmp_path), written(tmp_path, host_factor=1.1, measured_on=day.isoformat())
    for paths in ([new, old], [old, new]):
        known, trouble = calibrated(paths, builtin_catalogue())
        assert known.find("v100").host_factor == 2.2
        assert trouble == (
            f"File {old!r} of 'gpus.calibration' is not used: GPU v100-sxm2-16gb must have one file; got a newer one, "
            f"{new!r}. Remove the older one."
        )


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    """It ended every command, and gpusaged."""
    path = Path(written(tmp_path))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert at_site(str(path)).find("v100").host_factor == 2.2


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "bytes", "long", "deep", "text"])
def test_what_is_no_small_regular_file_is_named_at_once(kind: str, tmp_path: Path) -> None:
    path, got = tmp_path / kind, {"missing": "No such file or directory", "folder": "Is a directory"}
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":  # whoever opens it waits for a writer
        os.mkfifo(path)
    elif kind == "long":
        path.write_text(" " * 70_000 + json.dumps(DOCUMENT))
    elif kind != "missing":
        path.write_bytes({"bytes": b"\xff\xfe", "deep": b"[" * 60_000, "text": b"host_factor = 2"}[kind])
    known, trouble = calibrated([str(path)], builtin_catalogue())
    assert known is builtin_catalogue()
    assert trouble == (
        f"File {str(path)!r} of 'gpus.calibration' is not used: Calibration must be a JSON table in a small regular "
        f"file that you can read; got {got.get(kind, 'another content')}. Run 'gpusage calibrate' on an idle node."
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"host_factor": 30}, "Key 'host_factor' of a calibration must be a number from 0.25 to 8; got 30."),
        ({"host_spread": 2.5}, "Key 'host_spread' of a calibration must be a number from 1 to 2; got 2.5."),
        ({"gpu_factor": 3}, "Key 'gpu_factor' of a calibration must be a number from 0.5 to 2; got 3."),
        ({"device": "cpu"}, "Key 'device' of a calibration must be 'cuda', not a trial; got cpu."),
        ({"schema": "x"}, "Key 'schema' of a calibration must be 'gpusage.calibration/1'; got x."),
        ({"measured_on": "soon"}, "Key 'measured_on' of a calibration must be a day; got soon."),
        ({"gpu": "v1000"}, "GPU 'v1000' must be a name of the catalogue; got an unknown name. Did you mean 'v100"),
    ],
)
def test_a_file_in_doubt_is_left_out_with_a_sentence(
    changes: dict[str, object], sentence: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, **changes)
    known = builtin_catalogue()
    other = at_site(path, written(tmp_path, gpu="a100-sxm4-40gb"))
    assert other.find("v100").host_factor == 1.0
    assert at_site(path) is known
    (line,) = {record.getMessage() for record in caplog.records}
    assert line.startswith(f"File {path!r} of 'gpus.calibration' is not used: {sentence}")


def test_an_old_file_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    old = (date.today() - timedelta(days=500)).isoformat()  # noqa: DTZ011 - as the command writes it
    assert at_site(written(tmp_path, measured_on=old)) is builtin_catalogue()
    assert "'measured_on' of a calibration must be a day of the last 400; got" in caplog.text


def test_decisions_have_the_sites_hosts(tmp_path: Path) -> None:
    settings = parse_configuration(f"[gpus]\ncalibration = ['{written(tmp_path)}']", origin="x")
    assert ADVISOR.configured(settings).catalogue.find("v100").host_factor == 2.2
