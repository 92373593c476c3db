"""Applications that ended, as a ResourceManager lists them: what of them the simulator reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpusage_hooks.errors import RequestError
from gpusage_yarn.cluster.documents import with_repeated_names
from gpusage_yarn.past_jobs import past_jobs, read_past_jobs

ANSWER = """{"apps":{"app":[
{"id":"application_17_0001","user":"ann","state":"FINISHED","startedTime":1000000,"launchTime":1010000,
 "finishedTime":1030000,"resourceSecondsMap":{"entry":{"key":"gpusage.io/share","value":"0"},
 "entry":{"key":"memory-mb","value":"4034"},"entry":{"key":"yarn.io/gpu","value":"22"},
 "entry":{"key":"vcores","value":"42"}},"appNodeLabelExpression":"a100"},
{"id":"application_17_0002","user":"bob","state":"KILLED","startedTime":1001000,"launchTime":0,"finishedTime":1031000,
 "resourceSecondsMap":{"entry":{"key":"gpusage.io/share","value":"565"},"entry":{"key":"yarn.io/gpu","value":"0"}}},
{"id":"application_17_0003","user":"bob","state":"FINISHED","startedTime":1001000,"launchTime":1002000,
 "finishedTime":1031000,"resourceSecondsMap":{"entry":{"key":"vcores","value":"9"}}},
{"id":"application_17_0004","user":"bob","state":"RUNNING","startedTime":1001000,"launchTime":1002000,"finishedTime":0,
 "resourceSecondsMap":{"entry":{"key":"vcores","value":"9"},"entry":{"key":"yarn.io/gpu","value":"9"}}}]}}
"""
"""In the form of Hadoop 3.4.2, where a map's key ``entry`` stands several times."""


def written(folder: Path, text: str) -> str:
    path = folder / "apps.json"
    path.write_text(text)
    return str(path)


def test_applications_that_ended_with_gpus_are_jobs(tmp_path: Path) -> None:
    """22 GPU seconds in 20 s are two GPUs; a share counts as one."""
    first, second = read_past_jobs(written(tmp_path, ANSWER)) or ()
    assert (first.job_id, first.user, first.gpu_count, first.gpu_type) == ("application_17_0001", "ann", 2, "a100")
    assert (first.submitted_at_s, first.duration_s) == (1000, 20)
    assert (second.job_id, second.gpu_count, second.gpu_type, second.duration_s) == ("application_17_0002", 1, None, 30)


def test_a_list_of_one_application_may_come_without_its_brackets() -> None:
    document = json.loads(ANSWER, object_pairs_hook=with_repeated_names)
    document["apps"]["app"] = document["apps"]["app"][0]
    assert [job.user for job in past_jobs(document, "rm")] == ["ann"]


@pytest.mark.parametrize("text", ["", "job_id,submit_time\n", "[]", "{}", '{"nodes": null}'])
def test_other_files_are_left_to_others(text: str, tmp_path: Path) -> None:
    assert read_past_jobs(written(tmp_path, text)) is None
    assert read_past_jobs(str(tmp_path / "none")) is None


def test_no_applications_are_no_jobs(tmp_path: Path) -> None:
    assert read_past_jobs(written(tmp_path, '{"apps": null}')) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"finishedTime": "noon"}, "Application 'application_17_0001' of .* must be as a ResourceManager .*noon"),
        ({"resourceSecondsMap": {"entry": [3]}}, "Application 'application_17_0001' of .*TypeError"),
        ({"user": None, "id": None, "startedTime": {}}, "Application 'None'"),
    ],
)
def test_what_no_resourcemanager_writes_is_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    document = json.loads(ANSWER, object_pairs_hook=with_repeated_names)
    document["apps"]["app"][0] |= change
    with pytest.raises(RequestError, match=words):
        read_past_jobs(written(tmp_path, json.dumps(document)))


def test_a_mistake_in_json_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"must be JSON, as it begins; got: .*line 3"):
        read_past_jobs(written(tmp_path, ANSWER.replace('"finishedTime":1030000', "?", 1)))
