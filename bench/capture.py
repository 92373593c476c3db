"""What `gpusage capture` sees of public scripts, unmodified: a table, against what a reader of their code finds.

FOLDER holds git directories, one for each repository: `git clone --bare https://github.com/pytorch/examples
FOLDER/pytorch+examples/repo`. `capture_runs.tsv` lists the scripts, how each is called and what it does. Data sets that
a script would download have stand-ins of the same form (`capture_stand_ins.py`), and the host needs no network.

Example: python bench/capture.py /work/.mirror --python .venv/bin/python --only mnist
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

import click

from capture_stand_ins import write_files

HERE = Path(__file__).parent
MAXIMUM_FILE_BYTES = 2_000_000
SCRIPT_CHARACTERS = 80
SUFFIXES = (".py", ".json", ".yaml", ".yml", ".txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A script as it is called, and what it does by its code.

    Attributes:
        group: ``page`` for the scripts of the first trial, ``other`` for those chosen afterwards.
        repository: ``owner/name``.
        folder: Where it runs.
        command: For a shell; PYTHON, STAND_INS and DATA are set.
        keys: Of its job.
        parameters: Of its models, empty if nobody counted them.
    """

    group: str
    repository: str
    folder: str
    command: str
    keys: str
    parameters: str

    @property
    def expected(self) -> Mapping[str, str]:
        """Return the keys by name."""
        return dict(word.split("=", 1) for word in self.keys.split(","))


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
@click.option("--python", default=sys.executable, help="Interpreter with the libraries that the scripts import.")
@click.option("--only", default="", help="Scripts whose repository, folder or command has this text.")
def main(*, folder: Path, python: str, only: str) -> None:
    """Print the table."""
    with (HERE / "capture_runs.tsv").open(encoding="utf-8") as file:
        runs = [Run(**row) for row in csv.DictReader(file, delimiter="\t")]
    runs = [run for run in runs if only in f"{run.repository} {run.folder} {run.command}"]
    right: dict[str, list[bool]] = {}
    click.echo("| repository | script | captured | fields right | what differs | busy, s |\n|---|---|---|--:|---|--:|")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        revisions = {each: extract(folder, each, work / each) for each in dict.fromkeys(run.repository for run in runs)}
        write_files(work)
        for run in runs:
            shown = capture(work, run, python)
            seen = {key: each["value"] for key, each in shown.get("keys", {}).items()}
            fields = compare(run, seen, sum(module["parameter_count"] for module in shown.get("modules", ())))
            differs = [
                f"{key}: {value} for {right_value}"
                for key, (value, right_value) in fields.items()
                if value != right_value
            ]
            right.setdefault(run.group, []).append(bool(seen) and not differs)
            captured = "yes" if shown.get("card") else "keys only" if seen else "no"
            count = f"{len(fields) - len(differs)}/{len(fields)}" if seen else ""
            what = ", ".join(differs) if seen else shown["error"]
            busy = f"{shown['busy_s']:.1f}" if seen else ""
            script = " ".join(word for word in run.command.split() if not word.startswith("$"))
            script = script.replace("-m torch.distributed.run --nproc_per_node", "torchrun")
            place = shorten(f"{run.folder}: {script}", SCRIPT_CHARACTERS, placeholder=" ...").removeprefix(".: ")
            click.echo(f"| {run.repository} | {place} | {captured} | {count} | {what} | {busy} |")
    click.echo(", ".join(f"{repository} {revision}" for repository, revision in revisions.items()))
    for group, each in right.items():
        click.echo(f"{group}: {sum(each)} of {len(each)} right in every field", err=True)


def compare(run: Run, seen: Mapping[str, str], parameter_count: int) -> Mapping[str, tuple[str, str]]:
    """Return what was found and what is right, by field."""
    expected = run.expected
    fields = {key: (seen.get(key, "none"), expected.get(key, "none")) for key in dict.fromkeys([*expected, *seen])}
    if run.parameters:
        fields["parameters"] = (f"{parameter_count:,}", f"{int(run.parameters):,}")
    return fields


def extract(folder: Path, repository: str, target: Path) -> str:
    """Write the small text files of *repository* to *target*, and return its revision."""
    git = ["git", f"--git-dir={folder / repository.replace('/', '+') / 'repo'}"]
    listing = subprocess.run([*git, "ls-tree", "-r", "-l", "HEAD"], stdout=subprocess.PIPE, text=True, check=True)
    for line in listing.stdout.splitlines():
        words, path = line.split("\t")
        _, kind, digest, size = words.split()
        if kind != "blob" or not path.endswith(SUFFIXES) or not size.isdecimal() or int(size) > MAXIMUM_FILE_BYTES:
            continue
        blob = subprocess.run([*git, "cat-file", "blob", digest], capture_output=True, check=False)
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_bytes(blob.stdout)
    revision = subprocess.run([*git, "log", "-1", "--format=%h"], stdout=subprocess.PIPE, text=True, check=True)
    return revision.stdout.strip()


def capture(work: Path, run: Run, python: str) -> dict[str, Any]:
    """Return what the command prints of *run* with ``--json``, or its error."""
    variables = {"PYTHON": python, "STAND_INS": str(HERE / "capture_stand_ins.py"), "DATA": str(work / "data")}
    command = [sys.executable, "-m", "gpusage.cli", "capture", "--json", "--time", "400s", "--shell", run.command]
    done = subprocess.run(
        command,
        cwd=work / run.repository / run.folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        document = {}
    lines = done.stderr.strip().splitlines() or ["nothing"]
    return {"error": re.sub(r"[|\n]", " ", lines[-1])[:160], **{k: v for k, v in document.items() if k != "error"}}


if __name__ == "__main__":
    main()
