"""What a daemon's log says of its end."""

from __future__ import annotations

from gpusage_sandboxes.yarn.cluster import last_exception


def test_the_last_exception_of_a_log_is_what_it_died_of() -> None:
    log = (
        "2026-11-21 08:31:02 INFO all is well\n"
        "java.io.IOException: an old story\n"
        "Caused by: java.lang.ClassNotFoundException: org.example.Missing\n"
        "\tat java.base/java.lang.Class.forName\n"
    )
    assert last_exception(log) == "java.lang.ClassNotFoundException: org.example.Missing"
    assert last_exception("2026-11-21 08:31:02 INFO all is well\n") == "no reason given"
