"""What is sent to YARN for a command."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpusage_hooks.errors import RequestError
from gpusage_yarn.share_plan import Plan
from gpusage_yarn.submission.application import (
    Application,
    command_line,
    describe_files,
    parse_variables,
    require_transportable,
    without_reserved,
)

PLAN = Plan(share=40, labels=("a100", "h100"), containers=2)


def test_one_word_is_a_line_as_typed_and_several_are_words() -> None:
    assert command_line(["a | b $C"]) == "a | b $C"
    assert command_line(["printf", "%s", "a b", "$C"]) == "printf %s 'a b' '$C'"


@pytest.mark.parametrize("word", ["x" * 70_000, "a\0b", "\udcff"], ids=["long", "zero", "bytes"])
def test_what_cannot_travel_is_refused(word: str) -> None:
    with pytest.raises(RequestError, match=r"^Command must .* send that with --file"):
        command_line([word])


def test_nothing_that_a_user_typed_is_left_for_a_shell_to_read() -> None:
    typed = "\"$(id)\" `id` 'x' \n \\"
    application = Application(
        command=typed, plan=PLAN, name="n", variables=(("V", typed),), files=((typed, "file:///x 1 2"),)
    )
    environment = application.environment()
    harmless = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=_")
    assert all(set(value) <= harmless for value in environment.values())
    assert base64.b64decode(environment["GPUSAGE_COMMAND"]).decode() == typed
    assert json.loads(base64.b64decode(environment["GPUSAGE_ENV"])) == {"V": typed}
    assert typed not in application.master_command()


def test_the_document_is_what_the_resource_manager_reads() -> None:
    application = Application(command="true", plan=PLAN, name="n", queue="q", master_label="h100")
    document = application.document("application_1_2")
    assert document["app-node-label-expression"] == "a100"
    assert document["am-container-node-label-expression"] == "h100"
    assert document["queue"] == "q"
    assert "priority" not in document  # the queue may have one
    document = replace(application, priority=3, attempts=1, tags=("t",)).document("application_1_2")
    assert [document[name] for name in ("priority", "max-app-attempts", "application-tags")] == [3, 1, {"tag": ["t"]}]
    assert document["keep-containers-across-application-attempts"] is True
    bare = Application(command="true", plan=PLAN, name="n").document("i")
    assert "queue" not in bare
    assert not [key for key in bare if key.endswith("node-label-expression")]


def test_a_classpath_of_variables_is_filled_in_on_the_node() -> None:
    command = Application(command="true", plan=PLAN, name="n", classpath="$HADOOP_CONF_DIR,/x/*").master_command()
    assert "-cp '{{HADOOP_CONF_DIR}}:/x/*'" in command


def test_variables_are_given_or_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "here")
    assert parse_variables(["A=b=c", "HERE", "EMPTY="]) == (("A", "b=c"), ("HERE", "here"), ("EMPTY", ""))


@pytest.mark.parametrize("entry", ["1=2", "", "=x", "A-B=c", "NOT_SET_ANYWHERE"])
def test_a_variable_without_a_name_is_refused(entry: str) -> None:
    with pytest.raises(RequestError, match=r"^Variable must be NAME=VALUE"):
        parse_variables([entry])


def test_a_file_is_known_by_its_time_of_change_in_milliseconds(tmp_path: Path) -> None:
    path = tmp_path / "a b.txt"
    path.write_text("four")
    os.utime(path, ns=(0, 1_700_000_000_123_456_789))
    assert describe_files([path]) == (("a b.txt", f"{path.as_uri()} 4 1700000000123"),)


def test_a_command_that_no_node_could_hand_to_bash_is_refused() -> None:
    require_transportable("x" * 60_000, [("A", "y" * 30_000)])
    for command, variables in (("x" * 60_000, [("A", "y" * 60_000)]), ("true", [("A", "'" * 40_000)])):
        with pytest.raises(RequestError, match=r"^Command and variables must have at most 92160 bytes together"):
            require_transportable(command, variables)


def test_variables_count_as_they_travel() -> None:
    parse_variables([f"A={'ü' * 30_000}"])
    with pytest.raises(RequestError, match=r"^Variables, as they travel, must have at most 65536 bytes"):
        parse_variables(["A=" + '"' * 40_000])


def test_variables_that_keep_a_container_to_its_share_are_taken_out() -> None:
    inputs = (("CUDA_VISIBLE_DEVICES", "7"), ("A", "1"), ("CUDA_MPS_PIPE_DIRECTORY", "/x"))
    assert without_reserved(inputs) == ((("A", "1"),), ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY"))


def test_files_that_cannot_lie_in_one_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for path in (tmp_path / "f", tmp_path / "d" / "f"):
        path.touch()
    with pytest.raises(RequestError, match="name of its own"):
        describe_files([tmp_path / "f", tmp_path / "d" / "f"])
    with pytest.raises(RequestError, match="must be a file"):
        describe_files([tmp_path / "d"])
    with pytest.raises(RequestError, match="must exist"):
        describe_files([tmp_path / "none"])
