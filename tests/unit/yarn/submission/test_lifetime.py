"""How long an application may live."""

from __future__ import annotations

from typing import Any

import pytest

from gpusage_yarn.submission.monitoring import limit_lifetime


class _Manager:
    def application(self, identity: str) -> dict[str, Any]:
        return {"id": identity, "startedTime": 1_800_000_000_000}

    def request_once(self, method: str, path: str, document: object) -> None:
        self.sent = (method, path, document)


def test_a_lifetime_counts_from_the_submission_by_the_resource_managers_clock() -> None:
    manager = _Manager()
    limit_lifetime(manager, "application_1_1", 90)  # type: ignore[arg-type]
    timeout = {"timeout": {"type": "LIFETIME", "expiryTime": "2027-01-15T08:01:30.000+0000"}}
    assert manager.sent == ("PUT", "apps/application_1_1/timeout", timeout)


@pytest.mark.parametrize("lifetime_s", [1e12, 1e300, float("inf")])
def test_a_lifetime_beyond_all_calendars_ends_no_submission(lifetime_s: float) -> None:
    printed = limit_lifetime(_Manager(), "application_1_1", lifetime_s)  # type: ignore[arg-type]
    assert printed.startswith("note: application_1_1 runs without a limit of its lifetime: ")
