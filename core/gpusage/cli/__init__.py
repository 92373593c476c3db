"""The command line: `gpusage COMMAND`; `program` has the list of commands."""

from gpusage.cli.program import main

__all__ = ["main"]
