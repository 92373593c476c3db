"""Training's side, on CPU tensors: what is trained stays the same, and nobody waits for long."""

from __future__ import annotations

import copy
import hashlib
import io
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpusage.gate import give_way
from gpusage.gate.busy_flags import BusyFlags
from gpusage.gate.training import Part, Patience

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from gpusage.gate import training
from gpusage.gate.recorder import Recorder
from gpusage.gate.training import Training, half_price, price_parts

SERVER = """
import sys, time
from pathlib import Path
from gpusage.gate.busy_flags import BusyFlags
flags, busy_s, idle_s = BusyFlags(Path(sys.argv[1])), float(sys.argv[2]), float(sys.argv[3])
flags.enter()
print(flush=True)
while True:
    time.sleep(busy_s)
    flags.leave()
    time.sleep(idle_s)
    flags.enter()
"""


@contextmanager
def serving(path: Path, busy_s: float, idle_s: float) -> Iterator[subprocess.Popen[str]]:
    """Run a process whose requests take *busy_s*, with *idle_s* between them."""
    words = [sys.executable, "-c", SERVER, str(path), str(busy_s), str(idle_s)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def recording() -> Iterator[Recorder]:
    recorder = Recorder()
    recorder.start()
    yield recorder
    recorder.stop()


@contextmanager
def held(path: Path, patience: Patience | None = None) -> Iterator[Training]:
    gate = Training(BusyFlags(path), patience=patience)
    gate.begin()
    try:
        yield gate
    finally:
        gate.end()


def network() -> torch.nn.Module:
    """Return a network that works in place, counts and draws lots: whatever a gate could disturb."""
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3),
        torch.nn.BatchNorm2d(32),
        torch.nn.ReLU(inplace=True),
        torch.nn.Conv2d(32, 8, 3),
        torch.nn.Dropout(0.1),
        torch.nn.Flatten(),
        torch.nn.LSTM(8 * 28 * 28, 8),
    )


def trained(steps: int) -> str:
    """Return a digest of the weights after *steps*."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 3, 32, 32))[0].square().sum().backward()
        optimizer.step()
    state = b"".join(each.numpy().tobytes() for each in model.state_dict().values())
    return hashlib.sha256(state).hexdigest()


def test_the_same_is_trained_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no gate, nobody who serves, and requests: parts are recorded, priced, and held."""
    monkeypatch.setattr(training, "RECORD_AGAIN_AFTER", 3)
    plain = trained(8)
    with held(tmp_path / "flags") as gate:
        assert trained(8) == plain
        assert gate.parts == {}
        assert gate.held_s == 0
    with held(tmp_path / "flags") as gate, serving(tmp_path / "flags", 0.02, 0.002):
        gate._gpu = "v100"
        assert trained(8) == plain
        assert gate.held_s > 0
        assert any(part.half_price for part in gate.parts.values())


def test_a_request_that_never_ends_leaves_training_its_share(tmp_path: Path) -> None:
    with serving(tmp_path / "flags", 1000, 0), held(tmp_path / "flags", Patience(longest_s=0.02, share=0.5)) as gate:
        trained(2)
        begun_s = time.monotonic()
        before_s = gate.held_s
        trained(20)
        spent_s = time.monotonic() - begun_s
        assert 0 < gate.held_s - before_s <= 0.5 * spent_s + 0.02 + 0.05  # sleeping may last longer than asked for


def test_a_server_that_is_killed_lets_a_held_part_go_on(tmp_path: Path) -> None:
    with serving(tmp_path / "flags", 1000, 0) as server:
        gate = Training(BusyFlags(tmp_path / "flags"), patience=Patience(longest_s=60))
        server.kill()
        server.wait()
        begun_s = time.monotonic()
        gate._wait_for_requests()
        assert time.monotonic() - begun_s < 50


def test_two_trainings_give_way_to_one_request(tmp_path: Path) -> None:
    """Reading the flags takes nothing that the other one would wait for."""
    first, second = (Training(BusyFlags(tmp_path / "flags"), patience=Patience(longest_s=0.05)) for _ in range(2))
    with serving(tmp_path / "flags", 1000, 0):
        first._wait_for_requests()
        second._wait_for_requests()
    assert first.held_s >= 0.05
    assert second.held_s >= 0.05


def test_what_is_hooked_can_be_copied_saved_and_compiled(tmp_path: Path) -> None:
    with serving(tmp_path / "flags", 0.001, 0.001), held(tmp_path / "flags") as gate:
        model = torch.nn.Sequential(torch.nn.Linear(256, 256))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            model(torch.randn(512, 256)).sum().backward()
            optimizer.step()
        assert gate._attached
        copy.deepcopy(model)
        torch.save(model, io.BytesIO())
        compiled = copy.deepcopy(model)
        compiled.compile(backend="eager")
        assert torch.equal(compiled(torch.ones(2, 256)), model(torch.ones(2, 256)))


def test_modules_are_hooked_only_while_somebody_serves(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    with held(tmp_path / "flags") as gate:
        with serving(tmp_path / "flags", 0.001, 0.001) as server:
            optimizer.step()
            optimizer.step()
            assert gate._attached
            server.kill()
            server.wait()
        optimizer.step()
        assert not gate._attached


def test_who_gives_way_twice_is_held_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher, and the two lines in the program."""
    monkeypatch.setenv("GPUSAGE_GATE", str(tmp_path / "gate"))
    monkeypatch.setattr(training, "_OF_PROCESS", [])
    give_way()
    give_way("v100")
    (gate,) = training._OF_PROCESS
    gate.end()


def test_a_recorded_step_has_forward_and_backward_of_what_calls_nothing_else() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.Sequential(torch.nn.Linear(512, 64)))
    with recording() as recorder:
        model(torch.randn(2000, 64)).sum().backward()
    seconds = recorder.seconds()
    assert set(seconds) == {model[0], model[1][0]}
    assert len(recorder._spans) == 4
    assert all(value > 0 for value in seconds.values())


def test_a_module_that_fails_does_not_disturb_the_recorder() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(3, 3))
    with recording() as recorder:
        with pytest.raises(RuntimeError):
            model(torch.ones(1, 2))
        model[0](torch.ones(1, 2))
    assert model[0] in recorder.seconds()
    assert recorder._stack == []


def test_what_fills_the_gpu_is_heavy_and_what_does_not_is_light() -> None:
    """A wide convolution needs the whole V100; a recurrent step over few samples is as fast on half of it."""
    wide = torch.nn.Conv2d(256, 256, 3, padding=1)
    small = torch.nn.Linear(64, 64)
    heavy = half_price(wide, (torch.empty(64, 256, 56, 56, device="meta"),), 0.03, "v100")
    light = half_price(small, (torch.empty(8, 64, device="meta"),), 0.0002, "v100")
    assert heavy is not None
    assert light is not None
    assert Part(seconds=0.03, half_price=heavy).is_heavy
    assert not Part(seconds=0.0002, half_price=light).is_heavy


def test_weights_of_two_bytes_are_judged_by_what_half_precision_takes() -> None:
    """What a V100's cores compute in 3 ms leaves its matrix units waiting, which half of them do as well."""
    module, inputs = torch.nn.Conv2d(256, 256, 3, padding=1), torch.empty(8, 256, 28, 28, device="meta")
    whole = half_price(module, (inputs,), 0.003, "v100")
    half = half_price(module.half(), (inputs.half(),), 0.003, "v100")
    assert whole is not None
    assert half is not None
    assert half == pytest.approx(1.0, abs=0.01)
    assert whole > 1.5


def test_a_layer_that_takes_sequences_first_is_judged_as_one_that_takes_samples_first() -> None:
    def price(sizes: tuple[int, ...], *, batch_first: bool) -> float | None:
        layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=batch_first)
        return half_price(layer, (torch.empty(sizes, device="meta"),), 0.002, "v100")

    first = price((4, 256, 512), batch_first=True)
    assert first is not None
    assert price((256, 4, 512), batch_first=False) == pytest.approx(first, rel=0.05)


def test_what_nothing_predicts_is_judged_by_its_time() -> None:
    class Own(torch.nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            time.sleep(0.001)
            return inputs * 2

    own = Own()
    assert half_price(own, (torch.ones(2, 2),), 1.0, "v100") is None
    with recording() as recorder:
        own(torch.ones(2, 2))
    assert price_parts(recorder, "v100")[own].is_heavy
    assert not Part(seconds=20e-6).is_heavy
