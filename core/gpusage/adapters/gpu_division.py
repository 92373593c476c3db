"""How a node divides a GPU, and what a job got of it."""

from __future__ import annotations

from gpusage.node.dividing.client import PIPE_VARIABLE, query_client_view, whole_sm_count
from gpusage.node.dividing.granted import (
    FOLDER,
    LIMIT_VARIABLE,
    NOT_READ_BACK,
    PERCENT_VARIABLE,
    limit_bytes,
    read_granted,
    with_client_view,
)

__all__ = [
    "FOLDER",
    "LIMIT_VARIABLE",
    "NOT_READ_BACK",
    "PERCENT_VARIABLE",
    "PIPE_VARIABLE",
    "limit_bytes",
    "query_client_view",
    "read_granted",
    "whole_sm_count",
    "with_client_view",
]
