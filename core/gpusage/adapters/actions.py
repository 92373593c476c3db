"""What the actions of commands share: tables, figures, documents, and files of users."""

from __future__ import annotations

from gpusage.cli import documents, figures, tables
from gpusage.cli.status import cluster_lines, daemon_lines
from gpusage.cli.user_file import read_document, refusal, require_regular

__all__ = [
    "cluster_lines",
    "daemon_lines",
    "documents",
    "figures",
    "read_document",
    "refusal",
    "require_regular",
    "tables",
]
