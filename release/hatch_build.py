"""Puts the YARN jar that `make wheel` has built into the wheel; other builds, an editable one say, hold none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_JAR = "GPUSAGE_YARN_JAR"


class JarHook(BuildHookInterface):  # type: ignore[type-arg]  # we do not use hatchling's type parameter
    """Adds one file to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the jar that the environment names to the package `gpusage_yarn`."""
        jar = os.environ.get(_JAR)
        if jar and version == "standard":
            build_data["force_include"][jar] = f"gpusage_yarn/{Path(jar).name}"
