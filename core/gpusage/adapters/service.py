"""gpusaged: its client, its kill switch, reservations that have not been seen on the cluster yet."""

from __future__ import annotations

from gpusage.service import client
from gpusage.service.client import find_status, read_status
from gpusage.service.state.allowed_users import known_uids
from gpusage.service.state.kill_switch import kill_reason
from gpusage.service.state.reservations import Reservation, remaining_capacity

__all__ = [
    "Reservation",
    "client",
    "find_status",
    "kill_reason",
    "known_uids",
    "read_status",
    "remaining_capacity",
]
