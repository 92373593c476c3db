"""Captures each script named on the command line, in a fork of one process: PyTorch is imported once."""

import json
import os
import sys
from pathlib import Path

import torch._dynamo  # noqa: F401 - each fork has it

from gpusage.capture.inside.session import Session

TWO_GPUS = {"ddp", "fsdp", "fully_sharded", "with_deepspeed"}


def main() -> None:
    """Write one line for each script: its record."""
    results = os.dup(1)
    os.dup2(2, 1)
    for script in sys.argv[1:]:
        receiver, sender = os.pipe()
        if not os.fork():
            gpu_count = 2 if Path(script).stem in TWO_GPUS else 1
            os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(gpu_count)}
            Session(sender, gpu_count).run([script])
        os.close(sender)
        with os.fdopen(receiver, "rb") as pipe:
            messages = [json.loads(line) for line in pipe.read().splitlines()]
        record = next(message["record"] for message in messages if "record" in message)
        os.write(results, json.dumps({"name": Path(script).stem, **record}).encode() + b"\n")
        os.wait()


if __name__ == "__main__":
    main()
