"""One entry, every wire: a response rendered as events, cut anywhere and followed, is itself."""

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st
from scripted_responses import call, message, reasoning, response, text

from gateway.protocol.endpoints.responses import StreamedResponse, render_response
from gateway.protocol.streaming.decode import Decoder

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["\n\ndata: [DONE]\n\n", "é", "😀", "\u2028", '"', "\\", "a\rb"]
)
TOKENS = st.lists(
    st.fixed_dictionaries({"token": TEXT, "logprob": st.floats(-9, 0), "bytes": st.none()}),
    max_size=2,
)
NOTES = st.lists(st.just({"type": "url_citation", "url": "u", "title": "t"}), max_size=2)
PARTS = st.builds(text, TEXT, logprobs=TOKENS, annotations=NOTES) | st.builds(
    lambda said: {"type": "refusal", "refusal": said}, TEXT
)
ITEMS = st.one_of(
    st.lists(PARTS, max_size=3).map(lambda parts: message(*parts)),
    st.builds(call, TEXT),
    st.builds(lambda said: reasoning(*said), st.lists(TEXT, max_size=3)),
    st.builds(lambda said: reasoning(content=[{"type": "reasoning_text", "text": said}]), TEXT),
    st.builds(
        lambda said: {"type": "custom_tool_call", "call_id": "c", "name": "n", "input": said}, TEXT
    ),
    st.just({"type": "of_tomorrow", "id": "x", "anything": [1]}),
)


def _numbered(items: list[dict[str, Any]]) -> dict[str, Any]:
    return response(*({**item, "id": f"i_{place}"} for place, item in enumerate(items)))


RESPONSES = st.lists(ITEMS, max_size=4).map(_numbered)


@given(RESPONSES, st.integers(1, 300))
def test_a_response_survives_the_wire(whole, cut):
    stream = render_response(whole)
    followed, decoder = StreamedResponse(assemble=True, max_bytes=2**30), Decoder()
    passed = [
        followed.pass_on(event)
        for start in range(0, len(stream), cut)
        for event in decoder.feed(stream[start : start + cut])
    ]
    assert decoder.end() is None
    assert b"".join(full for full, _ in passed) == stream
    assert b"".join(bare for _, bare in passed) == stream
    assert followed.done
    assert followed.result() == whole
    assert followed.usage == whole["usage"]


@given(RESPONSES)
def test_every_event_is_numbered_and_speaks_of_what_was_announced(whole):
    events = [orjson.loads(event.data) for event in Decoder().feed(render_response(whole))]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    announced: set[Any] = set()
    texts: dict[Any, str] = {}
    for event in events:
        where = tuple(
            event.get(name) for name in ("output_index", "content_index", "summary_index")
        )
        match event["type"]:
            case "response.output_item.added":
                announced.add(where)
            case "response.content_part.added" | "response.reasoning_summary_part.added":
                assert (where[0], None, None) in announced
                announced.add(where)
            case "response.output_text.delta" | "response.reasoning_summary_text.delta":
                assert where in announced
                texts[where] = texts.get(where, "") + event["delta"]
            case "response.output_text.done" | "response.reasoning_summary_text.done":
                assert texts[where] == event["text"]
            case str(kind):
                assert "output_index" not in event or (where[0], None, None) in announced, kind
