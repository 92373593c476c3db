"""Looks at the first cycles of a job's own run, and writes plain data of them for the job's next submission.

`sitecustomize` beside it loads this file by its path; `gpusage.cli.cards.first_run` reads what it writes.

Invariants:

1. It only looks: it calls nothing of the program's, makes no process and no thread, and changes no tensor. PyTorch
   reads two attributes of its own classes at each call of a module and after each update; descriptors in their place
   see this, return what stood there, and are gone before the call itself begins: no frame of ours is on its stack.
2. Nothing is imported. It uses what a bare Python has loaded, and PyTorch.
3. Its time is `BUDGET_S` in all, its record at most `MAXIMUM_CHARACTERS`; more ends the observation.
4. What raises here ends the observation and reaches nobody, unless a handler of the program's signals raised it.
5. After the end nothing of ours is left: not in PyTorch, not in the environment of later children.
"""

import os
import sys
from time import perf_counter, thread_time

CYCLES = 2  # full ones: a GradScaler often skips the first update
WARM_UP, TIMED = 8, 24  # updates in which compilers and cuDNN still choose; updates that are timed then
STEADY = 1.25  # of the two halves of the timed steps; beyond it the GPU's queue may hide their true length
INFERENCE_CALLS = 32  # equal ones without a gradient and an update, after which the program is taken for inference
BUDGET_S = 0.05  # of the processor: a busy host ends nothing
MAXIMUM_READS, MAXIMUM_CALLS, MAXIMUM_LEAVES, MAXIMUM_PARTS = 20_000, 64, 1_000, 1_000
MAXIMUM_CHARACTERS = 1 << 18  # as `gpusage.cli.cards.first_run` reads it
MAXIMUM_RECORDS, MAXIMUM_SCRIPTS, COMPARED = 64, 256, 16  # of a script; each has a folder; of which the oldest goes
MAXIMUM_PROGRAM_BYTES = 1 << 20
LEAST_FREE_BYTES = 256 << 20  # of the host's memory
CALLER = 3  # of a method of `Run`: between them are `guarded` and `Descriptor.__get__`
SCHEMA = "gpusage.first-run/2"
COMPILERS = ("torch.compile", "torch.export", "torch.compiler.")
_NAMES = [type.__dict__[name].__get__ for name in ("__module__", "__qualname__")]
_get_ident, _signal = sys.modules["_thread"].get_ident, sys.modules["_signal"]


def observe(record, folder, is_of_signal):
    """Return what begins the observation.

    *record* is the folder of this script's records, *folder* ours; *is_of_signal* tells what is the program's error.
    """
    begun_s = thread_time()
    main = sys.modules["__main__"]
    path = os.path.abspath(main.__file__)
    with open(path, "rb", buffering=0) as file:
        content = file.read(MAXIMUM_PROGRAM_BYTES)
    spec = getattr(main, "__spec__", None)
    start = ["-m", spec.name] if spec else [path]
    document = {
        "schema": SCHEMA,
        "job": os.environ.get(os.environ.get("GPUSAGE_LEARN_JOB", ""), ""),
        "program": path,
        "program_digest": digest_of(content),
        "command": [sys.executable, *start, *sys.argv[1:]],
        "folder": os.getcwd(),
        "share": os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") or "100",
    }
    run = Run(record, folder, is_of_signal, document)
    run.spent_s = thread_time() - begun_s
    return run.begin


def digest_of(content):
    """Return the digest of *content*, which protects nothing: a bare Python has no other of this speed."""
    return "%d:%032x" % (len(content), int.from_bytes(content, "little") % (2**128 - 159))


class Descriptor:
    """Stands in the place of an attribute of a class, and calls *note* with each instance of which it is read."""

    def __init__(self, owner, name, note):
        self.owner, self.name, self.note = owner, name, note
        self.original = owner.__dict__[name]
        self.bind = getattr(self.original, "__get__", None)
        setattr(owner, name, self)

    def __get__(self, instance, owner=None):
        """Return the original attribute; without an instance as well."""
        if instance is not None:
            try:
                self.note(instance)
            except RecursionError:  # ours: what follows needs as many frames, and fails by itself
                pass
        return self.original if self.bind is None else self.bind(instance, owner)

    def remove(self):
        """Put the original attribute back, unless somebody has put another one there."""
        if self.owner.__dict__.get(self.name) is self:
            setattr(self.owner, self.name, self.original)


class Events(dict):  # type: ignore[type-arg]  # Python 3.8 reads it
    """PyTorch's names of what the program uses: a known one costs a look-up in C, each new one is told once."""

    def __missing__(self, event):
        self[event] = None
        self.report(event)
        return self.log(event)


def guarded(method):
    """Return *method* of `Run` with its time counted, and with nothing that it raises but what is the program's."""

    def call(run, *args):
        begun_s = thread_time()
        run.read_count += 1
        try:
            is_over = run.is_over or run.spent_s > BUDGET_S or run.read_count > MAXIMUM_READS
            if is_over or os.getpid() != run.process or sys.getprofile() or sys.gettrace():
                run.end()
            elif _get_ident() == run.thread:
                method(run, *args)
        except RecursionError:  # the program is deep, and nothing is wrong with it
            pass
        except BaseException as error:
            try:
                run.end()
            except BaseException as another:
                if run.is_of_signal(another):
                    raise
            if run.is_of_signal(error):
                raise
        run.spent_s += thread_time() - begun_s

    return call


class Run:
    """A run of the program of *document*; the others are as for `observe`."""

    def __init__(self, record, folder, is_of_signal, document):
        self.record, self.folder, self.is_of_signal, self.document = record, folder, is_of_signal, document
        self.process, self.thread, self.spent_s = os.getpid(), _get_ident(), 0.0
        self.descriptors, self.calls, self.optimizers, self.times_s, self.cycles = [], {}, {}, [], []
        self.torch = self.path = self.log = self.events = self.text = None
        self.read_count = self.update_count = 0
        self.passes, self.counts, self.is_whole = {}, {}, document["share"] == "100"
        self.is_compiled = self.has_scaler = self.is_over = False

    @guarded
    def begin(self, torch):
        """Look from now on at *torch*, the program's PyTorch."""
        is_patched = torch.nn.Module.__call__ is not torch.nn.Module._wrapped_call_impl
        is_aside = self.thread != sys.modules["threading"].main_thread().ident  # only this thread's calls are seen
        monitoring = getattr(sys, "monitoring", None)
        is_monitored = monitoring and any(map(monitoring.get_tool, range(6)))
        with open("/proc/meminfo", "rb", buffering=0) as file:
            words = file.read(4096).split()
        free_bytes = int(words[words.index(b"MemAvailable:") + 1]) << 10
        if is_patched or is_aside or is_monitored or free_bytes < LEAST_FREE_BYTES:
            raise RuntimeError  # `guarded` ends the observation

        self.torch = torch
        self.tensors = (torch.Tensor, torch.nn.Parameter)
        self.outer = torch.nn.Module._wrapped_call_impl.__code__
        self.step = torch.optim.Optimizer.profile_hook_step(max).__code__
        events = Events()
        self.log, events.report = torch._C._log_api_usage_once, self.on_event
        events.log, self.events = self.log, events.__getitem__
        torch._C._log_api_usage_once = self.events
        self.descriptors.append(Descriptor(torch.nn.Module, "_compiled_call_impl", self.on_call))
        self.descriptors.append(Descriptor(torch.optim.Optimizer, "_optimizer_step_code", self.on_update))

    def end(self):
        """Leave everything as it was."""
        self.is_over = True  # a handler of a signal may raise in here; the next look then ends it
        for each in self.descriptors:
            each.remove()
        if self.events is not None and self.torch._C._log_api_usage_once is self.events:
            self.torch._C._log_api_usage_once = self.log
        self.calls = self.torch = self.events = None
        if self.folder and os.getpid() == self.process:
            for name in ("GPUSAGE_LEARN", "GPUSAGE_LEARN_JOB"):
                os.environ.pop(name, None)
            paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
            left = [path for path in paths if os.path.normpath(path) != self.folder]  # asks for no working folder
            if left and left != paths:
                os.environ["PYTHONPATH"] = os.pathsep.join(left)
            elif not left:
                del os.environ["PYTHONPATH"]
        self.folder = ""

    @guarded
    def on_event(self, event):
        """End where a compiler begins: it would take our descriptors for the program's."""
        if event.startswith(COMPILERS):
            self.is_compiled = True
            self.write()
            self.end()

    @guarded
    def on_call(self, module):
        """Note the call of *module* that begins, if it is within no other."""
        frame = sys._getframe(CALLER)
        if frame.f_code is not self.outer:
            return
        torch, outer = self.torch, frame.f_back
        while outer is not None and outer.f_code is not self.outer:
            outer = outer.f_back
        if outer is not None or torch._C._get_tracing_state() is not None or torch._C._current_graph_task_id() != -1:
            return

        arguments = frame.f_locals
        shapes = self.shapes(arguments)
        if type(arguments) is dict:  # a copy, which the frame would keep; since Python 3.13 it is none
            arguments.clear()
        has_gradient, state = torch.is_grad_enabled(), object.__getattribute__(module, "__dict__")
        is_training = state["training"] is True
        key = (id(module), str(shapes), has_gradient, is_training)
        call = self.calls.get(key)
        if call is None:
            if len(self.calls) >= MAXIMUM_CALLS:
                raise RuntimeError
            is_cast = torch.is_autocast_enabled("cuda")
            call = self.calls[key] = {
                "class": name_of(module),
                "shapes": shapes,
                "gradient": has_gradient,
                "training": is_training,
                "autocast": str(torch.get_autocast_dtype("cuda")) if is_cast else "",
                "count": 0,
            }
        call["count"] += 1
        if call["count"] == 2:  # by then lazy weights have their shapes
            call["parts"] = self.parts(state)
        if has_gradient and is_training:
            self.passes[id(module)] = self.passes.get(id(module), 0) + 1
        if not self.update_count and not has_gradient and call["count"] >= INFERENCE_CALLS:
            self.write()
            self.end()

    def shapes(self, arguments):
        """Return shapes and types of the tensors in a call's *arguments*, as many as may be looked at."""
        shapes, waiting, left = [], [arguments["kwargs"], arguments["args"]], MAXIMUM_LEAVES
        with self.torch._C.DisableTorchFunction():
            while waiting and left > 0:
                each, left = waiting.pop(), left - 1
                kind = type(each)
                if kind in self.tensors:
                    shapes.append(self.shape(each))
                elif kind in (tuple, list):
                    waiting += each[:left][::-1]
                elif kind is dict:
                    waiting += [value for value, _ in zip(each.values(), range(left))][::-1]
        return shapes

    def shape(self, tensor):
        """Return shape and type of *tensor*; a size that is a symbol is not looked at."""
        sizes = tuple(tensor.shape)
        return [list(sizes) if all(type(size) is int for size in sizes) else None, str(tensor.dtype)]

    def parts(self, state):
        """Return path, class, weights and buffers of each module in the tree of *state*, a module's attributes."""
        parts, waiting = [], [("", state)]
        with self.torch._C.DisableTorchFunction():
            while waiting and len(parts) < MAXIMUM_PARTS:
                path, state = waiting.pop()
                # A library's own kind of dict may gather weights as soon as it is asked for one.
                tables = [list(dict.items(state[name])) for name in ("_parameters", "_buffers")]
                shown = [[[name, *self.weight(each)] for name, each in table if each is not None] for table in tables]
                parts.append([path, *shown])
                for name, module in list(dict.items(state["_modules"]))[::-1]:
                    if module is not None:
                        inner = object.__getattribute__(module, "__dict__")
                        waiting.append(("%s.%s:%s" % (path, name, name_of(module)), inner))
        return parts

    def weight(self, weight):
        """Return shape, type and whether it is trained; of a class of somebody's own its name alone."""
        is_plain = type(weight) in self.tensors
        return [*self.shape(weight), weight.requires_grad] if is_plain else [None, name_of(weight), True]

    @guarded
    def on_update(self, optimizer):
        """Note an update by *optimizer*; the one that leads bounds the cycles: the first may be given up."""
        frame = sys._getframe(CALLER)
        if frame.f_code is not self.step:
            return
        self.optimizers[name_of(optimizer)] = None
        self.counts[id(optimizer)] = count = self.counts.get(id(optimizer), 0) + 1
        if len(self.counts) > MAXIMUM_CALLS:
            raise RuntimeError
        if count <= self.update_count:
            return
        self.update_count = count
        self.times_s.append(perf_counter())
        if self.update_count <= CYCLES + 1:
            caller = frame.f_back
            for _ in range(8):
                self.has_scaler |= caller.f_globals.get("__name__") == "torch.amp.grad_scaler"
                caller = caller.f_back or caller
            # The first cycle has no beginning: what came before its update may have been an evaluation.
            self.cycles = [*self.cycles, min(self.passes.values(), default=1)][-CYCLES:]
            self.passes.clear()
        if self.update_count == CYCLES + 1:
            self.descriptors[0].remove()
            self.write()
        elif self.update_count > WARM_UP + TIMED:
            self.write()
            self.end()

    def step_time_s(self):
        """Return the time of an update on a whole GPU; ``None`` if nobody knows it without waiting for the GPU."""
        times_s = self.times_s[WARM_UP:]
        steps_s = [later - one for one, later in zip(times_s, times_s[1:])]
        if len(steps_s) < TIMED or not self.is_whole or not self.torch.cuda.is_initialized():
            return None
        middle = len(steps_s) // 4
        halves_s = [sorted(steps_s[: 2 * middle])[middle], sorted(steps_s[2 * middle :])[middle]]
        return sorted(steps_s)[2 * middle] if max(halves_s) <= STEADY * min(halves_s) else None

    def write(self):
        """Write the record; of the processes of one job that run one program the first one does."""
        torch = self.torch
        distributed, world, rank = torch.distributed, int(os.environ.get("WORLD_SIZE", "1")), 0
        if distributed.is_available() and distributed.is_initialized():
            world, rank = distributed.get_world_size(), distributed.get_rank()
        if rank:
            raise RuntimeError
        if not self.path:
            self.make_folder()
        step_time_s = self.step_time_s()
        timed = {"step_time_s": step_time_s, "gpu": torch.cuda.get_device_name() if step_time_s else ""}
        # The second time only the step time is new.
        self.text = self.text or json_text(
            {
                **self.document,
                "calls": list(self.calls.values()),
                "optimizers": list(self.optimizers),
                "accumulate": min(self.cycles) if self.update_count > CYCLES else None,
                "compile": self.is_compiled,
                "scaler": self.has_scaler,
                "world": world,
            }
        )
        text = "%s,%s" % (self.text[:-1], json_text(timed)[1:])
        words = (self.document["job"] or "0", self.document["program_digest"][-8:], "" if self.is_whole else "share.")
        path = os.path.join(self.record, "%s.%s.%sjson" % words)
        if len(text) > MAXIMUM_CHARACTERS or (not self.path and os.path.exists(path)):
            raise RuntimeError

        # A record is whole or not there: a timer of the program's may raise between any two of these lines.
        fresh = "%s.%d" % (path, self.process)
        try:
            with open(fresh, "xb", buffering=0, opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                if file.write(text.encode("ascii")) != len(text):  # no room
                    raise RuntimeError
            os.rename(fresh, path)
            self.path = path
        finally:
            if os.path.exists(fresh):
                os.unlink(fresh)

    def make_folder(self):
        """Make the folder of the record if one may be written, and remove one of many other scripts'."""
        folder, runs = self.record, os.path.dirname(self.record)
        while folder and not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        # A program that runs as somebody else (su, sudo -E) leaves nothing in this user's home; beyond a limit of file
        # sizes the system ends a program that has made Python heed this; the next sbatch removes what an array leaves.
        is_own = os.stat(folder).st_uid in (0, os.geteuid())
        is_full = folder == self.record and len(os.listdir(folder)) >= MAXIMUM_RECORDS
        if is_full or not is_own or _signal.getsignal(_signal.SIGXFSZ) != _signal.SIG_IGN:
            raise RuntimeError
        if folder == self.record:
            return

        # Each generated script has a folder of its own. To compare all would take long on a file server.
        os.makedirs(runs, 0o700, exist_ok=True)
        others = [each for each in os.scandir(runs) if each.is_dir(follow_symlinks=False)]
        if len(others) >= MAXIMUM_SCRIPTS and os.path.basename(runs) == "runs":
            oldest = min(others[:COMPARED], key=lambda each: each.stat().st_mtime)
            for each in os.scandir(oldest):
                os.unlink(each)
            os.rmdir(oldest)
        os.makedirs(self.record, 0o700, exist_ok=True)


def name_of(value):
    """Return the full name of the class of *value*."""
    return ".".join(str(read(type(value))) for read in _NAMES)  # a metaclass may have attributes of its own


def json_text(value):
    """Return *value* as JSON: Python's own module is not loaded in every Python."""
    if type(value) in (type(None), bool, int, float):
        return repr(value).lower().replace("none", "null")
    if type(value) is str:
        if value.isascii() and value.isprintable() and '"' not in value and "\\" not in value:
            return '"%s"' % value
        pairs = ((c,) if c < 1 << 16 else (0xD7C0 + (c >> 10), 0xDC00 + (c & 1023)) for c in map(ord, value))
        return '"%s"' % "".join("\\u%04x" % code for pair in pairs for code in pair)
    if type(value) is dict:
        return "{%s}" % ",".join("%s:%s" % (json_text(str(key)), json_text(each)) for key, each in value.items())
    return "[%s]" % ",".join(map(json_text, value))
