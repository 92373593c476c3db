"""The process that runs workloads: ``python -m gpusage_lab.profiling.worker DEVICE``.

It reads one JSON object a line from its standard input and answers each by one line on its standard output:

prepare    builds a job and runs its first steps          -> ready
run        runs steps in a window                          -> measured

or ``failed``, with ``oom`` where the memory does not suffice. It ends when its input does: a parent that is killed
leaves no worker behind.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import sys
import threading
import time
import warnings
from importlib import metadata
from typing import Any, TextIO

from gpusage.graphs.torch.libraries import import_library
from gpusage_hooks.types import Workload
from gpusage_lab.profiling import models, steps, timing

WARM_STEPS = 3
WARM_S = 0.3
LIBRARIES = ("timm", "torchvision", "transformers")
_LONGEST_DETAIL = 300
Message = dict[str, Any]


class Worker:
    """Holds one prepared job at a time."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.torch = import_library("torch")
        self._on_gpu = device.startswith("cuda")
        self._model: tuple[Any, ...] | None = None
        self._built: Any = None
        self._step: steps.Step = lambda: None
        self._batch_size = 0
        self._alone_s = 0.0

    def hello(self) -> Message:
        """Return what this process runs with."""
        torch = self.torch
        if self._on_gpu:
            weight = torch.zeros(1, device=self.device, requires_grad=True)  # makes the GPU's context
            torch.optim.SGD([weight], lr=1.0)  # the first one imports for seconds: let workers do so at the same time
        else:
            torch.set_num_threads(1)
        return {"event": "hello", "pid": os.getpid()} | versions(torch, on_gpu=self._on_gpu)

    def handle(self, message: Message) -> Message:
        """Do what *message* says."""
        try:
            return {"prepare": self.prepare, "run": self.run}[message["op"]](message)
        except Exception as error:  # a model may fail in any way; the campaign goes on
            is_oom = steps.is_out_of_memory(error)
            self._drop()
            detail = f"{type(error).__name__}: {error}"[:_LONGEST_DETAIL]
            return {"event": "failed", "status": "oom" if is_oom else "failed", "detail": detail} | self._memory()

    def prepare(self, message: Message) -> Message:
        """Build the job, or keep the model that is there already, and run its first steps."""
        began = time.monotonic()
        self._step = lambda: None
        shape = tuple((name, tuple(sizes)) for name, sizes in message["shape"])
        model = (message["model"], shape)
        if self._model != model:
            self._drop()
        self._collect()
        if self._model != model:
            self._built, self._model = models.build(message["model"], shape, self.device), model
        workload = Workload(**{name: message[name] for name in ("batch_size", "mode", "precision", "optimizer")})
        self._batch_size = workload.batch_size
        self._step = steps.step_of(self._built, steps.Settings(workload=workload, device=self.device))
        self._forget_peak()  # of the build, and of a change of precision
        timing.median_time_s(self._step, self.device, at_least=WARM_STEPS, for_s=0)
        self._alone_s = timing.median_time_s(self._step, self.device, at_least=1, for_s=WARM_S)
        count = sum(weight.numel() for weight in self._built.module.parameters())
        return {"event": "ready", "prepare_s": time.monotonic() - began, "alone_s": self._alone_s} | {
            "parameter_count": count
        }

    def run(self, message: Message) -> Message:
        """Run the prepared job in a window of time."""
        window = timing.Window(start=message["start"], end=message["end"])
        stall_s = message["stall_ratio"] * self._alone_s
        report = timing.summary(timing.step_ends(self._step, self.device, window, stall_s), window, self._batch_size)
        return {"event": "measured", "status": "ok"} | report | self._memory()

    def _drop(self) -> None:
        self._model, self._built, self._step = None, None, lambda: None

    def _collect(self) -> None:
        gc.collect()
        if self._on_gpu:
            self.torch.cuda.empty_cache()

    def _forget_peak(self) -> None:
        if self._on_gpu:
            self.torch.cuda.reset_peak_memory_stats()

    def _memory(self) -> Message:
        if not self._on_gpu:
            return {}
        cuda = self.torch.cuda
        return {"allocated_bytes": cuda.max_memory_allocated(), "reserved_bytes": cuda.max_memory_reserved()}


def versions(torch: Any, *, on_gpu: bool) -> Message:  # a module without types
    """Return the versions that a measurement depends on."""
    libraries = [f"{name} {version}" for name in LIBRARIES if (version := _version(name))]
    cudnn = torch.backends.cudnn.version() if on_gpu else None
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda if on_gpu else None,
        "cudnn": cudnn,
        "libraries": ", ".join(libraries),
        "python": sys.version.partition(" ")[0],
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _read(lines: TextIO, inbox: queue.Queue[str]) -> None:
    """Forward the parent's messages; when the parent closes the pipe, end this process at once."""
    for line in lines:
        inbox.put(line)
    os._exit(0)


def main() -> None:
    """Answer until the input ends."""
    warnings.simplefilter("ignore")  # of libraries; nobody reads them here
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not become an answer
    inbox: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(sys.stdin, inbox), daemon=True).start()
    worker = Worker(sys.argv[1])
    print(json.dumps(worker.hello()), file=answers, flush=True)
    while True:
        print(json.dumps(worker.handle(json.loads(inbox.get()))), file=answers, flush=True)


if __name__ == "__main__":
    main()
