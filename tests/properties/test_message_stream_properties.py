"""Streams with calls whose pieces come in any order, as streams of a message."""

import json
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.anthropic.reply import Prompt, to_message
from gateway.protocol.anthropic.stream import MessageEvents
from gateway.protocol.endpoints.messages import StreamedMessage, render_message

accumulation = pytest.importorskip(
    "anthropic.lib.streaming._messages", reason="the client of Anthropic's API is not installed"
)

TOOLS = frozenset({"read", "read_file", "write"})
PROMPT = Prompt(lambda: 5, "m", TOOLS, 3)
INPUTS = st.dictionaries(
    st.text('ab}{\\" é', max_size=3), st.integers(0, 9) | st.text('x}{"\\é', max_size=6), max_size=3
)


def cut(draw: st.DrawFn, text: Any, most: int) -> list[Any]:
    """Cut a text, or bytes, at odd places."""
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=most)))
    ends = [0, *places, len(text)]
    return [text[a:b] for a, b in pairwise(ends)]


@st.composite
def pieces_of_calls(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    """Draw whole calls, and the pieces of each in their order."""
    calls, pieces = [], []
    for index in range(draw(st.integers(1, 4))):
        name, given_id = (
            draw(st.sampled_from(sorted(TOOLS))),
            draw(st.sampled_from(["id", "", None])),
        )
        text = json.dumps(draw(INPUTS), indent=draw(st.sampled_from([None, 1])))
        written = cut(draw, text, 5)
        named = [name] if draw(st.booleans()) else [*filter(None, cut(draw, name, 2))]
        own: list[dict[str, Any]] = [{"function": {"name": each}} for each in named]
        own += [{"function": {"arguments": each}} for each in written]
        if draw(st.booleans()):  # name and arguments begin in one piece
            own[len(named) - 1 : len(named) + 1] = [
                {"function": {"name": named[-1], "arguments": written[0]}}
            ]
        if draw(st.booleans()):
            for each in own[len(named) :]:
                each["function"]["name"] = name
        whole: dict[str, Any] = {"function": {"name": name, "arguments": text}}
        if given_id is not None:
            whole["id"] = given_id and f"{given_id}-{index}"
            own[draw(st.integers(0, len(named) - 1))]["id"] = whole["id"]
        calls.append(whole)
        pieces.append([{"index": index, **each} for each in own])
    return calls, pieces


@st.composite
def streams(draw: st.DrawFn) -> tuple[dict[str, Any], list[bytes]]:
    """Draw a plain reply, and reads of the stream that says the same."""
    calls, pieces = draw(pieces_of_calls())
    said: dict[str, Any] = {"role": "assistant", "tool_calls": calls}
    chunks: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for name in ("reasoning_content", "content"):
        if text := draw(st.text("ab é\n", max_size=8)):
            said[name] = text
            chunks += ({name: each} for each in cut(draw, text, 3))
    left, begun = [list(each) for each in pieces], 0
    while any(left):
        entries = []
        for _ in range(draw(st.integers(1, 3))):
            may = [at for at in range(begun) if left[at]]
            if begun < len(left):
                may.append(begun)
            if not may:
                break
            at = draw(st.sampled_from(may))
            begun = max(begun, at + 1)
            entries.append(left[at].pop(0))
        chunks.append({"tool_calls": entries})
    usage = {"prompt_tokens": 9, "completion_tokens": 4}
    top = {"id": "chatcmpl-1", "model": "m"}
    plain = {**top, "usage": usage, "choices": [{"message": said, "finish_reason": "tool_calls"}]}
    events = [
        b"data: " + orjson.dumps({**top, "choices": [{"index": 0, "delta": each}]}) + b"\n\n"
        for each in chunks
    ]
    last = {"index": 0, "delta": {}, "finish_reason": "tool_calls"}
    events.append(b"data: " + orjson.dumps({**top, "choices": [last], "usage": usage}) + b"\n\n")
    events.insert(draw(st.integers(0, len(events))), b"data: null\n\n")
    return plain, cut(draw, b"".join([*events, b"data: [DONE]\n\n"]), 8)


def accumulated(events: bytes) -> dict[str, Any]:
    """Return the message that Anthropic's client puts together."""
    snapshot, bufs = None, dict[int, bytes]()
    for part in events.split(b"\n\n"):
        if data := part.partition(b"\ndata: ")[2]:
            value = json.loads(data)
            if value["type"] != "message_stop":
                snapshot = accumulation.accumulate_event(
                    event=value, current_snapshot=snapshot, json_bufs=bufs
                )
    return snapshot.model_dump(exclude_unset=True)


@given(streams())
def test_every_stream_is_a_valid_message_and_equals_the_plain_reply(drawn):
    plain, reads = drawn
    expected = to_message(plain, PROMPT)
    translation = MessageEvents(PROMPT)
    events = b"".join([*map(translation.feed, reads), translation.end()])
    answer = StreamedMessage(assemble=True, max_bytes=10**6)
    answer.feed(events)
    assert answer.result() == expected, "one open block at a time, each begun and ended once"
    assert render_message(expected)
    for wire in (events, render_message(expected)):
        blocks = [
            {name: value for name, value in block.items() if name in expected["content"][at]}
            for at, block in enumerate(accumulated(wire)["content"])
        ]
        assert blocks == expected["content"]
