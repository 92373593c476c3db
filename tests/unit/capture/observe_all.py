"""Runs each script named on the command line twice in forks of one process, once observed: PyTorch is imported once.

Scripts that train in parallel have two processes, of which the first is observed.

The scripts are as in `scripts`, on the processor. With ``--breaking NAME,...`` these methods of the observation raise,
each in a run of its own. With ``--here`` one script runs in this process, as torchrun has started it.
"""

import contextlib
import hashlib
import importlib
import json
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from gpusage.capture.inside import first_run
from gpusage.capture.inside.first_run import FirstRun

FOR_EACH_FORK = ("torch._dynamo", "timm", "transformers.trainer", "transformers.models.gpt2.modeling_gpt2")
ON_PROCESSOR = {
    **dict.fromkeys((".cuda()", "torch.cuda.synchronize()", ".to(0)", ".to(rank)", ", device_ids=[rank]"), ""),
    "torch.cuda.set_device(rank)": "",
    "FullyShardedDataParallel(Network(nn.Linear(16, 4)))": (
        'FullyShardedDataParallel(Network(nn.Linear(16, 4)), device_id="cpu")'
    ),
    "torch.cuda.FloatTensor": "torch.FloatTensor",
    '"cuda:0': '"cpu',
    '"cuda': '"cpu',
    "pin_memory=True": "pin_memory=False",
    '"nccl"': '"gloo"',
}


PROCESS_COUNTS = {"ddp": 2, "fsdp": 2, "fully_sharded": 2, "with_deepspeed": 2}


def digest_of_results(names: dict[str, Any]) -> str:
    """Return a digest of the weights of all modules among *names*, and of the state of the random numbers."""
    digest = hashlib.sha256()
    for value in names.values():
        for weight in value.parameters() if isinstance(value, torch.nn.Module) else ():
            own = weight.to_local() if hasattr(weight, "to_local") else weight  # of FSDP, each process has a part
            digest.update(own.detach().float().numpy().tobytes())
    digest.update(torch.get_rng_state().numpy().tobytes())
    return digest.hexdigest()


def free_port() -> str:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def run_processes(script: Path, record: Path | None, breaking: str) -> dict[str, Any]:
    """Run *script* in as many forks as it has processes, and return the results of the first and all digests."""
    count = PROCESS_COUNTS.get(script.stem, 1)
    port, receivers = free_port(), []
    for rank in range(count):
        receiver, sender = os.pipe()
        if not os.fork():
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "GPUSAGE_LEARN": "x"}
            os.environ |= {"GPUSAGE_LEARN_JOB": "JOB", "JOB": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            os.write(sender, json.dumps(run(script, None if rank else record, breaking)).encode())
            os._exit(0)
        os.close(sender)
        receivers.append(receiver)
    results = []
    for receiver in receivers:
        with os.fdopen(receiver, "rb") as pipe:
            results.append(json.loads(pipe.read()))
        os.wait()
    first: dict[str, Any] = results[0]
    return {**first, "digests": [each["digest"] for each in results]}


def run(script: Path, record: Path | None, breaking: str) -> dict[str, object]:
    """Run *script* here, and return its results."""
    torch.manual_seed(0)
    sys.argv = [str(script)]
    if breaking:

        def fail(*_: object, **__: object) -> None:
            script.with_name(f"{breaking}.called").touch()
            raise ValueError(breaking)

        setattr(FirstRun if hasattr(FirstRun, breaking) else first_run, breaking, fail)
    run = FirstRun(record, lambda: None) if record else None
    if run:
        with contextlib.suppress(ValueError):  # as sitecustomize does
            run.begin()
    error, names = "", {"__name__": "__main__", "__file__": str(script)}
    try:
        exec(compile(script.read_text(), script, "exec"), names)  # noqa: S102 - our own script
    except BaseException as caught:
        error = f"{type(caught).__name__}: {caught}"
    digest = digest_of_results(names)
    if run:
        with contextlib.suppress(ValueError):  # as atexit does
            run._at_exit()
    is_restored = not any("gpusage" in each.__module__ for each in (torch.nn.Module.__call__, torch.autograd.backward))
    return {"digest": digest, "error": error, "is_restored": is_restored, "graphs": names.get("graphs")}


def on_processor(path: str, folder: Path) -> Path:
    """Return the path of a copy in *folder* of the script at *path* that needs no GPU."""
    source = Path(path).read_text()
    for before, after in ON_PROCESSOR.items():
        source = source.replace(before, after)
    script = folder / Path(path).name
    script.write_text(source)
    return script


def main() -> None:
    """Write one line for each script."""
    words = sys.argv[1:]
    if words[0] == "--here":
        result = run(on_processor(words[1], Path(tempfile.mkdtemp())), None, "")
        line = {"rank": os.environ["RANK"], "digest": result["digest"], "error": result["error"]}
        os.write(1, json.dumps(line).encode() + b"\n")
        return
    for name in FOR_EACH_FORK:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    methods = words.pop(1).split(",") if words[0] == "--breaking" else [""]
    results = os.dup(1)
    os.dup2(2, 1)
    folder = Path(tempfile.mkdtemp())
    names = words[words[0] == "--breaking" :]
    for name, breaking in [(name, method) for method in methods for name in names]:
        script = on_processor(name, folder)
        record = folder / script.stem
        alone, observed = (run_processes(script, each, breaking) for each in (None, record))
        line = {"name": script.stem, "alone": alone, "observed": observed, "record": str(record)}
        os.write(results, json.dumps(line).encode() + b"\n")


if __name__ == "__main__":
    main()
