"""What the actions of commands share: tables, documents, and files of users."""

from __future__ import annotations

from gpusage.cli import documents, tables
from gpusage.cli.status import cluster_lines, daemon_lines
from gpusage.cli.user_file import require_regular

__all__ = [
    "cluster_lines",
    "daemon_lines",
    "documents",
    "require_regular",
    "tables",
]
