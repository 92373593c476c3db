"""`python traced.py OUT MODULE ARGUMENTS`: runs a module as a program, and notes which of our functions it calls.

OUT is written at the end of the program and at each SIGUSR2; SIGUSR1 forgets what was called before it.
`bench/files.py` reads OUT.
"""

from __future__ import annotations

import inspect
import json
import runpy
import signal
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).resolve().parents[1]
SERVING = ("MainThread", "Thread-", "engine", "recorder")
SOURCES = tuple(f"{ROOT / name}/" for name in ("hooks", "core", "plugins", "planning", "sandboxes", "lab"))


def trace(path: Path, module: str, arguments: list[str]) -> None:
    """Run *module* as a program and write the functions that it calls to *path*."""
    called: dict[CodeType, None] = {}

    def note_call(frame: FrameType, event: str, _: object) -> None:
        # gpusaged's other threads work at their own times, whether or not a job comes.
        serves = threading.current_thread().name.startswith(SERVING)
        if event == "call" and serves and frame.f_code not in called and not is_of_import(frame):
            called[frame.f_code] = None

    def write(*_: object) -> None:
        functions = [(code.co_filename, f"{code.co_name}:{code.co_firstlineno}") for code in list(called)]
        ours = [each for each in functions if each[0].startswith(SOURCES)]
        path.with_suffix(".new").write_text(json.dumps(ours))
        path.with_suffix(".new").replace(path)

    signal.signal(signal.SIGUSR1, lambda *_: called.clear())
    signal.signal(signal.SIGUSR2, write)
    threading.setprofile(note_call)
    sys.setprofile(note_call)
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        sys.setprofile(None)
        write()


def is_of_import(frame: FrameType) -> bool:
    """Return whether *frame* is the body of a module or a class, or was called by one while it was imported."""
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return True
    caller: FrameType | None = frame
    while caller is not None:
        if caller.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        caller = caller.f_back
    return False


if __name__ == "__main__":
    trace(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
