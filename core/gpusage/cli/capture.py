"""What `gpusage capture` does: it runs the program in a child, and prints what was seen."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import click

from gpusage.boundary.printable_text import visible
from gpusage.capture.captured import Captured, check_record
from gpusage.capture.child import Outcome, run_program
from gpusage.capture.programs import Program, is_job_script, program_of, programs_in_script, runs_python
from gpusage.cli import tables
from gpusage.cli.cards.cache import make_own_folder, user_cache
from gpusage.cli.cards.card import summarize
from gpusage.cli.cards.first_run import RecordedRun, keep_card, runs_folder, runs_of_job
from gpusage.cli.scripts import manager_of, read_script, read_scripts
from gpusage.graphs.card.text import encode, to_document, write_file
from gpusage.graphs.reader import CARD_SUFFIX
from gpusage.plugins.loading import installed_managers
from gpusage_hooks.errors import GraphError, RequestError
from gpusage_hooks.types import ModelGraph

SCHEMA = "gpusage.capture/1"
MAXIMUM_CARDS = 200
"""In the cache; the oldest go first."""
COLUMNS = tables.columns("key", "value", "known", left=("value", "known"))
MARKS: Mapping[str, str] = {
    "seen": "seen",
    "mapped": "mapped: the nearest word that gpusage knows",
    "guessed": "guessed: check it",
    "option": "given by --gpus",
}
ENDINGS: Mapping[str, str] = {
    "cycle": "after one full step",
    "inference": "after equal calls without a gradient: treated as inference",
    "by hand": "after its third backward pass without an optimizer: weights changed by hand",
    "end": "where the program ended, before a second update",
    "time": "by its time limit, before a full step",
    "failed": "where the program failed, before a full step",
}


def capture(  # noqa: PLR0913, PLR0917 - an option each
    context: click.Context,
    command: tuple[str, ...],
    line: str | None,
    output: Path | None,
    gpu_count: int | None,
    time_s: float,
    job_id: str | None,
    *,
    has_network: bool,
    runs_here: bool,
    submits: bool,
    as_json: bool,
) -> None:
    """Run the program up to its first full step, and print its card and comment."""
    if output is not None and not output.name.endswith(CARD_SUFFIX):
        message = f"Output {output.name!r} must end with {CARD_SUFFIX!r}, by which a card is known. Rename it."
        raise click.UsageError(message, context)
    if [bool(command), bool(line), bool(job_id)].count(True) != 1 or (submits and job_id):
        message = "Capture must have one program: a job script, a command line after '--', --shell, or --from-run"
        message += "; got none or two."
        raise click.UsageError(message, context)

    # Refused before the program runs: it may take a minute.
    job = _job(command) if submits else None
    card = output or user_cache() / f"captured{CARD_SUFFIX}"
    card_text = str(card.resolve() if submits else card)  # a job may run in another folder
    if {"'", '"'} <= set(card_text):
        message = (
            f"Card {card_text!r} must have a path that a comment can quote; got one with both kinds of quotes. "
            "Name a card elsewhere with -o."
        )
        raise RequestError(message)

    # The last one that calls a model: a script prepares data before it trains, and may test or upload afterwards.
    run = _run_of(job_id) if job_id else None
    for program in reversed(_read_programs(command, line, run)):
        outcome = run_program(
            replace(program, gpu_count=gpu_count or program.gpu_count),
            lambda stage: click.echo(f"gpusage capture: {visible(stage)} ...", err=True),
            time_s=time_s,
            is_apart=not runs_here,
            has_network=has_network,
        )
        if "keys" in outcome.record:
            break
    captured = _captured(outcome)
    if gpu_count is not None and "gpus" in captured.keys:
        captured = replace(captured, keys={**captured.keys, "gpus": (captured.keys["gpus"][0], "option")})
    card = _write_card(captured, output)
    if run is not None and captured.graph is not None:
        _keep_card(run, captured, captured.graph)
    if as_json:
        tables.print_json(_document(captured, card, outcome))
    else:
        _show(captured, card, outcome)

    if captured.graph is None:
        context.exit(1)
    if job is not None:
        _submit(job, command[0], captured, card)


def _run_of(job_id: str) -> RecordedRun:
    """Return the run that *job_id* showed, of the program with the most calls.

    Raises:
        RequestError: It showed none.
    """
    runs = runs_of_job(job_id)
    if not runs:
        message = (
            f"Job {job_id!r} must have shown its run, as 'learn=on' asks for; got no record in {str(runs_folder())!r}. "
            "Submit its script with '#GPUSAGE learn=on' once more."
        )
        raise RequestError(message)
    return max(runs, key=lambda run: len(run.document["calls"]))


def _keep_card(run: RecordedRun, captured: Captured, graph: ModelGraph) -> None:
    """Let the card decide the next jobs of the script of *run*.

    Raises:
        RequestError: The program has another batch here: the job's variables are not those of this shell.
    """
    sizes = {size for call in run.document["calls"] for shape, _ in call["shapes"] for size in shape or ()}
    batch, mark = captured.keys["batch"]
    if mark == "seen" and int(batch) not in sizes:
        message = (
            f"Program of job {run.job!r} must have the batch that it had there; got {batch}, and no tensor of that "
            "size there. Set the variables here that the job has."
        )
        raise RequestError(message)
    keep_card(run, captured, graph)


def _job(command: tuple[str, ...]) -> list[str]:
    """Return the command that submits the job script that *command* is.

    Raises:
        RequestError: It is none, or no workload manager submits it.
    """
    if len(command) != 1 and not (command and is_job_script(command[0])):
        message = f"Job of --submit must be one job script; got {' '.join(command) or 'none'!r}. Name its file."
        raise RequestError(message)

    scripts = read_scripts([Path(command[0])])
    manager = manager_of(scripts, installed_managers())
    if not manager.submit or shutil.which(manager.submit[0]) is None:
        program = " ".join(manager.submit) or f"no command of {manager.title}"
        message = (
            f"Host of --submit must be able to submit job scripts; got {program!r}, which is not here. "
            "Submit the script with the comment that 'gpusage capture' prints."
        )
        raise RequestError(message)
    return [*manager.submit, *command]


def _submit(job: list[str], script: str, captured: Captured, card: Path) -> NoReturn:
    """Become the command *job* that submits *script*, whose comment in a variable counts less than the user's own.

    Raises:
        RequestError: What was seen may be wrong.
    """
    guessed = [name for name, (_, mark) in captured.keys.items() if mark == "guessed"]
    if guessed:
        message = (
            f"Keys of a job that --submit submits must be seen; got a guess of {' and '.join(guessed)}. "
            "Check it, and submit the script with the comment above."
        )
        raise RequestError(message)

    # The user's own words count more than what was seen.
    has_own_words = re.search(r"^#GPUSAGE\s", read_script(script), re.MULTILINE) is not None
    if not has_own_words:
        os.environ.setdefault("GPUSAGE_COMMENT", captured.comment(str(card.resolve())))
    sys.stdout.flush()
    os.execvp(job[0], job)  # noqa: S606 - the manager's own command


def _read_programs(command: tuple[str, ...], line: str | None, run: RecordedRun | None = None) -> list[Program]:
    """Return the programs of a run, of a command line as one text, of a job script, or of the words of a command."""
    if run is not None:
        python, *words = run.document["command"]
        folder, world = run.document["folder"], run.document.get("world", 1)
        return [Program(python=(python,), words=tuple(words), folder=folder, gpu_count=world)]
    if line is not None:
        return programs_in_script(re.sub(r"&&|;", "\n", line))
    script, *arguments = command
    if script.endswith(".py") and not runs_python(script):
        return [program_of(("python", *command))]
    if is_job_script(script) or (len(command) == 1 and not runs_python(script)):
        return programs_in_script(read_script(script), arguments)
    return [program_of(command)]


def _captured(outcome: Outcome) -> Captured:
    """Return what the child saw, or say why it saw nothing."""
    record = outcome.record
    if "keys" in record:
        return check_record(record)

    # The program's last words are the best hint; control characters must not reach the terminal.
    tail = "\n".join(visible(each) for each in outcome.output.splitlines())
    if tail:
        click.echo(f"The program's last lines:\n{tail}", err=True)
    if record.get("ending") == "no torch":
        message = "Python of the program must be able to import torch; got: not installed. "
        message += "Activate its environment, or install gpusage with its extra [torch]: 'make extras EXTRAS=torch'."
    elif outcome.limit or record.get("ending") == "time":
        limit = outcome.limit or "its time"
        message = f"Program must call a model within its limits; got {limit} first. Give it more with --time."
    elif record.get("frameworks"):
        message = (
            f"Program must use PyTorch; got one that uses {visible(str(record['frameworks'][0]))[:20]}. "
            "Export its model to ONNX and name that."
        )
    else:
        cause = visible(str(record.get("failure") or "its end"))[:300]
        message = f"Program must call a model of PyTorch on this host; got {cause} first. Check that it starts here."
    raise RequestError(message)


def _write_card(captured: Captured, output: Path | None) -> Path:
    """Write the card to *output*, by default into the user's cache, and return its path.

    Raises:
        RequestError: The cache is not the user's own.
    """
    if output is not None:
        if captured.graph is not None:
            write_file(captured.graph, output)
        return output

    # Two models of one name have two files, so that a comment never names another model's card.
    name = "+".join(re.sub(r"\W", "", each)[:30] for each, _ in captured.modules[:2]) or "captured"
    content = json.dumps(to_document(captured.graph)) if captured.graph is not None else ""
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    card = user_cache() / "captured" / f"{name}-{digest}{CARD_SUFFIX}"
    if captured.graph is None:
        return card

    try:
        make_own_folder(card.parent)
    except OSError as error:
        message = (
            f"Folder {str(card.parent)!r} must be your own to keep a card in; got: {error.strerror}. "
            "Name a card with -o."
        )
        raise RequestError(message) from error
    write_file(captured.graph, card)
    with suppress(OSError):  # another process may remove the oldest at the same time
        cards = sorted(card.parent.glob(f"*{CARD_SUFFIX}"), key=lambda each: each.lstat().st_mtime)
        for oldest in cards[:-MAXIMUM_CARDS]:
            oldest.unlink()
    return card


def _show(captured: Captured, card: Path, outcome: Outcome) -> None:
    models = " and ".join(f"{name} with {tables.count_text(count)} parameters" for name, count in captured.modules)
    tables.show_title(f"{models}; it ended {ENDINGS.get(captured.ending, captured.ending)} ({outcome.elapsed_s:.0f} s)")
    rows = [[name, value, MARKS[mark]] for name, (value, mark) in captured.keys.items()]
    tables.show_rows(COLUMNS, rows)
    for module, why in captured.real_calls.items():
        tables.show(f"{module} does not run on shapes alone ({why}), so its parts did, or it was computed here.")
    if captured.graph is None:
        tables.show(f"Its graph cannot be read: {captured.graph_failure}")
        return

    for note in captured.graph.notes:
        tables.show(note)
    click.echo(f"Card: {card}\n--comment={shlex.quote(captured.comment(str(card)))}")


def _document(captured: Captured, card: Path, outcome: Outcome) -> dict[str, Any]:
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "comment": None,
        "keys": {name: {"value": value, "known": mark} for name, (value, mark) in captured.keys.items()},
        "modules": [{"name": name, "parameter_count": count} for name, count in captured.modules],
        "ending": captured.ending,
        "real_calls": dict(captured.real_calls),
        "graph_failure": captured.graph_failure or None,
        "elapsed_s": round(outcome.elapsed_s, 1),
        "summary": None,
        "card": None,
    }
    if captured.graph is not None:
        document |= {"comment": captured.comment(str(card)), "summary": summarize(captured.graph)}
        with suppress(GraphError):  # too long to travel with a job; the file holds it
            document["card"] = encode(captured.graph)
    return document
