"""Java programs that tests bring along: compiled where they are needed."""

from __future__ import annotations

import subprocess
from pathlib import Path
from zipfile import ZipFile

from gpusage_sandboxes.yarn.hadoop import Java


def compile_java(java: Java, source: Path, classpath: str, folder: Path) -> Path:
    """Return the jar of the one program *source*, made in the empty *folder*."""
    compiler = java.home / "bin" / "javac"
    words = [str(compiler), "-J-XX:TieredStopAtLevel=1", "-proc:none", "-cp", classpath, "-d", str(folder), str(source)]
    subprocess.run(words, check=True)
    jar = folder / f"{source.stem}.jar"
    with ZipFile(jar, "w") as archive:
        for path in sorted(folder.rglob("*.class")):
            archive.write(path, path.relative_to(folder))
    return jar
