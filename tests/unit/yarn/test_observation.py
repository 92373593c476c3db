"""Applications with the marks that their tags make, as the ResourceManager lists them."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.store.annotation import parse_annotation
from gpusage_hooks.managers import Context
from gpusage_hooks.types import AnnotatedJob
from gpusage_yarn.cluster.documents import Document
from gpusage_yarn.cluster.resource_manager import RefusedError
from gpusage_yarn.cluster.tags import make_tags
from gpusage_yarn.observation import observe_cluster, read_jobs
from gpusage_yarn.settings import YarnSettings
from gpusage_yarn.share_plan import APPLICATION_ID, Plan

NUMBER = "69215f4a0c3e"
ID = "application_1795251805121_0002"
OURS: dict[str, Any] = {
    "id": ID,
    "user": "alice",
    "state": "RUNNING",
    "applicationType": "GPUSAGE",
    "runningContainers": 2,
    "applicationTags": ",".join(make_tags(Plan(share=40, labels=("v100", "a100")), NUMBER)),
}


def listed(**changes: object) -> AnnotatedJob:
    (job,) = read_jobs(lambda _path: {"apps": {"app": [{**OURS, **changes}]}}, "", "")
    return job


def test_an_application_of_ours_has_the_mark_of_its_decision() -> None:
    job = listed()
    mark = parse_annotation(job.mark)
    assert mark is not None
    assert (job.job_id, job.manager, job.user) == (ID, "yarn", "alice")
    assert (mark.number, mark.code, mark.before) == (NUMBER, "REWRITE", "yarn.io/gpu: 1")
    assert mark.after == "gpusage.io/share: 40 on v100, then a100"


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "running"),
        ({"runningContainers": 1}, "waiting"),  # its master alone
        ({"runningContainers": 1, "applicationType": "SPARK"}, "running"),
        ({"state": "ACCEPTED", "runningContainers": 0}, "waiting"),
        ({"state": "FINISHED"}, "ended"),
        ({"state": "KILLED", "runningContainers": -1}, "ended"),
    ],
)
def test_an_application_waits_until_more_than_our_master_runs(changes: dict[str, object], state: str) -> None:
    assert listed(**changes).state == state


@pytest.mark.parametrize(("share", "code"), [(100, "KEEP"), (40, "REWRITE")])
def test_a_whole_gpu_was_kept(share: int, code: str) -> None:
    mark = parse_annotation(listed(applicationTags=",".join(make_tags(Plan(share=share, labels=("a",)), NUMBER))).mark)
    assert mark is not None
    assert mark.code == code


def test_of_another_client_s_application_the_number_is_known_and_of_any_other_nothing() -> None:
    mark = parse_annotation(listed(applicationTags=f"mine,gpusage-number-{NUMBER}").mark)
    assert mark is not None
    assert (mark.number, mark.code) == (NUMBER, "REWRITE")
    assert listed(applicationTags="mine").mark == ""
    assert listed(applicationTags=None).mark == ""


def test_a_user_is_one_word_of_the_question() -> None:
    requested: list[str] = []

    def get(path: str) -> Document:
        requested.append(path)
        return {"apps": None}

    assert read_jobs(get, "", "a&b") == ()
    assert requested == ["apps?user=a%26b&deSelects=resourceRequests"]


@pytest.mark.parametrize(("status", "known"), [(404, True), (500, False)])
def test_an_application_that_is_forgotten_is_none(status: int, *, known: bool) -> None:
    def get(_path: str) -> Document:
        message = "no"
        raise RefusedError(message, status)

    if known:
        assert read_jobs(get, ID, "") == ()
    else:
        with pytest.raises(RefusedError):
            read_jobs(get, ID, "")


def test_ids_are_yarn_s() -> None:
    assert APPLICATION_ID.fullmatch(ID)
    assert not APPLICATION_ID.fullmatch("17_3")
    assert not APPLICATION_ID.fullmatch("application_1_2/../x")


class Handler(BaseHTTPRequestHandler):
    """Answers as a ResourceManager without nodes, of the cluster *identity*."""

    identity = ""

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Tell the cluster's identity where it has one, and that this one is active; YARN knows no setting not set."""
        wanted = self.path.startswith("/conf?name=yarn.resourcemanager.cluster-id&")
        known = {"property": {"value": self.identity}} if wanted and self.identity else {}
        content = json.dumps({"clusterInfo": {"haState": "ACTIVE"}, **known}).encode()
        self.send_response(404 if self.path.startswith("/conf") and not known else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def manager() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Named", (Handler,), {}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("identity", "hosts", "name"),
    [
        ("lab", ("127.0.0.1", "0.invalid"), "lab"),
        ("", ("127.0.0.1", "0.invalid"), "0.invalid"),
        ("", ("127.0.0.1",), socket.gethostname()),
        ("", ("localhost",), socket.gethostname()),
        ("", ("0.0.0.0",), socket.gethostname()),  # noqa: S104 - a place to ask
    ],
)
def test_a_cluster_has_its_own_name_or_that_of_a_host_and_no_address_that_each_host_has(
    manager: ThreadingHTTPServer, identity: str, hosts: tuple[str, ...], name: str
) -> None:
    manager.RequestHandlerClass.identity = identity  # type: ignore[attr-defined]
    context = Context(settings=YarnSettings(), catalogue=builtin_catalogue())
    addresses = tuple(f"http://{host}:{manager.server_port}" for host in hosts)
    assert observe_cluster(addresses, context).name == name
