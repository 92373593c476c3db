"""What gpusage's own pyproject.toml cannot say: the YARN jar of a released wheel, the desk's plugins of a checkout."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_JAR = "GPUSAGE_YARN_JAR"
_DESK = "release/desk/pyproject.toml"


class WheelHook(BuildHookInterface):  # type: ignore[type-arg]  # we do not use hatchling's type parameter
    """Completes a wheel: a released one, or the editable one that `pip install -e` makes."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the jar that the environment names, or the entry points of the wheel gpusage-desk."""
        if version == "editable":
            # `pip install -e .` gives all that is in a checkout, so both wheels' plugins are announced by this one.
            desk = tomllib.loads(Path(self.root, _DESK).read_text(encoding="utf-8"))
            self.metadata.core.entry_points["gpusage"].update(desk["project"]["entry-points"]["gpusage"])
        elif jar := os.environ.get(_JAR):
            build_data["force_include"][jar] = f"gpusage_yarn/{Path(jar).name}"
