"""Records of jobs' own runs, as `observer.py` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpusage.cli.cards.first_run import SCHEMA

OBSERVER = Path(__file__).parents[1] / "core/gpusage/capture/on_start/observer.py"


def observer() -> dict[str, Any]:
    """Return the names of `observer.py`, which is loaded by its path."""
    names: dict[str, Any] = {"__name__": "observer"}
    exec(compile(OBSERVER.read_text(), str(OBSERVER), "exec"), names)  # noqa: S102 - our own
    return names


def write_run(folder: Path, job: str, program: Path, **seen: object) -> Path:
    """Write the record that *job* ran *program*, and the program if there is none; return the record's path."""
    if not program.exists():
        program.write_text("print()")
    names = observer()
    of_program = {"program_digest": names["digest_of"](program.read_bytes()), "command": ["python", str(program)]}
    of_run = {"calls": [], "optimizers": ["torch.optim.adamw.AdamW"], "step_time_s": None, "gpu": "", **seen}
    document = {"schema": SCHEMA, "job": job, "program": str(program.absolute()), "share": "100", "folder": "/"}
    document = {**document, **of_program, **of_run}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{job}.{program.stem}{'' if document['share'] == '100' else '.share'}.json"
    path.write_text(names["json_text"](document))
    assert json.loads(path.read_text()) == document
    return path
