"""The command line: `gpusage COMMAND`; `program` has the list of commands.

Decisions: docs/decisions/packaging.md
"""

from gpusage.cli.program import main

__all__ = ["main"]
