"""Trainings that run at a time, however quick the machine is: `python together.py COUNT NAME` for one of them."""

import os
import sys
import time
from pathlib import Path

from training import train

BEGUN = Path(__file__).with_name("begun")
LIMIT_S = 200.0


def train_together(mine, count, name):
    BEGUN.mkdir(exist_ok=True)
    (BEGUN / mine).touch()
    end_s = time.monotonic() + LIMIT_S
    while len(list(BEGUN.iterdir())) < count:
        if time.monotonic() > end_s:
            sys.exit(f"only {len(list(BEGUN.iterdir()))} of {count} run at a time")
        time.sleep(0.05)
    return train(name)


if __name__ == "__main__":
    print(train_together(os.environ["CONTAINER_ID"], int(sys.argv[1]), sys.argv[2]))
