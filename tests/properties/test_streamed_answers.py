"""Streamed answers: what is put together does not depend on how it is read."""

import json
from unittest import mock

import orjson
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.streaming import assemble_choices
from policies.decision import Endpoint

TEXTS = st.one_of(
    st.text(max_size=5), st.sampled_from(["a", "", '"', "\\", "ü", "\x07", "content", "漢字"])
)


def plain(value):
    """Change nothing."""


def role_list(value):
    value["choices"][0]["delta"].update(role=["assistant"])


def role_object(value):
    value["choices"][0]["delta"].update(role={"name": ["assistant"]})


def part_number(value):
    value.update(more={"number": 2})


def part_list(value):
    value.update(more={"list": [1]})


def top_list(value):
    value.update(more=[1])


ODD = (
    lambda value: value["choices"][0].update(index=1),
    lambda value: value["choices"][0]["delta"].update(role="assistant"),
    lambda value: value["choices"][0]["delta"].update(reasoning="so"),
    lambda value: value["choices"][0].update(finish_reason="stop"),
    lambda value: value.update(model="other"),
    lambda value: value.update(choices=[]),
    lambda value: value["choices"][0]["delta"].update(
        tool_calls=[{"index": 0, "function": {"arguments": "x"}}]
    ),
    lambda value: value["choices"][0].update(logprobs={"content": [1]}),
    role_list,
    role_object,
    part_number,
    part_list,
    top_list,
    plain,
)


def repeats(*changes):
    events = [("a", change) for change in changes]
    return example(events=events, usage=False, spaced=False, max_bytes=10_000)


@repeats(role_list, role_list)
@repeats(role_object, role_object)
@repeats(part_number, part_list, part_list)
@given(
    events=st.lists(st.tuples(TEXTS, st.sampled_from(ODD)), max_size=12),
    usage=st.booleans(),
    spaced=st.booleans(),
    max_bytes=st.sampled_from([400, 10_000]),
)
def test_events_that_are_alike_give_what_parsing_each_gives(events, usage, spaced, max_bytes):
    """Most events of a stream differ in one text: these are not parsed."""
    chunks = []
    for text, change in events:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        value = {"id": "x", "created": 1, "model": "m", "choices": [choice]}
        change(value)
        if usage:
            value["usage"] = None
        data = json.dumps(value) if spaced else orjson.dumps(value).decode()
        chunks.append(f"data: {data}\n\n".encode())
    chunks.append(b"data: [DONE]\n\n")

    def run(most):
        with mock.patch.object(assemble_choices, "MOST_PATTERNS", most):
            answer = SPECS[Endpoint.CHAT].streaming.follow(assemble=True, max_bytes=max_bytes)
            pieces = [answer.feed(chunk) for chunk in chunks]
            result = answer.result()
        return pieces, result, (answer.usage, answer.ended, answer.done, answer.max_bytes)

    assert run(16) == run(0)
