"""Observes the first cycles of a job's own run, and writes a record for the job's next submission.

`sitecustomize` in `gpusage/capture/on_start` calls `observe` once PyTorch is imported; `gpusage job-card --first-run`
reads the record.

Invariants:

1. The program's results are the same to the last bit: nothing of ours draws a random number, reads or writes a tensor,
   or calls a module. Objects that the program gives up do not stay alive.
2. No exception of ours reaches the program: a failure ends the observation.
3. After two full cycles modules are called as before; after `TIMED_UPDATES` updates nothing of ours is left but a hook
   that returns at once (to remove one while PyTorch calls them all would raise an error), and a handler that a fork
   calls, which Python cannot remove. In a program that updates no weights, the first `BACKWARD_CALLS` backward passes
   are counted.
4. The card is made in a process of its own, which has the lowest priority, computes on shapes alone, runs no handler
   of the program's and ends within ten minutes, of which it computes one at most.
5. This process imports nothing that PyTorch has not imported: the program's folder may have a module of that name.
"""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gpusage.capture.inside.another_process import forget_values, in_another_process, undivide
from gpusage.capture.inside.observer import MAXIMUM_CALLS, Call, Observer, is_of_keras, weights_of, with_gradient
from gpusage.capture.inside.record import program_digest, program_path, read_record, record_of, write_json

if TYPE_CHECKING:
    from gpusage.capture.inside.step import Observation

CYCLES = 2
"""Full cycles to observe: a GradScaler often skips the first update."""
TIMED_UPDATES = 64
INFERENCE_CALLS, MOST_CALLS = 32, 512
"""Equal calls without a gradient, and calls of any kind, after which a program that has updated nothing is taken for
inference."""
BACKWARD_CALLS = 64
"""Backward passes after which a program without an optimizer is taken to change its weights by hand."""
NO_BACKWARD_PASS = -1
"""PyTorch's number of the backward pass that runs in a thread without one."""
SCHEMA = "gpusage.first-run/1"


def observe(record: str, finish: Callable[[], None]) -> None:
    """Observe this process from now on.

    Args:
        record: Path of the record, without its suffix.
        finish: Called after the last import of ours.
    """
    FirstRun(Path(record), finish).begin()


class _Forgotten:
    """Replaces an object of the program's, which may hold tensors."""


class _ForgottenCache:
    """Replaces a generating model's cache; readers of the call know caches by the end of their class's name."""


class _PassiveObserver(Observer):
    """Notes calls; a failure ends the observation."""

    is_checkpointed = False

    def note(self, outer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """Note a call of *outer*; ``None`` for a call of no model, or for activations that are computed once more."""
        if torch.compiler.is_compiling():
            return None

        try:
            # A module that is called in a backward pass computes activations once more.
            if torch._C._current_graph_task_id() != NO_BACKWARD_PASS:
                self.is_checkpointed = True
                return None
            if is_of_keras(outer):
                return None
            return super().note(outer, args, kwargs)
        except Exception:  # a module that is like no other
            self.uninstall()
            return None

    def _leaf(self, leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, torch.Tensor | bool | int | float | str | torch.dtype | torch.device):
            return super()._leaf(leaf)
        return _ForgottenCache() if type(leaf).__name__.endswith("Cache") else _Forgotten()

    def _refer_to(self, module: nn.Module) -> Callable[[], nn.Module | None]:
        return weakref.ref(module)


class FirstRun:
    """A run of the user's program.

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
        self._trained: dict[int, weakref.ref[torch.Tensor]] = {}
        self._backward_counts: list[int] = []
        self._passes: list[int] = []
        self._updated_at_s: list[float] = []
        self._call_count = self._rank = 0
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

        # Both are used later, where an AttributeError would come too late.
        _ = torch.compiler.is_compiling, torch._C._current_graph_task_id

        def hook(optimizer: Any, *_: Any) -> None:
            if not (self._has_ended or torch.compiler.is_compiling()):
                self._safely(self._after_step, optimizer)

        self._hook = register_optimizer_step_post_hook(hook)
        self._count_backward_calls()
        self.observer.install()
        atexit.register(self._at_exit)
        os.register_at_fork(after_in_child=self._stop)

    def _stop(self) -> None:
        """Observe nothing in a child of the program's, which has all of this as well."""
        self.observer.uninstall()
        self._has_ended = True

    def end(self) -> None:
        """Observe no more, and leave nothing in this process or in the environment of its children."""
        if self._has_ended:
            return

        self._stop()
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
        if len(self._passes) <= CYCLES:
            self._trained |= {id(weight): weakref.ref(weight) for weight in with_gradient(optimizer)}
        self._backward_counts.append(self._backward_count - self._counted_backward)
        self._counted_backward = self._backward_count

        # One optimizer's updates bound the cycles; without it, nothing does.
        first = self._optimizers[0]()
        if first is None:
            self.end()
        if first is not optimizer:
            return

        # A long evaluation before training passed for inference.
        if self._has_written and not self._passes:
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
        """Return the passes of the cycle that ends now."""
        # The fewest of several optimizers and modules: a GAN's discriminator has two calls in a pass.
        counts = [each for each in self._backward_counts if each]  # a second optimizer may step after the same pass
        passes = min([*counts, *self._counts.values()], default=1)
        self._backward_counts.clear()
        self._counts.clear()
        return passes

    def _write(self) -> None:
        """Write the record in another process; from now on modules are called as before."""
        self.observer.uninstall()
        self._has_written = True
        # Some modules may be gone by now; of several processes the first one writes.
        calls = self.observer.calls = [call for call in self.observer.calls if call.reference() is not None]
        self._rank, count = rank_and_count()
        if calls and self._rank == 0:
            in_another_process(lambda: self._write_record(count))
        calls.clear()

    def _observation(self, gpu_count: int) -> Observation:
        """Return the observed step, its weights whole and without their values."""
        from gpusage.capture.inside.cuda_on_cpu import pretend_cuda
        from gpusage.capture.inside.light import LeftOut, computed_precision
        from gpusage.capture.inside.step import Observation

        # Some programs freeze weights between two updates.
        for each in self._trained.values():
            if (weight := each()) is not None:
                weight.requires_grad_()
        cuda: Any = torch.cuda
        if cuda.is_initialized():
            pretend_cuda(gpu_count)  # a fork may not ask it

        # Divided weights become whole before their values go: the wrappers know the whole sizes.
        optimizers = [optimizer for each in self._optimizers if (optimizer := each()) is not None]
        modules = [call.module for call in self.observer.calls]
        sharded = [wrapper for each in self.observer.sharded.values() if (wrapper := each()) is not None]
        policies = undivide(modules, sharded)
        forget_values(modules, optimizers)
        strategy = "fsdp" if policies else self.observer.strategy
        weights = {id(weight): weight for module in modules for weight in weights_of(module)}
        for optimizer in optimizers if strategy not in (None, "ddp") else ():
            if not weights.keys() & {id(weight) for group in optimizer.param_groups for weight in group["params"]}:
                optimizer.param_groups[0]["params"] = [*weights.values()]  # it updates rows of them

        return Observation(
            calls=self.observer.calls,
            optimizers=optimizers,
            accumulate=min(self._passes[1:]) if len(self._passes) > 1 else None,
            is_full=len(self._passes) > 1,
            left_out=LeftOut(
                is_compiled=self.observer.is_compiled,
                is_checkpointed=self.observer.is_checkpointed,
                strategy=strategy,
                precision=next(filter(None, map(computed_precision, policies)), self.observer.precision),
                gpu_count=gpu_count,
            ),
        )

    def _write_record(self, gpu_count: int) -> None:
        """Write the record of the observed step, and the card of its model."""
        from gpusage.capture.inside.cuda_on_cpu import CudaOnCpu
        from gpusage.capture.inside.step import record_of_step
        from gpusage.graphs.card.text import write_file
        from gpusage.graphs.reader import CARD_SUFFIX

        observation = self._observation(gpu_count)
        with CudaOnCpu():
            step, graph = record_of_step(observation)

        job = os.environ.get(os.environ.get("GPUSAGE_LEARN_JOB", ""), "")
        seen = {"schema": SCHEMA, "job": job, "program": program_path(), "program_digest": program_digest(), **step}
        self._record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A card shows a user's model, which is nobody else's business.
        os.umask(0o077)
        path, card = (self._record.with_name(f"{self._record.name}{suffix}") for suffix in (".json", CARD_SUFFIX))
        known = read_record(path)
        record = record_of(known, seen)
        if record == known:
            return
        if graph is None:
            card.unlink(missing_ok=True)  # it belongs to another step
        else:
            write_file(graph, card)
        write_json(path, record)

    def _write_measured(self) -> None:
        """Write the step time on a whole GPU; a share's would be longer."""
        intervals_s = [later - one for one, later in zip(self._updated_at_s, self._updated_at_s[1:], strict=False)]
        percent = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") or "100"
        cuda: Any = torch.cuda
        if intervals_s and cuda.is_initialized() and percent == "100" and self._rank == 0:
            document = {
                "program_digest": program_digest(),
                # The median: the first updates still tune kernels, and some save a checkpoint.
                "step_time_s": sorted(intervals_s)[len(intervals_s) // 2] / min(self._passes[1:]),
                "gpu": cuda.get_device_name(),
            }
            # At exit Python 3.12 can start neither process nor thread.
            write_json(self._record.with_name(f"{self._record.name}.measured.json"), document)

        self._finish()


def rank_and_count() -> tuple[int, int]:
    """Return the number of this process among the training processes, and their count."""
    distributed: Any = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, int(os.environ.get("WORLD_SIZE", "1"))
