"""Edits of an admin's files, shown as a difference and made all or not at all, and the copies that hosts run."""

from __future__ import annotations

from gpusage.boundary.edits import Edit, edit_of, read_text
from gpusage.capture import ON_START
from gpusage.cli.changes import show_and_make
from gpusage.node.dividing import PROGRAM, libexec_folder
from gpusage.node.dividing.copies import PYTHON, node_programs, plain_python, plan_node_programs

__all__ = [
    "ON_START",
    "PROGRAM",
    "PYTHON",
    "Edit",
    "edit_of",
    "libexec_folder",
    "node_programs",
    "plain_python",
    "plan_node_programs",
    "read_text",
    "show_and_make",
]
