"""Odd and hostile programs, each run without and with the observer of a job's own run.

A program is a script, of which `TRAINING` is the usual beginning; `EPILOGUE` follows it and tells what is left in the
process. Both runs must end alike: status, output, errors, and what the epilogue tells. Programs to which Python's start
and the import of PyTorch matter have a Python of their own; the others are forks of one that has imported it, because
that takes many seconds.
"""

from __future__ import annotations

import ast
import atexit
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NoReturn

from gpusage.capture import ON_START

LIMIT_S = 240.0
TRAINING = """
import os, random, sys, torch
from torch import nn
random.seed(0); torch.manual_seed(0); torch.set_num_threads(1)
class Network(nn.Module):
    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.ModuleList(parts or (nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)))
    def forward(self, inputs, *others, **named):
        for part in self.parts:
            inputs = part(inputs)
        return inputs
def train(model, count=40, optimizer=None, forward=None):
    optimizer = optimizer or torch.optim.AdamW(model.parameters())
    for _ in range(count):
        optimizer.zero_grad()
        (forward or model)(torch.randn(4, 8)).sum().backward()
        optimizer.step()
"""
EPILOGUE = r"""
import os
def tell():
    import hashlib, os, pathlib, random, re, resource, sys, threading, time
    torch, begun_s = sys.modules.get("torch"), time.monotonic()
    children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children")
    while (threading.active_count() > 1 or children.read_text()) and time.monotonic() < begun_s + 3: time.sleep(0.05)
    digest = hashlib.sha256(repr(random.getstate()).encode() if torch else b"")
    for value in list(globals().values()):
        if torch and isinstance(value, torch.nn.Module):
            for weight in value.parameters():
                digest.update(weight.detach().float().numpy().tobytes())
    if torch:
        digest.update(torch.get_rng_state().numpy().tobytes())
    with open("/proc/self/smaps_rollup") as file:
        memory = {line.split()[0]: int(line.split()[1]) for line in file if line.split()[-1] == "kB"}
    told = {
        "digest": digest.hexdigest(),
        "modules": sorted(sys.modules),
        "meta_path": [str(type(each)) for each in sys.meta_path],
        "path": sys.path,
        "variables": sorted(name for name in os.environ if name != "TOLD"),
        "threads": threading.active_count(),
        "children": len(children.read_text().split()),
        "files": sorted(
            re.sub(r"\d+|pym-\S+", "", os.readlink(each))
            for each in pathlib.Path("/proc/self/fd").iterdir() if os.path.lexists(each)
        ),
        "memory": memory["Private_Dirty:"] // 1024,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    if torch:
        told["hooks"] = [
            str(type(torch.nn.Module.__dict__["_compiled_call_impl"])),
            str(type(torch.optim.Optimizer.__dict__["_optimizer_step_code"])),
            str(type(torch._C._log_api_usage_once)), torch._C._log_api_usage_once.__name__,
            str(type(torch.__spec__)),
        ]
    with open(os.environ["TOLD"], "w") as file:
        __import__("json").dump(told, file)
if "TOLD" in os.environ: tell()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program.

    Attributes:
        source: Its script, without `TRAINING`.
        trains: Whether `TRAINING` comes first.
        options: Python's.
        files: Beside it, by name.
        variables: Of its environment.
        arguments: Words in the place of ``main.py``.
        starts: Whether Python's start and the import of PyTorch matter to it.
        shows: Whether its run must leave a record; ``None`` where it may.
        record: Where the record goes; empty for a folder of its own.
        waits: Whether a process of it is not observed, or calls no module: there the variables of ours stay.
    """

    source: str
    trains: bool = True
    options: Sequence[str] = ()
    files: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ("main.py",)
    starts: bool = False
    shows: bool | None = True
    record: str = ""
    waits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run ended; two endings are equal if nobody can tell the runs apart."""

    status: int
    output: str
    errors: str
    left: dict[str, object]


def write_program(program: Program, folder: Path) -> None:
    """Write *program* and its files into *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in program.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    text = (TRAINING if program.trains else "") + program.source
    (folder / "main.py").write_text(f"{text}\n{EPILOGUE}")


def run(program: Program, folder: Path, server: ForkServer, *, record: Path | None, observer: str = "") -> Ending:
    """Run *program* in *folder*; observed if there is a *record* to write, by another *observer* if one is given."""
    write_program(program, folder)
    path = folder / "told.json"
    path.unlink(missing_ok=True)
    variables = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
    variables |= {"TOLD": str(path), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **program.variables}
    if record is not None:
        paths = [str(ON_START), *filter(None, [variables.get("PYTHONPATH", "")])]
        ours = {"GPUSAGE_LEARN": program.record or str(record), "GPUSAGE_LEARN_JOB": "JOB_NUMBER"}
        variables |= {"PYTHONPATH": os.pathsep.join(paths), **ours}
    variables["JOB_NUMBER"] = "7"
    with (folder / "output").open("w") as output, (folder / "errors").open("w") as errors:
        if program.starts:
            words = [sys.executable, *program.options, *program.arguments]
            done = subprocess.run(
                words, cwd=folder, env=variables, stdout=output, stderr=errors, timeout=LIMIT_S, check=False
            )
            status = done.returncode
        else:
            status = server.run({"folder": str(folder), "variables": variables, "observer": observer})
    document = json.loads(path.read_text()) if path.exists() else {}
    texts = [anonymous((folder / name).read_text()) for name in ("output", "errors")]
    return Ending(status=status, output=texts[0], errors=texts[1], left=document)


class ForkServer:
    """A Python that has imported PyTorch, and runs each program in a fork."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(self, question: dict[str, object]) -> int:
        """Return the status of a program's fork."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{json.dumps(question)}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def serve() -> None:
    """Answer questions of a `ForkServer`."""
    import torch
    import torch._dynamo

    path = str(ON_START / "observer.py")
    own = compile(Path(path).read_text(), path, "exec")
    site = str(ON_START / "sitecustomize.py")
    start: dict[str, Any] = {"__name__": "gpusage start", "__file__": site}
    with suppress(KeyError):  # it is no module here
        exec(compile(Path(site).read_text(), site, "exec"), start)  # noqa: S102 - our own
    for line in sys.stdin:
        child = os.fork()
        if not child:
            question = json.loads(line)
            os.chdir(question["folder"])
            for number, name in ((1, "output"), (2, "errors")):
                os.dup2(os.open(name, os.O_WRONLY | os.O_TRUNC), number)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.closerange(3, 64)
            os.environ.clear()
            os.environ.update(question["variables"])
            other = question["observer"]
            in_fork(torch, start, compile(other, path, "exec") if other else own)
        deadline_s = time.monotonic() + LIMIT_S
        while (done := os.waitpid(child, os.WNOHANG)) == (0, 0):
            if time.monotonic() > deadline_s:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.02)
        print(os.waitstatus_to_exitcode(done[1]), flush=True)


def in_fork(torch: ModuleType, start: dict[str, Any], observer: CodeType) -> NoReturn:
    """Run the program of this folder as Python's main program, and end."""
    main = ModuleType("__main__")
    main.__file__ = str(Path("main.py").resolve())
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]  # as Python's own has them
    sys.argv, sys.modules["__main__"] = ["main.py"], main
    sys.path.insert(0, str(Path.cwd()))
    if "GPUSAGE_LEARN" in os.environ:
        # As `sitecustomize` does.
        names: dict[str, Any] = {"__name__": "gpusage observer"}
        with suppress(BaseException):
            exec(observer, names)  # noqa: S102 - our own
            names["BUDGET_S"] = LIMIT_S  # a slow processor cuts no record short
            names["observe"](os.environ["GPUSAGE_LEARN"], str(ON_START), start["_is_of_signal"])(torch)
        del names
    code = compile(Path("main.py").read_text(), main.__file__, "exec")
    status = 0
    try:
        exec(code, vars(main))  # noqa: S102 - our own
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]  # as Python's end does
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def broken(text: str, how: str, *, spared: Sequence[str]) -> list[str]:
    """Return the Python *text* with one of its statements broken, for each of a function that is not *spared*."""
    functions = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.FunctionDef)]
    inside = {each for function in functions if function.name in spared for each in ast.walk(function)}
    lines, texts = text.splitlines(), []
    for function in functions:
        for each in ast.walk(function):
            is_statement = isinstance(each, ast.stmt) and not isinstance(each, ast.FunctionDef)
            if not is_statement or each in inside or each in function.body[:1]:
                continue
            inside.add(each)
            indent = " " * each.col_offset
            changed = [*lines[: each.lineno - 1], *(f"{indent}{line}" for line in how.split("\n"))]
            with suppress(SyntaxError):  # of an "elif", or a class
                compile(one := "\n".join([*changed, *lines[each.lineno - 1 :]]), "", "exec")
                texts.append(one)
    return texts


def anonymous(text: str) -> str:
    """Return *text* without addresses, times and process numbers, which differ from run to run."""
    return re.sub(r"(USDT|ERROR):[^\n]*|0x[0-9a-f]+|pid \d+|(\[rank\d+\]:\[)?W\d{4} [\d:.]+ \d+", "*", text)


MEMORY_MIB = 24
"""By which two runs of one program may differ in any case."""


def differences(alone: Ending, observed: Ending) -> dict[str, object]:
    """Return what differs between two runs, by name; empty where nobody can tell them apart."""
    unequal: dict[str, object] = {}
    for name in ("status", "output", "errors"):
        one, other = getattr(alone, name), getattr(observed, name)
        if one != other:
            unequal[name] = (one, other)
    for name, value in alone.left.items():
        other = observed.left.get(name)
        is_near = isinstance(value, int) and isinstance(other, int) and abs(value - other) <= MEMORY_MIB
        if value != other and not (name in ("memory", "peak") and is_near):
            unequal[name] = (value, other)
    return unequal


PROGRAMS: dict[str, Program] = {
    "plain": Program(source="model = Network()\ntrain(model)"),
    "our names beside it": Program(
        starts=True,
        source="import gpusage\nmodel = Network()\ntrain(model)",
        files={
            **dict.fromkeys(("pluggy.py", "gpusage_hooks.py", "observer.py", "first_run.py"), "raise SystemExit(3)"),
            "gpusage.py": "import sys\nif sys.argv[0] != 'main.py': raise SystemExit(2)",
        },
    ),
    "a working folder that is gone": Program(
        source="""
import torch._dynamo  # asks for the folder
here, folder = os.getcwd(), "gone"
os.mkdir(folder); os.chdir(folder); os.rmdir(f"{here}/{folder}")
model = Network()
train(model)
os.chdir(here)
""",
        variables={"PYTHONPATH": ":lib"},
    ),
    "a lock in an at-fork hook": Program(
        source="""
import threading
lock = threading.Lock()
os.register_at_fork(before=lock.acquire, after_in_parent=lock.release)
model = Network()
train(model)
print("trained")
""",
    ),
    "at-fork hooks that print": Program(
        source="""
os.register_at_fork(before=lambda: print("fork", flush=True))
model = Network()
train(model)
if not os.fork(): os._exit(0)
os.wait()
""",
    ),
    "a forward with shared state": Program(
        source="""
import multiprocessing
count = multiprocessing.Value("i", 0)
class Counting(Network):
    def forward(self, inputs):
        count.value += 1
        return super().forward(inputs) * count.value
model = Counting()
train(model)
print(count.value)
""",
    ),
    "host memory": Program(source="kept = torch.ones(75_000_000)\nmodel = Network()\ntrain(model)\nkept += 1"),
    "a thread that waits for any child": Program(
        source="""
import threading
def watch():
    try:
        while True: os.wait(); print("unknown child", flush=True)
    except ChildProcessError: pass
threading.Thread(target=watch).start()
model = Network()
train(model)
""",
    ),
    "a list of three million": Program(
        source="""
import time
model, many = Network(), [0] * 3_000_000
begun = time.perf_counter()
train(model, forward=lambda inputs: model(inputs, many, {n: n for n in range(100_000)}, named=many))
print(time.perf_counter() - begun < 60)
""",
    ),
    "nested arguments": Program(
        source="""
deep = [torch.ones(2)]
for _ in range(900): deep = [deep, deep]
model = Network()
train(model, forward=lambda inputs: model(inputs, deep))
""",
    ),
    "compiled with no recompilation allowed": Program(
        source="""
torch._dynamo.config.error_on_recompile = True
model = Network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
@torch.compile(backend="eager", fullgraph=True)
def forward(inputs): return model(inputs)
train(model, optimizer=optimizer, forward=forward)
""",
    ),
    "a compiled step": Program(
        source="""
torch._dynamo.config.error_on_recompile = True
model = Network()
handles = [part.register_forward_hook(lambda *_: None) for part in model.parts]
optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))
step = torch.compile(optimizer.step, backend="eager")
forward = torch.compile(lambda inputs: model(inputs), backend="eager")
for _ in range(40):
    forward(torch.randn(4, 8)).sum().backward()
    step()
""",
    ),
    "compiled with symbolic shapes": Program(
        source="""
torch._dynamo.config.error_on_recompile = True
model = Network()
forward = torch.compile(model, backend="eager", dynamic=True)
for size in range(2, 40): forward(torch.randn(size, 8)).sum().backward()
from torch._dynamo.utils import counters
print(counters["stats"]["unique_graphs"])
""",
    ),
    "an exception in a forward": Program(
        source="""
class Failing(Network):
    def forward(self, inputs): return super().forward(inputs[:, :3])
train(Failing())
""",
        shows=False,
    ),
    "an exception in an update": Program(
        source="""
class Failing(torch.optim.SGD):
    def step(self, closure=None): raise ArithmeticError("no")
model = Network()
train(model, optimizer=Failing(model.parameters(), lr=0.1))
""",
        shows=False,
    ),
    "the stack in a forward": Program(
        source="""
import traceback
class Showing(Network):
    def forward(self, inputs):
        traceback.print_stack()
        print(sys.getrefcount(self), sys.getrefcount(inputs), len(traceback.extract_stack()), sys.exc_info())
        return super().forward(inputs)
class Sgd(torch.optim.SGD):
    def step(self, closure=None):
        traceback.print_stack()
        return super().step()
model = Showing()
train(model, optimizer=Sgd(model.parameters(), lr=0.1))
""",
    ),
    "the depth of recursion": Program(
        source="""
sys.setrecursionlimit(300)
class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.depth = nn.Linear(8, 8), 0
    def forward(self, inputs):
        self.depth += 1
        try: return self(inputs)
        except RecursionError: return self.inner(inputs) if self.depth < 5 else inputs
def deepest(call, depth=0):
    try: return deepest(call, depth + 1)
    except RecursionError: pass
    try: call(); return depth
    except RecursionError: raise
def reach(depth, call): return call() if depth == 0 else reach(depth - 1, call)
model, depths = Network(), []
inputs = torch.ones(1, 8)
for call in (lambda: model(inputs), lambda: nn.Linear(2, 2), lambda: Deep()(inputs)):
    most = 0
    for depth in range(0, 290):
        try: reach(depth, call); most = depth
        except RecursionError: pass
    depths.append(most)
print(depths)
train(model)
""",
        shows=None,
    ),
    "warnings are errors": Program(
        starts=True, source="model = Network()\ntrain(model)", options=("-W", "error"), shows=None
    ),
    "timer signals": Program(
        source="""
import signal
count = 0
def tick(*_):
    global count
    count += 1
signal.signal(signal.SIGALRM, tick)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
model = Network()
train(model, 200)
signal.setitimer(signal.ITIMER_REAL, 0)
print(count > 3)
""",
    ),
    "a timer that raises": Program(
        source="""
import signal
class Late(BaseException): pass
def tick(*_): raise Late
signal.signal(signal.SIGALRM, tick)
caught, model = 0, Network()
for turn in range(60):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005 + turn * 1e-4)
        while True:
            with torch.no_grad(): model(torch.ones(1, 8))
    except Late: caught += 1
print(caught)
torch.set_grad_enabled(True)
train(model)
""",
        shows=None,
    ),
    "an alarm of an object": Program(
        source="""
import functools, signal, tempfile
class Alarm:
    def __init__(self): self.count = 0
    def __call__(self, number, frame):
        signal.signal(number, signal.SIG_IGN)
        raise TimeoutError
def partly(word, *given): raise TimeoutError(word)
caught, model = 0, Network()
for turn in range(100):
    try:
        signal.signal(signal.SIGALRM, Alarm() if turn % 2 else functools.partial(partly, "late"))
        signal.setitimer(signal.ITIMER_REAL, 0.0002 + turn * 5e-5)
        while True:
            with torch.no_grad(): model(torch.ones(1, 8))
    except TimeoutError: caught += 1
print(caught)
torch.set_grad_enabled(True)
train(model)
""",
        shows=None,
    ),
    "an alarm that forgets what it interrupts": Program(
        source="""
import signal
def forgetful(number, frame):
    del frame
    raise KeyError("late")
class Alarm:
    def ring(self, number, frame):
        frame = None
        raise ArithmeticError
caught, model = 0, Network()
for turn in range(100):
    try:
        signal.signal(signal.SIGALRM, Alarm().ring if turn % 2 else forgetful)
        signal.setitimer(signal.ITIMER_REAL, 0.0002 + turn * 5e-5)
        while True:
            with torch.no_grad(): model(torch.ones(1, 8))
    except (KeyError, ArithmeticError): caught += 1
print(caught)
torch.set_grad_enabled(True)
train(model)
""",
        shows=None,
    ),
    "an exception from another thread": Program(
        source="""
import ctypes, threading, time
class Late(Exception): pass
main, model, is_over = threading.get_ident(), Network(), False
raising = ctypes.pythonapi.PyThreadState_SetAsyncExc
def watch():
    while not is_over:
        time.sleep(0.0003)
        if is_looping: raising(ctypes.c_ulong(main), ctypes.py_object(Late))
caught, is_looping = 0, False
thread = threading.Thread(target=watch); thread.start()
for _ in range(100):
    try:
        is_looping = True
        try:
            while True:
                with torch.no_grad(): model(torch.ones(1, 8))
        finally: is_looping = False
    except Late: caught += 1
    try: time.sleep(0.001)
    except Late: pass
is_over = True
while thread.is_alive():
    try: thread.join()
    except Late: pass
print(caught)
torch.set_grad_enabled(True)
train(model)
""",
        shows=None,
    ),
    "an audit hook that forbids": Program(
        source="""
model, is_on = Network(), False
train(model, 2)
def forbid(event, arguments):
    if is_on and event.split(".")[0] in ("os", "sys", "open", "object"): raise PermissionError(event)
sys.addaudithook(forbid)
is_on = True
train(model)
is_on = False
""",
        shows=False,
        waits=True,
    ),
    "a limit of file sizes": Program(
        source="""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
model = Network()
train(model)
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
""",
        shows=False,
    ),
    "an interrupt from the keyboard": Program(
        source="""
import signal, threading, time
model = Network()
try:
    threading.Thread(target=lambda: (time.sleep(0.5), os.kill(os.getpid(), signal.SIGINT))).start()
    while True: train(model, 1)
except KeyboardInterrupt: print("interrupted")
model = Network()
train(model)
torch.manual_seed(0)
model = Network()
""",
    ),
    "a handler of SIGCHLD": Program(
        source="""
import signal
signal.signal(signal.SIGCHLD, lambda *_: print("child", flush=True))
model = Network()
train(model)
""",
    ),
    "atexit": Program(
        source="""
import atexit
for n in range(3): atexit.register(print, "end", n)
print(atexit._ncallbacks())
model = Network()
train(model, 2)
print(atexit._ncallbacks())
train(model)
""",
    ),
    "pickling": Program(
        source="""
import copy, hashlib, io, pickle, pickletools
model = Network()
def digest(model):  # PyTorch writes a storage with its address in memory, which no two runs share
    codes = [(code.name, given) for code, given, _ in pickletools.genops(pickle.dumps(model)) if type(given) is not bytes]
    weights = [weight.tolist() for weight in pickle.loads(pickle.dumps(model)).parameters()]
    return hashlib.sha256(repr((codes, weights)).encode()).hexdigest()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    train(model, 1, optimizer)
    print(digest(model), sorted(vars(model)), dir(model) == dir(copy.deepcopy(model)))
    buffer = io.BytesIO(); torch.save(optimizer.state_dict(), buffer); print(len(buffer.getvalue()))
train(model, optimizer=optimizer)
""",
    ),
    **{
        f"multiprocessing, {method}": Program(
            starts=method != "fork",
            source=f"""
import multiprocessing
from torch.utils.data import DataLoader
def main():
    global model
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader([torch.full((8,), float(n)) for n in range(80)], 2, num_workers=2,
                        multiprocessing_context="{method}")
    for inputs in loader:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
if __name__ == "__main__": main()
else: tell = lambda: None
""",
        )
        for method in ("fork", "spawn", "forkserver")
    },
    "children": Program(
        starts=True,
        source="""
import subprocess
model = Network()
train(model)
code = "import os, sys; print(sorted(os.environ), sys.path, sorted(sys.modules), sys.meta_path)"
for options in ((), ("-I",), ("-S",), ("-E",), ("-s",)):
    print(subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True).stdout)
""",
    ),
    "a tracer": Program(
        source="""
model, seen = Network(), set()
def trace(frame, event, _):
    if "/torch/" not in frame.f_code.co_filename: seen.add((event, frame.f_code.co_name))
sys.settrace(trace)
train(model)
sys.settrace(None)
""",
        shows=None,
    ),
    "classes that count what is read of them": Program(
        source="""
reads = []
class Meta(type):
    def __getattribute__(cls, name):
        reads.append(name) if name in ("__module__", "__qualname__", "__name__") else None
        return super().__getattribute__(name)
class Watched(Network, metaclass=Meta):
    def __getattr__(self, name): reads.append(name); return super().__getattr__(name)
    def parameters(self, recurse=True): reads.append("parameters"); return super().parameters(recurse)
    def modules(self): reads.append("modules"); return super().modules()
    def state_dict(self, *a, **k): reads.append("state"); return super().state_dict(*a, **k)
model = Watched()
train(model)
print(len(reads), sorted(set(reads)))
""",
    ),
    "a tensor that counts its functions": Program(
        source="""
class Counted(torch.Tensor):
    count = 0
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        Counted.count += 1; torch.rand(1)
        return super().__torch_function__(function, types, args, kwargs or {})
model = Network()
train(model, forward=lambda inputs: model(inputs.as_subclass(Counted), inputs.as_subclass(Counted)))
print(Counted.count)
""",
    ),
    "modes that count": Program(
        source="""
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
counts = [0, 0]
class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        counts[0] += 1; return function(*args, **(kwargs or {}))
class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        counts[1] += 1; return function(*args, **(kwargs or {}))
model = Network()
with Functions(), Dispatch(): train(model)
print(counts)
""",
    ),
    "a pytree that draws random numbers": Program(
        source="""
from torch.utils._pytree import register_pytree_node
class Pair:
    def __init__(self, one): self.one = one
register_pytree_node(Pair, lambda p: (torch.rand(1), ([p.one], None))[1], lambda c, _: Pair(*c))
model = Network()
train(model, forward=lambda inputs: model(inputs, Pair(inputs)))
""",
    ),
    "dicts that print": Program(
        source="""
class Loud(dict):
    def __getitem__(self, key): print("get", key); return super().__getitem__(key)
    def items(self): print("items"); return super().items()
    def values(self): print("values"); return super().values()
model = Network()
train(model, forward=lambda inputs: model(inputs, Loud(a=inputs)))
model.parts[0]._parameters = Loud(model.parts[0]._parameters)
train(model, 3)
""",
    ),
    "a sitecustomize of the user's": Program(
        starts=True,
        source="import sitecustomize\nprint(sitecustomize.__file__, sitecustomize.mine)\nmodel = Network()\ntrain(model)",
        files={"own/sitecustomize.py": "print('mine')\nmine = 1\nimport sys\nprint(sys.path[0].endswith('own'))"},
        variables={"PYTHONPATH": "own"},
    ),
    "a sitecustomize that fails": Program(
        starts=True,
        source="model = Network()\ntrain(model)",
        files={"own/sitecustomize.py": "import nonsense_that_is_not_there"},
        variables={"PYTHONPATH": "own"},
    ),
    "hooks of the program's": Program(
        source="""
calls = []
nn.modules.module.register_module_forward_hook(lambda *_: calls.append("forward"))
import torch.optim.optimizer as module
register = module.register_optimizer_step_post_hook
handle = register(lambda *_: calls.append("post"))
nn.Module.__call__, original = (lambda self, *a, **k: (calls.append("call"), original(self, *a, **k))[1]), nn.Module.__call__
model = Network()
train(model)
handle.remove()
print(len(calls), len(module._global_optimizer_post_hooks))
""",
    ),
    "graphs of a model": Program(
        source="""
from torch.fx.experimental.proxy_tensor import make_fx
model, inputs = Network(), torch.ones(2, 8)
for _ in range(2):
    print(torch.jit.trace(model, inputs).graph, torch.jit.script(model.parts[0]).graph, torch.fx.symbolic_trace(model.parts[2]).code)
    print(make_fx(model.parts[0])(inputs).code, torch.export.export(model, (inputs,)))
    train(model)
""",
    ),
    "functions of functions": Program(
        source="""
model = Network()
weights = {name: value.detach() for name, value in model.named_parameters()}
def loss(weights, inputs): return torch.func.functional_call(model, weights, (inputs,)).sum()
gradients = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, torch.ones(3, 1, 8))
print(sorted(value.shape for value in gradients.values()))
train(model)
""",
    ),
    "checkpoints": Program(
        source="""
from torch.utils.checkpoint import checkpoint
model = Network()
train(model, forward=lambda inputs: checkpoint(model, inputs.requires_grad_(), use_reentrant=False))
""",
    ),
    "a closure": Program(
        source="""
model = Network()
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
def closure():
    optimizer.zero_grad()
    loss = model(torch.ones(4, 8)).pow(2).sum()
    loss.backward()
    return loss
for _ in range(40): optimizer.step(closure)
""",
    ),
    "a scaler and autocast": Program(
        source="""
model = Network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for _ in range(80):
    with torch.autocast("cpu", torch.bfloat16): loss = model(torch.randn(4, 8)).sum()
    scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()
print(scaler.get_scale())
""",
    ),
    "two optimizers": Program(
        source="""
one, two = Network(), Network()
optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (one, two)]
for _ in range(40):
    two(one(torch.randn(4, 8)).repeat(1, 2)).sum().backward()
    for each in optimizers: each.step(); each.zero_grad()
""",
    ),
    "inference": Program(
        source="model = Network().eval()\nwith torch.inference_mode():\n  for _ in range(64): model(torch.randn(4, 8))",
    ),
    "lazy weights": Program(source="model = Network(nn.LazyLinear(4))\nmodel(torch.ones(2, 8))\ntrain(model)"),
    "patched functions of PyTorch": Program(
        source="""
original = torch.is_grad_enabled
torch.is_grad_enabled = lambda: exit(5)
torch.is_autocast_enabled = lambda *_: exit(6)
torch.distributed.is_available = lambda: exit(7)
nn.functional.linear(torch.ones(2), torch.ones(2, 2))
torch.is_grad_enabled = original
model = Network()
train(model)
""",
        shows=None,
    ),
    "no environment": Program(
        source="""
told = os.environ["TOLD"]
os.environ.clear()
model = Network()
train(model)
os.environ["TOLD"] = told
""",
        shows=None,
    ),
    "another folder": Program(source="os.chdir('/')\nmodel = Network()\ntrain(model)"),
    "a source that is inspected": Program(
        source="""
import inspect
print(inspect.getsource(nn.Module.__call__)[:60], inspect.signature(nn.Module.__call__), nn.Module.__call__.__module__)
print(nn.Module._compiled_call_impl, torch.optim.Optimizer._optimizer_step_code.__qualname__)
print([name for name, _ in inspect.getmembers(nn.Module)])
model = Network()
print(model._compiled_call_impl, "_compiled_call_impl" in vars(model))
train(model)
""",
    ),
    "a profile of PyTorch's": Program(
        source="""
from torch.profiler import profile
model = Network()
with profile(with_stack=True) as found: train(model, 3)
names = [event.name for event in found.events() if "python" not in event.name.lower()]
print(sorted(name for name in names if "nn.Module" in name or "Optimizer" in name))
train(model)
""",
        shows=None,
    ),
    "a program of threads": Program(
        source="""
import threading
models = [Network() for _ in range(3)]
for each in models:
    torch.manual_seed(1)
    thread = threading.Thread(target=train, args=(each, 10)); thread.start(); thread.join()
model = Network()
train(model)
""",
    ),
    "an import in a thread": Program(
        starts=True,
        source="""
import os, sys, threading
thread = threading.Thread(target=lambda: __import__("torch")); thread.start(); thread.join()
"""
        + TRAINING
        + "model = Network()\ntrain(model, 2000)\n",
        trains=False,
        shows=None,
    ),
    "a PyTorch that fails": Program(
        starts=True,
        source="import torch",
        trains=False,
        files={"torch/__init__.py": "import torch.inner", "torch/inner.py": "raise ImportError('no such library')"},
        shows=False,
    ),
    "a PyTorch that is none": Program(
        starts=True,
        source="import torch\nprint(torch.nn)",
        trains=False,
        files={"torch.py": "nn = 5"},
        shows=False,
    ),
    "a look for PyTorch": Program(
        starts=True,
        source="""
import importlib.util, sys
spec = importlib.util.find_spec("torch")
print(spec.name, type(spec.loader), spec.origin, "torch" in sys.modules)
"""
        + TRAINING
        + "model = Network()\ntrain(model)\n",
        trains=False,
    ),
    "finders of the program's": Program(
        starts=True,
        source="""
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch": print("asked for torch")
sys.meta_path.insert(0, Finder())
sys.meta_path.append(Finder())
"""
        + TRAINING
        + "model = Network()\ntrain(model)\n",
        trains=False,
    ),
    "a module": Program(
        starts=True, source="model = Network()\ntrain(model)\nprint(__spec__.name)", arguments=("-m", "main", "--x")
    ),
    "a command": Program(
        starts=True, source="", arguments=("-c", f"{TRAINING}\nmodel = Network()\ntrain(model)"), shows=False
    ),
    "no room for the record": Program(source="model = Network()\ntrain(model)", record="/dev/full/x", shows=False),
    "no right to the record": Program(source="model = Network()\ntrain(model)", record="/proc/1/x", shows=False),
    "an exit in between": Program(source="train(Network(), 2)\nos._exit(4)", shows=False),
    "sys.exit": Program(source="model = Network()\ntrain(model)\nsys.exit('no more')"),
    "counters of the collector": Program(
        source="""
import gc
gc.disable()
model = Network()
train(model)
print(gc.callbacks, gc.garbage, gc.isenabled(), sys.gettrace(), sys.getprofile(), sys.getrecursionlimit())
""",
    ),
    "torchrun": Program(
        starts=True,
        waits=True,
        source="""
import torch.distributed as dist
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(Network())
train(model)
dist.destroy_process_group()
tell = lambda: None
""",
        arguments=("-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "main.py"),
    ),
    "mp.spawn": Program(
        starts=True,
        waits=True,
        source="""
import torch.distributed as dist, torch.multiprocessing as mp
def work(rank, path):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    train(nn.parallel.DistributedDataParallel(Network()))
    dist.destroy_process_group()
if __name__ == "__main__":
    import tempfile
    mp.spawn(work, (tempfile.mktemp(),), 2)
    model = Network()
else: tell = lambda: None
""",
        shows=None,
    ),
}
"""By what is odd about each."""
CI = (
    *("our names beside it", "a lock in an at-fork hook", "a forward with shared state"),
    *("a thread that waits for any child", "a list of three million", "a compiled step"),
    *("the stack in a forward", "the depth of recursion", "a timer that raises", "a PyTorch that fails"),
    "a working folder that is gone",
)
"""What attacks found, and what is likeliest to break."""


if __name__ == "__main__":
    serve()
