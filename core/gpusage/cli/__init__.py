"""The command line: `gpusage COMMAND`; each command is one module, imported when it is called.

Decisions: docs/decisions/packaging.md
"""

from __future__ import annotations

import click

from gpusage.cli.group import LazyGroup

EXAMPLE = """\b
Example:
  gpusage predict examples/models/resnet50.onnx --batch 64 --gpu v100 --gpu h100

\b
Shell completion (zsh_source, fish_source likewise):
  eval "$(_GPUSAGE_COMPLETE=bash_source gpusage)"
"""


@click.group(name="gpusage", cls=LazyGroup, epilog=EXAMPLE, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gpusage")
def main() -> None:
    """Predict what deep-learning jobs need from a GPU, before they run."""
