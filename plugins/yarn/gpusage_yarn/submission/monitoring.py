"""An application from its submission to its end: its state, its exit status, and the last lines of its logs."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import requests

from gpusage.boundary.operating_system import is_interrupted
from gpusage_hooks.errors import GpuUsageError, RequestError
from gpusage_yarn.cluster.resource_manager import ResourceManager, UnreachableError, configured_session

ENDED = ("FINISHED", "FAILED", "KILLED")
KILLED_STATUS = 143  # as the shell has it for SIGTERM
TAIL_BYTES = 4096

_POLL_S = (0.1, 1.0)
_EXIT = re.compile(r"gpusage: exit status (\d+)")
_LOGS = re.compile(r"(https?://[^/]+)/node/containerlogs/(container_\w+)")
_RUNS = re.compile(r"gpusage: (container_\w+) runs on \S+, logs at (https?://[^/]+)/")
_ENDS = re.compile(r"gpusage: (container_\w+) ended with (-?\d+)")
_CONTENTS = re.compile(r"^LogContents:\n(.*?)\n?End of LogType:", re.DOTALL | re.MULTILINE)
_REPEATED = re.compile(
    r"(?:^\[[^\]]*\])?(?:Container exited with a non-zero|Last \d+ bytes of).*", re.DOTALL | re.MULTILINE
)
_STARVED = re.compile(
    r"container_\w+ ran out of GPU memory in its share of \d+, and its command [^.]+"
)  # Rescue.java's
_TOO_LARGE = re.compile(r"running (?:\S+ )?beyond (?:the ')?(?:physical|virtual)'? memory limit", re.IGNORECASE)
"""A NodeManager's, of a container that it ends: of 2.x and of 3.x."""
_TIMEOUT_S = (3.05, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationOutcome:
    """How an application ended.

    Attributes:
        state: YARN's ``SUCCEEDED``, ``FAILED`` or ``KILLED``.
        status: The command's exit status.
    """

    identity: str
    state: str
    status: int
    diagnostics: str
    report: Mapping[str, Any]

    def reason(self) -> str:
        """Return the diagnostics without the end of the logs that YARN adds to them."""
        return _REPEATED.sub("", self.diagnostics).strip()

    def is_interrupted(self) -> bool:
        """Return whether it failed for a reason from outside, so surely not because it lacked GPU memory."""
        return self.state == "FAILED" and (is_interrupted(self.status) or bool(_TOO_LARGE.search(self.diagnostics)))

    def out_of_memory_messages(self) -> tuple[str, ...]:
        """Return the master's sentences on containers whose share had too little GPU memory."""
        return tuple(match[0] for match in _STARVED.finditer(self.diagnostics))


class Progress:
    """Shows the state: a single line that is written over on a terminal, else a line for each change."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._began_s = time.monotonic()
        self._shown = ""

    def show(self, text: str) -> None:
        """Tell that the state is *text*."""
        if self._terminal:
            line = f"gpusage: {text}, {time.monotonic() - self._began_s:.0f} s"
            sys.stderr.write(f"\r\x1b[K{line}")
        elif text != self._shown:
            sys.stderr.write(f"gpusage: {text}\n")
        self._shown = text
        sys.stderr.flush()

    def end(self) -> None:
        """Leave the line."""
        if self._terminal and self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def follow(manager: ResourceManager, identity: str, show: Callable[[str], None]) -> ApplicationOutcome:
    """Return how the application ends, telling its state meanwhile; a silent ResourceManager is waited for.

    Raises:
        RequestError: The ResourceManager has forgotten it.
    """
    pause_s, has_run = _POLL_S[0], False
    while True:
        try:
            report = manager.application(identity)
        # The application does not need the ResourceManager while its containers run.
        except UnreachableError:
            show(f"{identity} goes on, the ResourceManager is silent")
        else:
            if report is None:
                message = (
                    f"Application {identity} must be known to the ResourceManager; it has forgotten it. "
                    "Ask your admin to set yarn.resourcemanager.recovery.enabled."
                )
                raise RequestError(message)
            if report["state"] in ENDED:
                return parse_outcome(report)
            has_run = has_run or running_container_count(report) > 0
            show(describe_state(report, has_run=has_run))

        # Short at first, as most troubles show at once.
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.2, _POLL_S[1])


def parse_outcome(report: Mapping[str, Any]) -> ApplicationOutcome:
    """Return how an application ended, by the ResourceManager's *report*."""
    diagnostics = str(report.get("diagnostics") or "").strip()
    state = str(report.get("finalStatus") or "")

    # The master writes its command's status; YARN's final state has the last word.
    match = _EXIT.search(diagnostics)
    status = int(match[1]) if match else 1
    if state == "SUCCEEDED":
        status = 0
    elif state == "KILLED":
        status = KILLED_STATUS

    # An application that failed never ends with 0, whatever its command did.
    status = status or int(state != "SUCCEEDED")
    return ApplicationOutcome(
        identity=str(report["id"]), state=state, status=status, diagnostics=diagnostics, report=report
    )


def describe_state(report: Mapping[str, Any], *, has_run: bool = False) -> str:
    """Return a line on an application that goes on; *has_run*: it had a container before."""
    state, count = str(report.get("state", "")).lower(), running_container_count(report)
    label = str(report.get("appNodeLabelExpression") or "")
    where = f" on {label}" if label and not label.startswith("<") else ""
    if state == "running":
        waiting = "ending" if has_run else f"waiting for a GPU, at first{where}"
        return f"{report['id']} {f'running, containers: {count}' if count else waiting}"
    return f"{report['id']} {state}{where}"


def running_container_count(report: Mapping[str, Any]) -> int:
    """Return in how many containers an application runs, its master's left out."""
    return max(int(report.get("runningContainers", 0)) - 1, 0)


def log_tails(outcome: ApplicationOutcome) -> Iterator[tuple[str, str]]:
    """Yield titles and texts: the last lines of the failed command, or else of the master."""
    # The master's own log names the containers, their nodes and how each of them ended.
    match = _LOGS.search(str(outcome.report.get("amContainerLogs", "")))
    if not match:
        return
    address, master = match[1], match[2]
    log = container_log(address, master, "stdout", size=256 * 1024)
    places = dict(_RUNS.findall(log))
    failed = [name for name, status in _ENDS.findall(log) if status != "0" and name in places]

    names = [(places[failed[-1]], failed[-1])] if failed else [(address, master)]
    for place, name in names:
        for stream in ("stdout", "stderr"):
            text = container_log(place, name, stream).strip()
            if text:
                yield f"{name} {stream}", text


def container_log(address: str, container: str, stream: str, size: int = TAIL_BYTES) -> str:
    """Return the last *size* bytes of a container's log, empty where its node no longer has it."""
    url = f"{address}/ws/v1/node/containers/{container}/logs/{stream}"
    query = {"size": str(-size), "format": "text"}
    try:
        answer = configured_session(requests.Session()).get(url, params=query, timeout=_TIMEOUT_S)
    except requests.RequestException:
        return ""
    return contents_of(answer.text) if answer.ok else ""


def contents_of(text: str) -> str:
    """Return the log itself: a NodeManager writes its own lines above and below."""
    match = _CONTENTS.search(text)
    return match[1] if match else text


def limit_lifetime(manager: ResourceManager, identity: str, lifetime_s: float) -> str:
    """End the application *lifetime_s* after its submission, waiting included; return a line on that for its user.

    The ResourceManager's own clock counts: this host's may differ.
    """
    try:
        report = manager.application(identity) or {}
        end = datetime.fromtimestamp(report["startedTime"] / 1000, timezone.utc) + timedelta(seconds=lifetime_s)
        expiry = f"{end:%Y-%m-%dT%H:%M:%S}.{end.microsecond // 1000:03}+0000"
        timeout = {"timeout": {"type": "LIFETIME", "expiryTime": expiry}}
        manager.request_once("PUT", f"apps/{identity}/timeout", timeout)
    except (GpuUsageError, KeyError, OverflowError) as error:  # the last for a time beyond the year 9999
        return f"note: {identity} runs without a limit of its lifetime: {error}"
    return f"{identity} ends at {end.astimezone():%Y-%m-%d %H:%M:%S} at the latest"
