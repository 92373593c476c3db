"""Observes the first cycles of a job's own run, and writes what they showed for the job's next submission.

`sitecustomize` in `gpusage/capture/on_start` calls `observe` once PyTorch is imported; `gpusage job-card --first-run`
reads what was written.

Invariants:

1. What the program computes is the same to the last bit: no random number is drawn, no tensor is read or written, and
   no module is called but by the program. Nothing that it gives up stays alive.
2. No exception of ours reaches the program: whatever fails ends the observation.
3. After two full cycles modules are called as before; after `TIMED_UPDATES` updates nothing of ours is left but a hook
   that returns at once: to remove one while PyTorch calls them all would raise an error.
4. The card is made in a process of its own, which has the lowest priority, computes on shapes alone, runs no handler
   of the program's and ends within `LIMIT_S`.
5. This process imports nothing that PyTorch has not imported: the program's folder may have a module of that name.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import sys
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from gpusage.capture.inside.observer import MAXIMUM_CALLS, Call, Observer

LIMIT_S = 60
CYCLES = 2
"""Full ones that are observed: the first update of a GradScaler is often skipped."""
TIMED_UPDATES = 64
INFERENCE_CALLS, MOST_CALLS = 32, 512
"""Equal calls without a gradient, and calls of any kind, after which a program that has updated nothing is taken for
inference."""
BACKWARD_CALLS = 64
"""Backward passes after which a program without an optimizer is taken to change its weights by hand."""
NO_BACKWARD_PASS = -1
"""PyTorch's number of the backward pass that runs in a thread without one."""
SCHEMA = "gpusage.first-run/1"
_TEXT = 300


def observe(record: str, finish: Callable[[], None]) -> None:
    """Observe this process from now on.

    Args:
        record: Path of what is to be written, less its suffix.
        finish: Called when nothing more of ours will be imported.
    """
    FirstRun(Path(record), finish).begin()


class _Forgotten:
    """In the place of an object of the program's, which may hold tensors."""


class _ForgottenCache:
    """In the place of what a generating model keeps; its name says so to who reads the call."""


class _PassiveObserver(Observer):
    """Notes calls; what cannot be noted ends the observation."""

    is_checkpointed = False

    def note(self, outer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """Note a call of *outer*; ``None`` if it is not one of a model, or computes activations once more."""
        if torch.compiler.is_compiling():
            return None
        try:
            if torch._C._current_graph_task_id() != NO_BACKWARD_PASS:
                self.is_checkpointed = True
                return None
            return super().note(outer, *tree_map(_without_objects, (args, kwargs)))
        except Exception:  # a module that is like no other
            self.uninstall()
            return None

    def _refer_to(self, module: nn.Module) -> Callable[[], nn.Module | None]:
        return weakref.ref(module)


def _without_objects(leaf: Any) -> Any:
    if leaf is None or isinstance(leaf, torch.Tensor | bool | int | float | str | torch.dtype | torch.device):
        return leaf
    return _ForgottenCache() if type(leaf).__name__.endswith("Cache") else _Forgotten()


class FirstRun:
    """One run of the user's program.

    Args:
        record: As for `observe`.
        finish: As for `observe`.
    """

    def __init__(self, record: Path, finish: Callable[[], None]) -> None:
        self.observer = _PassiveObserver(replace=self._call)
        self._record = record
        self._finish = finish
        self._optimizers: list[weakref.ref[Any]] = []
        self._backward_count = 0
        self._counted_backward = 0
        self._counts: Counter[int] = Counter()
        self._backward_counts: list[int] = []
        self._passes: list[int] = []
        self._updated_at_s: list[float] = []
        self._call_count = 0
        self._has_written = self._has_ended = False
        self._hook: Any = None
        self._backward: Any = None
        self._counted: Any = None

    def begin(self) -> None:
        """Begin to observe.

        Raises:
            AttributeError: PyTorch is too old.
        """
        from torch.optim.optimizer import register_optimizer_step_post_hook

        _ = torch.compiler.is_compiling, torch._C._current_graph_task_id

        def hook(optimizer: Any, *_: Any) -> None:
            if not (self._has_ended or torch.compiler.is_compiling()):
                self._safely(self._after_step, optimizer)

        self._hook = register_optimizer_step_post_hook(hook)
        self._count_backward_calls()
        self.observer.install()
        atexit.register(self._at_exit)

    def end(self) -> None:
        """Observe no more, and leave nothing in this process or in the environment of those that it starts."""
        self.observer.uninstall()
        if self._has_ended:
            return
        self._has_ended = True
        autograd: Any = torch.autograd
        if autograd.backward is self._counted:
            autograd.backward = self._backward
        for name in ("GPUSAGE_LEARN", "GPUSAGE_LEARN_JOB"):
            os.environ.pop(name, None)
        with suppress(Exception):
            self._write_measured()

    def _at_exit(self) -> None:
        if not (self._has_ended or self._has_written or self._backward_count):
            self._safely(self._write)
        self.end()
        if self._hook is not None:
            self._hook.remove()

    def _count_backward_calls(self) -> None:
        autograd: Any = torch.autograd
        self._backward = autograd.backward
        run = self

        def backward(*args: Any, **kwargs: Any) -> Any:
            run._backward_count += 1
            if run._backward_count > BACKWARD_CALLS and not run._optimizers:
                run._safely(run._write)
                run._safely(run.end)
            return run._backward(*args, **kwargs)

        autograd.backward = self._counted = backward

    def _safely(self, function: Callable[..., None], *args: Any) -> None:
        try:
            function(*args)
        except Exception:  # the program must not notice
            with suppress(Exception):
                self.end()

    def _call(self, call: Call, outer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._safely(self._count, call)
        return self.observer.original(outer, *args, **kwargs)

    def _count(self, call: Call) -> None:
        self._call_count += 1
        if call.has_gradient and call.is_training:
            self._counts[id(call.module)] += 1
        elif not (self._backward_count or self._has_written):
            is_full = self._call_count >= MOST_CALLS or len(self.observer.calls) >= MAXIMUM_CALLS
            if is_full or call.count >= INFERENCE_CALLS:
                self._write()

    def _after_step(self, optimizer: Any) -> None:
        if not any(each() is optimizer for each in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))
        self._backward_counts.append(self._backward_count - self._counted_backward)
        self._counted_backward = self._backward_count
        first = self._optimizers[0]()
        if first is None:
            self.end()
        if first is not optimizer:
            return
        if self._has_written and not self._passes:  # it was taken for inference, and trains after all
            self.observer.install()
        if len(self._passes) > CYCLES:
            self._updated_at_s.append(time.perf_counter())
            if len(self._updated_at_s) > TIMED_UPDATES:
                self.end()
            return
        # The first cycle has no beginning: what came before its update may have been an evaluation.
        self._passes.append(self._cycle_passes())
        if len(self._passes) > CYCLES:
            self._write()

    def _cycle_passes(self) -> int:
        """Return the passes of the cycle that ends now.

        Of several optimizers the one with the fewest counts, and of several modules: a GAN's discriminator has two in a
        pass.
        """
        counts = [each for each in self._backward_counts if each]  # a second optimizer may step after the same pass
        passes = min([*counts, *self._counts.values()], default=1)
        self._backward_counts.clear()
        self._counts.clear()
        return passes

    def _write(self) -> None:
        """Write what was observed, in another process; modules are called as before from now on."""
        self.observer.uninstall()
        self._has_written = True
        calls = self.observer.calls = [call for call in self.observer.calls if call.reference() is not None]
        is_divided = self.observer.strategy == "fsdp" or any(type(c.module).__name__.startswith("FSDP") for c in calls)
        if calls and not is_divided:  # each process of FSDP has a part of the model
            in_another_process(self._write_record)
        calls.clear()

    def _write_record(self) -> None:
        from gpusage.capture.inside.light import LeftOut
        from gpusage.capture.inside.step import Observation, job_keys, modules_of, step_calls, step_graph, weight_count
        from gpusage.graphs.card.file import SUFFIX, write_file

        gpu_count = int(os.environ.get("WORLD_SIZE", "1"))
        observation = Observation(
            calls=self.observer.calls,
            optimizers=[optimizer for each in self._optimizers if (optimizer := each()) is not None],
            accumulate=min(self._passes[1:]) if len(self._passes) > 1 else None,
            is_full=len(self._passes) > 1,
            gpu_count=gpu_count,
            left_out=LeftOut(
                is_compiled=self.observer.is_compiled,
                is_checkpointed=self.observer.is_checkpointed,
                strategy=self.observer.strategy,
            ),
        )
        _, calls = step_calls(observation)
        forget_values(modules_of(calls))
        graph, failure = None, ""
        try:
            graph = step_graph(observation)
        except Exception as error:  # the keys are worth keeping without a graph
            failure = str(error)[:_TEXT]
        program, digest = _program()
        document = {
            "schema": SCHEMA,
            "job": os.environ.get(os.environ.get("GPUSAGE_LEARN_JOB", ""), ""),
            "program": program,
            "program_digest": digest,
            "keys": {name: [key.value, key.mark] for name, key in job_keys(observation, graph).items()},
            "modules": [[type(module).__name__, weight_count([module])] for module in modules_of(calls)],
            "graph_failure": failure,
        }
        self._record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.umask(0o077)
        path = self._record.with_name(f"{self._record.name}.json")
        known = _read_json(path)
        record = record_of(known, document)
        if record == known:
            return
        if graph is not None:
            write_file(graph, self._record.with_name(f"{self._record.name}{SUFFIX}"))
        _write_json(path, record)

    def _write_measured(self) -> None:
        """Write the step time, which only a whole GPU shows, and the memory that PyTorch took."""
        intervals_s = [later - one for one, later in zip(self._updated_at_s, self._updated_at_s[1:], strict=False)]
        percent = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") or "100"
        cuda: Any = torch.cuda
        if intervals_s and cuda.is_initialized() and percent == "100":
            document = {
                "step_time_s": sorted(intervals_s)[len(intervals_s) // 2] / min(self._passes[1:]),
                "gpu": cuda.get_device_name(),
                "memory_bytes": cuda.max_memory_reserved(),
            }
            path = self._record.with_name(f"{self._record.name}.measured.json")
            in_another_process(lambda: _write_json(path, document))
        self._finish()


def record_of(known: Mapping[str, Any], seen: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what is to be kept of a record that is *known* and of what was *seen* now.

    In one job, the program that trains counts. Runs of one program that differ, for a reason that its script does not
    show, are marked: they tell nothing of the next.
    """
    same_program = known.get("program_digest") == seen["program_digest"]
    if known and known.get("job") == seen["job"] and _trains(known) != _trains(seen):
        return known if _trains(known) else seen
    if not known or not same_program:
        return seen
    if known["keys"] == seen["keys"] and known["modules"] == seen["modules"]:
        return known
    return {**seen, "varies": True}


def _trains(document: Mapping[str, Any]) -> bool:
    return bool(document["keys"]["mode"][0] == "train")


def in_another_process(function: Callable[[], None]) -> None:
    """Call *function* in a process of its own, which nobody waits for and which prints nothing.

    A process between the two ends at once, so that the program never waits for a child that it did not start.
    """
    process = os.getpid()
    if any(action == "error" for action, *_ in warnings.filters):
        return  # Python 3.12 warns of a fork beside threads
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return
    finally:
        if os.getpid() == process:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        if os.fork():
            os._exit(0)
        forget_handlers()
        signal.alarm(LIMIT_S)
        os.nice(19)
        gc.disable()  # what is garbage may hold memory of the GPU
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nothing, descriptor)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        function()
    finally:
        os._exit(0)


def forget_handlers() -> None:
    """Let signals end this process, and those that managers and terminals send to a whole job pass by."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        is_for_all = number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
        with suppress(OSError, ValueError):  # the C library keeps some for itself
            signal.signal(number, signal.SIG_IGN if is_for_all else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


_TENSORS: list[Any] = []
"""Tensors that this process must not free: it cannot use the GPU."""


def forget_values(modules: list[nn.Module]) -> None:
    """Put tensors without values in the place of all that *modules* hold.

    A fork cannot use a GPU's tensors, and what it writes into memory that processes share is the program's.
    """
    shadows: dict[int, torch.Tensor] = {}

    def shadow(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.device.type == "meta":
            return value
        if id(value) not in shadows:
            _TENSORS.append(value)
            empty = torch.empty(value.shape, dtype=value.dtype, device="meta")
            is_weight = isinstance(value, nn.Parameter)
            shadows[id(value)] = nn.Parameter(empty, requires_grad=value.requires_grad) if is_weight else empty
        return shadows[id(value)]

    for module in modules:
        for part in module.modules():
            for table in (part._parameters, part._buffers, vars(part)):
                for name, value in list(table.items()):
                    if table is not vars(part) or getattr(value, "is_cuda", False):  # others may be read as numbers
                        table[name] = shadow(value)


def _program() -> tuple[str, str]:
    """Return the path and the digest of the program's main file."""
    import hashlib

    path = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    try:
        return str(Path(path).resolve()), hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return "", ""


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
        return document if {"keys", "modules", "job"} <= document.keys() and "mode" in document["keys"] else {}
    except (OSError, ValueError, AttributeError):
        return {}


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    from gpusage.boundary.atomic_file import atomic_write

    with suppress(OSError):
        atomic_write(path, json.dumps(document))
