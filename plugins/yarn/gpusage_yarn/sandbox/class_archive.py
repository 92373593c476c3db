"""Hadoop's classes as Java keeps them in memory, written once to a file: daemons start in half the time.

Java passes over a file that is not of this very Java and these very jars, and only starts slower then.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from gpusage_yarn.sandbox.hadoop import Hadoop

_LISTS = "classes-%p.list"


def listing_options(folder: Path) -> tuple[str, ...]:
    """Return the options with which each daemon leaves the names of its classes in *folder* when it is stopped."""
    return (f"-XX:DumpLoadedClassList={folder / _LISTS}",)


def make_archive(hadoop: Hadoop, folder: Path) -> None:
    """Write the archive of the classes that are named in *folder*; where Java cannot, it is empty."""
    lists = [path.read_text(encoding="utf-8") for path in folder.glob(_LISTS.replace("%p", "*"))]
    names = dict.fromkeys(name for text in lists for name in class_names(text))
    wanted = folder / "classes"
    wanted.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    partial = hadoop.class_archive.with_suffix(f".{os.getpid()}")
    command = [
        str(hadoop.java.program),
        "-Xshare:dump",
        "-XX:-UsePerfData",  # or the dump leaves a file in the machine's own temporary folder
        "-XX:+UseSerialGC",
        f"-XX:SharedClassListFile={wanted}",
        f"-XX:SharedArchiveFile={partial}",
        "-classpath",
        hadoop.classpath,
    ]
    done = subprocess.run(command, check=False, capture_output=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0 or not partial.is_file():
        partial.write_bytes(b"")
    partial.replace(hadoop.class_archive)


def class_names(text: str) -> Iterable[str]:
    """Yield the classes that a list of Java's names, without those made or loaded in a way of their own."""
    for line in text.splitlines():
        if line and line[0] not in "#@" and "source:" not in line:
            yield line.partition(" ")[0]
