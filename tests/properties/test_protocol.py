"""Whatever comes in: a question or one documented error; whatever goes out: one flat line."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from gpusage.service.decision_cache import AccessRecordingMapping, DecisionCache
from gpusage.service.protocol import DecisionRequest, Ping, ProtocolError, Response, StatusQuery, json_line, parse_line
from gpusage_hooks.types import Code

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
NEARLY = st.fixed_dictionaries(
    {},
    optional={
        "v": st.sampled_from([1, "1", 2, True, None, 1.0]),
        "op": st.sampled_from(["ask", "ping", "status", ""]) | JSON,
        "manager": st.sampled_from(["slurm", "yarn", "SLURM", ""]) | JSON,
        "fields": st.dictionaries(st.text(), st.text()) | JSON,
    },
)
FIELDS = st.dictionaries(st.sampled_from("abcd"), st.sampled_from(["", "0", "1"]))


def accepted(line: bytes) -> bool:
    """Return whether *line* is a question; any other error than the documented one goes through."""
    try:
        question = parse_line(line)
    except ProtocolError:
        return False
    assert isinstance(question, (DecisionRequest, Ping, StatusQuery))
    return True


@given(st.binary())
def test_any_bytes_are_a_question_or_refused(line: bytes) -> None:
    """Nothing else leaves the parser."""
    accepted(line)


@given(JSON)
def test_any_json_is_a_question_or_refused(document: object) -> None:
    """Valid JSON of any shape."""
    accepted(json.dumps(document).encode())


@given(NEARLY)
def test_what_is_nearly_a_question_is_one_or_is_refused(document: dict[str, object]) -> None:
    """The right keys with wrong values; a version that is missing is never accepted."""
    assert not accepted(json.dumps(document).encode()) or document["v"] in (1, "1")


@given(st.dictionaries(st.text(), st.text()))
def test_fields_arrive_as_they_were_sent(fields: dict[str, str]) -> None:
    """Apart from what UTF-8 cannot hold, which hypothesis does not make here."""
    question = parse_line(json_line({"v": 1, "manager": "slurm", "fields": fields})[:-1])
    assert question == DecisionRequest(manager="slurm", fields=fields)


@given(
    st.text(alphabet=st.characters()),
    st.dictionaries(st.text(alphabet=st.characters()), st.text(alphabet=st.characters())),
)
def test_an_answer_is_one_flat_line_of_texts(message: str, settings: dict[str, str]) -> None:
    """Whatever a user wrote and a plugin gave, surrogates included."""
    line = Response(code=Code.KEEP, message=message, settings=settings).line()
    assert line.count(b"\n") == 1
    response = json.loads(line)
    assert all(isinstance(value, str) for value in response.values())
    assert all(key in ("v", "code", "message") or key.startswith(("set.", "env.")) for key in response)
    assert response["message"].isprintable()


def decide(fields: AccessRecordingMapping) -> str:
    """Look at some fields and not at others, depending on what they say."""
    if fields.get("a") == "1":
        return "b" + str("b" in fields)
    return "c" + fields.get("c", "none")


@given(st.lists(FIELDS, max_size=40))
def test_a_precedent_says_what_judging_anew_would_say(questions: list[dict[str, str]]) -> None:
    """However the questions before it were mixed."""
    decision_cache: DecisionCache[str] = DecisionCache()
    for fields in questions:
        request = DecisionRequest(manager="slurm", fields=fields)
        traced = AccessRecordingMapping(fields)
        expected = decide(traced)
        assert decision_cache.find(request) in (None, expected)
        decision_cache.add(request, traced.fields_read(), expected)
        assert decision_cache.find(request) == expected
