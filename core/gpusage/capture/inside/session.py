"""Runs the user's program up to its first full cycle of steps, and sends a record: the child's main program.

The messages are lines of JSON: stages first, the record last. The program could write there, too, so that the reader
trusts them no more than a comment.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
from torch import nn

from gpusage.capture.inside.cuda_on_cpu import CudaOnCpu, for_a_tracer, pretend_cuda
from gpusage.capture.inside.hollow import HollowCalls
from gpusage.capture.inside.libraries import make_libraries_light
from gpusage.capture.inside.light import LeftOut, make_light
from gpusage.capture.inside.observer import Call, Observer, has_parts, with_gradient
from gpusage.capture.inside.step import MAXIMUM_FAILURE_CHARACTERS, Observation, record_of_step, step_calls, why_unread
from gpusage.graphs.card.text import to_document

INFERENCE_CALLS = 3
"""Equal calls without a gradient after which a program without an optimizer is taken for inference."""
BACKWARD_CALLS = 3
"""Backward passes after which a program without an optimizer is taken to change its weights by hand."""


class Session:
    """The run of a program."""

    def __init__(self, pipe: int, gpu_count: int) -> None:
        self.observer = Observer(replace=self._replace)
        self.left_out = LeftOut(gpu_count=gpu_count)
        self.real_calls: dict[str, str] = {}
        self._pipe = pipe
        self._live: dict[int, Any] = {}
        self._optimizers: dict[int, Any] = {}
        self._trained: dict[int, torch.Tensor] = {}
        self._backward_count = 0
        self._backward_counts: list[int] = []
        self._before: Counter[int] = Counter()
        self._accumulate: int | None = None
        self._has_cycle = self._is_full = self._is_aside = self._is_late = False
        self._hollow = HollowCalls()
        self._earlier: list[Call] = []
        self._computed: set[int] = set()
        self._places: dict[int, int] = {}

    def run(self, program: Sequence[str]) -> NoReturn:
        """Run *program*, a script or ``-m`` and a module with its arguments, and send the record."""
        # At its time limit the parent sends SIGTERM, and waits a little for the record.
        signal.signal(signal.SIGTERM, self._end_of_time)
        # To the program's own processes the signal says something else.
        os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
        # The program shares a login node with others.
        torch.set_num_threads(1)
        pretend_cuda(self.left_out.gpu_count)
        make_light(self.left_out)
        make_libraries_light(self.left_out, self._after_other_step)
        self._hook()
        self.send({"stage": "the program's imports and data"})

        try:
            with CudaOnCpu():
                sys.argv = list(program[program[0] == "-m" :])
                if program[0] == "-m":
                    sys.path.insert(0, str(Path.cwd()))
                    runpy.run_module(program[1], run_name="__main__", alter_sys=True)
                else:
                    sys.path.insert(0, str(Path(program[0]).resolve().parent))
                    runpy.run_path(program[0], run_name="__main__")
        except SystemExit as exit_request:
            self.finish("failed" if exit_request.code else "end")
        except BaseException as error:  # whatever the program raises is its end
            traceback.print_exc()
            self.finish("failed", f"{type(error).__name__}: {error}")

        self.finish("end")

    def send(self, message: dict[str, Any]) -> None:
        """Send a line."""
        line = memoryview(json.dumps(message).encode() + b"\n")
        with suppress(OSError):  # nobody reads any more
            while line:
                line = line[os.write(self._pipe, line) :]

    def finish(self, ending: str, failure: str = "") -> NoReturn:
        """Send the record, and end this process at once: nothing of the program may run any more."""
        with self._aside():
            self._end(self._record(ending, failure))

    def _finish_if_read(self, ending: str) -> None:
        """Finish, unless the graph cannot be read: then modules without a graph are taken apart in the next cycle."""
        self._is_full = True
        with self._aside():
            record = self._record(ending)
            step = step_calls(self._observation())[1] if record.get("graph_failure") else []
            # What was computed all the same has parts that cannot be observed.
            divisible = [call for call in step if has_parts(call.module) and id(call.module) not in self._computed]
            # At the time limit the record is ready, and the time left may not suffice for another graph.
            unread = [(call, why) for call in divisible if not self._is_late and (why := why_unread(call))]
            if self._is_late or not unread:
                self._end(record)
        for call, why in unread:
            self.real_calls.setdefault(type(call.module).__name__, why)
            # The call itself stays as it is: if the program ends within the next cycle, it is what was seen.
            self.observer.apart[id(call.module)] = replace(call, count=0)
        self._begin_cycle()

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Let PyTorch be as it is without our calls and the program's modes, in any of which it may have stopped."""
        module_class: Any = nn.Module
        before, module_class.__call__, self._is_aside = module_class.__call__, self.observer.original, True
        modes = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
        frozen = [weight for weight in self._trained.values() if not weight.requires_grad]
        try:
            with torch.enable_grad(), CudaOnCpu(), for_a_tracer():
                for weight in frozen:
                    weight.requires_grad_()
                yield
        finally:
            for weight in frozen:
                weight.requires_grad_(False)
            for mode in reversed(modes):
                torch._C._push_on_torch_function_stack(mode)
            module_class.__call__, self._is_aside = before, False
        if self._is_late:
            self.finish("time")

    def _end_of_time(self, *_: object) -> None:
        self._is_late = True
        if not self._is_aside:
            self.finish("time")

    def _record(self, ending: str, failure: str = "") -> dict[str, Any]:
        record: dict[str, Any] = {
            "ending": ending,
            "failure": failure[:MAXIMUM_FAILURE_CHARACTERS],
            "frameworks": [name for name in ("tensorflow", "jax", "keras") if name in sys.modules],
        }
        try:
            if self.observer.calls or self._earlier:
                self.send({"stage": "the card"})
                seen, graph = record_of_step(self._observation())
                real_calls = dict(list(self.real_calls.items())[:3])
                record |= {**seen, "real_calls": real_calls, "graph": None if graph is None else to_document(graph)}
        except BaseException as error:  # the record has the reason; the keys count without a graph
            traceback.print_exc()
            record["graph_failure"] = str(error)[:MAXIMUM_FAILURE_CHARACTERS] or type(error).__name__
        return record

    def _end(self, record: dict[str, Any]) -> NoReturn:
        self.send({"record": record})
        sys.stdout.flush()
        sys.stderr.flush()
        # No handler of the program's, and no wait for its threads.
        os._exit(0)

    def _observation(self) -> Observation:
        # A full cycle has all calls of a step, and nothing else; without one, an evaluation may have come last.
        calls = self._earlier if self._has_cycle and not self._is_full else self.observer.calls or self._earlier
        return Observation(
            calls=sorted(calls, key=lambda call: self._places[id(call.module)]),
            optimizers=[*(self._optimizers or self._live).values()],
            accumulate=self._accumulate,
            is_full=self._is_full,
            left_out=self.left_out,
        )

    def _replace(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._places.setdefault(id(call.module), len(self._places))
        # Called inside a compiled function, a model is compiled itself.
        if self.left_out.compiled_depth:
            self.left_out.is_compiled = True
        # Of a model in parts, its own calls count, so that all parts have as many.
        calls = self.observer.apart.get(id(call.module), call)
        calls.count += calls is not call
        is_inference = not (call.has_gradient or self._live or call.outer)
        if is_inference and (call.generated or calls.count >= INFERENCE_CALLS):
            self._finish_if_read("inference")
        is_apart = id(call.module) in self.observer.apart
        if not (is_apart or id(call.module) in self._computed):
            try:
                return self._hollow.call(call, args, kwargs)
            except Exception as error:  # some modules need values, as in a condition on a tensor
                name = type(call.module).__name__
                self.real_calls.setdefault(name, f"{type(error).__name__}: {error}"[:MAXIMUM_FAILURE_CHARACTERS])
                is_apart = has_parts(call.module)
        if is_apart:
            # Its parts may run on shapes, and what lies between them is computed.
            self.observer.calls = [each for each in self.observer.calls if each is not call]
            with suppress(Exception):
                return self.observer.observe_parts(call, args, kwargs)
            # A module within itself may have failed before.
            call = self.observer.apart.pop(id(call.module), call)
            self.observer.calls = [*(each for each in self.observer.calls if each is not call), call]
        self._computed.add(id(call.module))
        call.has_backward = call.has_gradient
        return self.observer.original(call.module, *args, **kwargs)

    def _hook(self) -> None:
        """Observe modules, optimizers and backward passes; updates with hollow gradients do nothing."""
        self.observer.install()
        session, anything = self, cast("Any", torch)
        optimizer_class, scaler = anything.optim.Optimizer, anything.amp.GradScaler
        begin, backward = optimizer_class.__init__, torch.autograd.backward

        def begin_observed(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            begin(optimizer, *args, **kwargs)
            session._live[id(optimizer)] = optimizer
            # What came before has tried the model, and is no step.
            if session._accumulate is None:
                session._begin_segment()

        def step(optimizer: Any, closure: Callable[[], Any] | None = None, *_: Any, **__: Any) -> Any:
            with torch.enable_grad():
                loss = closure() if callable(closure) else None  # Lightning puts its whole step into one
            session._after_step(optimizer)
            return loss

        def count_backward(*args: Any, **kwargs: Any) -> None:
            session._backward_count += 1
            if not session._live and session._backward_count >= BACKWARD_CALLS:
                session._finish_if_read("by hand")
            backward(*args, **kwargs)

        optimizer_class.__init__ = begin_observed
        optimizer_class.profile_hook_step = staticmethod(lambda _: step)
        # Hollow gradients are zeros: a scaler has nothing to scale or to check.
        scaler.step = lambda _, optimizer, *args, **kwargs: optimizer.step(*args, **kwargs)
        scaler.unscale_ = scaler.update = lambda *_, **__: None
        anything.autograd.backward = count_backward

    def _after_other_step(self, optimizer: Any) -> None:
        """Note an update by a library's own optimizer."""
        self._live[id(optimizer)] = optimizer
        self._after_step(optimizer)

    def _after_step(self, optimizer: Any) -> None:
        """Finish after a full cycle, from one step of the first optimizer to its next."""
        self._optimizers[id(optimizer)] = optimizer
        self._trained |= {id(weight): weight for weight in with_gradient(optimizer)}
        self._backward_counts.append(self._backward_count - sum(self._backward_counts))
        if optimizer is not next(iter(self._optimizers.values())):
            return

        # Passes since the last update, at most one for each backward pass: the fewest of several optimizers and
        # modules, for a GAN's discriminator has several calls in a pass.
        counts = self._hollow.backward_counts - self._before
        passes = [each for each in self._backward_counts if each]  # a second optimizer may step after the same pass
        is_first, self._accumulate = self._accumulate is None, min([*passes, *counts.values()], default=1)
        # The first cycle has no beginning, and may have had an evaluation; so only the second one is full.
        if is_first:
            self._begin_cycle()
        else:
            self._finish_if_read("cycle")

    def _begin_cycle(self) -> None:
        self._begin_segment()
        self._has_cycle, self._is_full = True, False
        self._before, self._backward_count, self._backward_counts = self._hollow.backward_counts.copy(), 0, []

    def _begin_segment(self) -> None:
        self._earlier = self.observer.calls or self._earlier
        self.observer.calls = []


def main() -> None:
    """Run the program of the command line; its options come first, as JSON."""
    options, program = json.loads(sys.argv[1]), sys.argv[2:]
    Session(options["pipe"], options["gpu_count"]).run(program)
