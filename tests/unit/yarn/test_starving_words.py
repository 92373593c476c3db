"""The words by which a program says that its GPU has no memory left are the same for Slurm and YARN."""

from __future__ import annotations

import re
from pathlib import Path

PLUGINS = Path(__file__).resolve().parents[3] / "plugins"
EPILOG = PLUGINS / "slurm" / "gpusage_slurm" / "node" / "task_epilog.sh"
RESCUE = PLUGINS / "yarn" / "java" / "src" / "main" / "java" / "org" / "gpusage" / "yarn" / "Rescue.java"


def test_both_look_for_the_same_words() -> None:
    pattern = r"^out_of_memory=['\"](?:\$out_of_memory)?(.*)['\"]$"
    shell = "".join(re.findall(pattern, EPILOG.read_text(), re.MULTILINE))
    java = re.search(r"Pattern\.compile\((.*?)\);", RESCUE.read_text(), re.DOTALL)
    assert java is not None
    assert "".join(re.findall(r'"(.*)"', java[1])).replace(r"\\", "\\") == shell.replace(r"\\", "\\")
