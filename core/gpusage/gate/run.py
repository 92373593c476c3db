"""`python -m gpusage.gate.run SCRIPT`: runs a Python program as `python SCRIPT` does, with its side of the gate.

Without a working gate the program runs all the same: the reason is a line on standard error.
"""

from __future__ import annotations

import os
import runpy
import sys

SERVE_VARIABLE = "GPUSAGE_GATE_SERVE"
GPU_VARIABLE = "GPUSAGE_GATE_GPU"


def main(arguments: list[str]) -> None:
    """Run ``SCRIPT ...``, ``-m MODULE ...`` or ``-c CODE ...``."""
    try:
        begin()
    except Exception as error:  # the program counts for more than the gate
        sys.stderr.write(f"gpusage gate: not used: {error}\n")

    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as python -m does
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = arguments
    sys.path.insert(0, os.path.dirname(os.path.realpath(arguments[0])))  # noqa: PTH120 - as python SCRIPT does
    runpy.run_path(arguments[0], run_name="__main__")


def begin() -> None:
    """Begin this process's side of the gate, which the launcher wrote into the environment."""
    from gpusage.gate import give_way  # what fails here must not end the program

    if os.environ.get(SERVE_VARIABLE):
        from gpusage.gate.busy_flags import process_flags
        from gpusage.gate.serving import Serving

        Serving(process_flags()).begin()
    else:
        give_way(os.environ.get(GPU_VARIABLE))


if __name__ == "__main__":
    # Python put the folder that it was started in first; the program expects its own there.
    if not getattr(sys.flags, "safe_path", False):
        sys.path.pop(0)
    main(sys.argv[1:])
