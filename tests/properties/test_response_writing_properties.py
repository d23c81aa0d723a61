"""Events of a response: whatever the text and its pieces, they add up to what the gateway keeps."""

from types import SimpleNamespace

import orjson
from hypothesis import given
from hypothesis import strategies as st

from backend.scheduler.request import FinishReason, TextDelta
from backend.server.replies import FinishedChoice, Usage
from backend.server.responses import ResponseReply
from backend.server.tool_parsers import FORMATS
from backend.server.tool_parsers.reasoning import FORMATS as REASONING
from backend.server.tool_parsers.reasoning import PromptEnd
from gateway.protocol.endpoints.responses import StreamedResponse, render_response
from gateway.protocol.streaming.decode import Decoder, Event

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call>'
BARE = '{"name": "f", "parameters": {"a": 1}}'
PIECES = st.lists(
    st.sampled_from(
        [
            "<think>",
            "</think>",
            CALL,
            BARE,
            CALL[:15],
            "</tool_call>",
            "\n",
            " ",
            ";",
            "word",
            "{",
            "ü",
        ]
    )
    | st.text(max_size=5),
    max_size=6,
)
DELTA = ".delta"


def counting():
    count = 0

    def new_id(prefix):
        nonlocal count
        count += 1
        return f"{prefix}{count}"

    return new_id


def parser(form):
    if form == "reasoning":
        return REASONING["qwen3"].parser(PromptEnd.PLAIN, parser("qwen"))
    return form and FORMATS[form](["f"], max_calls=None, eager=True)


def events_of(form, pieces, reason):
    repeated = {"id": "resp_1", "object": "response"}
    read = SimpleNamespace(parser=lambda eager: parser(form))
    reply = ResponseReply(repeated, read, None, counting())
    events = reply.begin()
    for piece in pieces:
        events += reply.push(TextDelta(0, piece, 1), None, first=False)
    return events + reply.finish([FinishedChoice("".join(pieces), reason)], Usage(1, 2, 0))


def merged(events):
    """The types of events, neighbouring deltas as one, and none that bring nothing."""
    kinds = [event["type"] for event in events if event.get("delta", " ")]
    return [
        kind
        for at, kind in enumerate(kinds)
        if not (at and kind.endswith(DELTA) and kinds[at - 1] == kind)
    ]


@given(
    st.sampled_from([None, "reasoning", *FORMATS]),
    PIECES,
    st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
)
def test_events_add_up_and_depend_on_the_text_alone(form, pieces, reason):
    events = events_of(form, pieces, reason)
    last = events[-1]["response"]
    assert events_of(form, ["".join(pieces)], reason)[-1]["response"] == last
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    followed = StreamedResponse(assemble=True, max_bytes=10**6)
    for event in events:
        data = orjson.dumps(event)
        followed.pass_on(Event(data, data))
    assert followed.ended
    assert followed.result() == last
    rendered = [
        orjson.loads(event.data) for event in Decoder().feed(render_response(last)) if event.data
    ]
    assert merged(events) == merged(rendered)
    whole = ("added", "done", "created", "in_progress", "completed", "incomplete")
    assert [event for event in map(unnumbered, events) if event["type"].endswith(whole)] == [
        event for event in map(unnumbered, rendered) if event["type"].endswith(whole)
    ]


def unnumbered(event):
    return {key: value for key, value in event.items() if key != "sequence_number"}
