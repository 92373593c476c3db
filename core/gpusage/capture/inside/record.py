"""The record of a job's own run: its program, and the changes by further runs of that program."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


def record_of(known: Mapping[str, Any], seen: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the record to keep, from the *known* record and the record *seen* now."""
    if not known:
        return seen

    # In one job, the program that trains counts.
    is_same_job = known["job"] == seen["job"] != ""
    if is_same_job and _trains(known) != _trains(seen):
        return known if _trains(known) else seen
    is_same_program = known.get("program_digest") == seen["program_digest"]
    if is_same_program and known["keys"] == seen["keys"] and known["modules"] == seen["modules"]:
        return known

    # If several programs train, or if runs of one program differ for a reason that its script does not show, the
    # record is marked, and predicts no job.
    programs = {*known.get("programs", ()), known.get("program_digest")}  # of jobs that ran several
    if is_same_program or is_same_job or (known.get("varies") and seen["program_digest"] in programs):
        return {**seen, "varies": True, "programs": sorted({*programs, seen["program_digest"]} - {None})}
    return seen


def _trains(document: Mapping[str, Any]) -> bool:
    return bool(document["keys"]["mode"][0] == "train")


def program_path() -> str:
    """Return the path of the program's main file; may be empty."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    return str(Path(path).resolve()) if path else ""


def program_digest() -> str:
    """Return the digest of the program's main file; empty if it cannot be read."""
    try:
        return hashlib.sha256(Path(program_path()).read_bytes()).hexdigest()
    except OSError:
        return ""


def read_record(path: Path) -> dict[str, Any]:
    """Return the record at *path*; may be empty."""
    try:
        document = json.loads(path.read_bytes())
        return document if {"keys", "modules", "job"} <= document.keys() and "mode" in document["keys"] else {}
    except (OSError, ValueError, AttributeError):
        return {}


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write *document* to *path* whole; without space or permission do nothing."""
    # `gpusage.boundary.atomic_file` would import more modules into the user's program.
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(document))
        draft.replace(path)
