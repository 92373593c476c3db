"""Findings of `doctor`, and the checks that every workload manager shares."""

from __future__ import annotations

from gpusage.cli.doctor import (
    OwnEvidence,
    daemon_trouble,
    divisions,
    gather_own,
    kill_switch,
    plugins,
    settings_file,
    store,
)
from gpusage.cli.findings import Finding, failed, passed, show_findings, skipped, warned

__all__ = [
    "Finding",
    "OwnEvidence",
    "daemon_trouble",
    "divisions",
    "failed",
    "gather_own",
    "kill_switch",
    "passed",
    "plugins",
    "settings_file",
    "show_findings",
    "skipped",
    "store",
    "warned",
]
