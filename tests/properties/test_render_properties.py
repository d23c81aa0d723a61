"""One entry, every wire: a rendered stream, cut anywhere and assembled, is the result again."""

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.streaming.decode import Decoder
from policies.decision import Endpoint

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    ["\n\ndata: [DONE]\n\n", "é", "😀", "\u2028", '"', "\\", "a\rb"]
)
NUMBERS = st.integers(1, 2**53)
WORDS = TEXT.filter(bool)
TOKENS = st.lists(
    st.fixed_dictionaries({"token": TEXT, "logprob": st.floats(-9, 0), "bytes": st.none()}),
    max_size=3,
)
USAGE = st.none() | st.fixed_dictionaries(
    {"prompt_tokens": st.integers(0, 9), "prompt_tokens_details": st.just({"cached_tokens": 3})}
)
CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "id": WORDS,
            "type": st.just("function"),
            "function": st.fixed_dictionaries({"name": WORDS, "arguments": TEXT}),
        }
    ),
    min_size=1,
    max_size=3,
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": st.none() | TEXT, "refusal": st.none() | WORDS},
    optional={
        "reasoning_content": st.none() | WORDS,
        "reasoning": WORDS,
        "tool_calls": CALLS,
        "function_call": st.fixed_dictionaries({"name": WORDS, "arguments": TEXT}),
        "annotations": st.just([]) | st.just([{"type": "url_citation"}]),
        "made_up": NUMBERS | WORDS | st.just({"a": [1]}),
    },
)
CHAT_LOGPROBS = st.none() | st.fixed_dictionaries({"content": TOKENS, "refusal": st.none()})
TEXT_LOGPROBS = st.none() | st.fixed_dictionaries(
    {
        "tokens": st.lists(TEXT, max_size=3),
        "text_offset": st.lists(NUMBERS, max_size=3),
        "top_logprobs": st.none(),
    }
)
ENDING = {"finish_reason": st.sampled_from(["stop", "length", "tool_calls", None])}
EXTRAS = {"stop_reason": st.none() | NUMBERS, "token_ids": st.lists(NUMBERS, max_size=3)}


def _reply(kind: str, choice: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[Any]:
    def numbered(top: dict[str, Any], choices: list[dict[str, Any]], usage: Any) -> dict[str, Any]:
        placed = [{"index": place, **one} for place, one in enumerate(choices)]
        reply = {**top, "object": kind, "choices": placed}
        return reply if usage is None else {**reply, "usage": usage}

    top = st.fixed_dictionaries(
        {"id": WORDS, "created": st.integers(1, 2**31), "model": WORDS},
        optional={
            "system_fingerprint": st.none() | WORDS,
            "service_tier": st.none() | WORDS,
            "provider": WORDS,
            "citations": st.lists(TEXT, max_size=3),
        },
    )
    return st.builds(numbered, top, st.lists(choice, min_size=1, max_size=3), USAGE)


CHATS = _reply(
    "chat.completion",
    st.fixed_dictionaries(
        {"message": MESSAGES, "logprobs": CHAT_LOGPROBS, **ENDING}, optional=EXTRAS
    ),
)
COMPLETIONS = _reply(
    "text_completion",
    st.fixed_dictionaries({"text": TEXT, "logprobs": TEXT_LOGPROBS, **ENDING}, optional=EXTRAS),
)


def streamed_back(endpoint: Endpoint, stream: bytes, cut: int) -> tuple[Any, bytes, bool]:
    answer = SPECS[endpoint].streaming.follow(assemble=True, max_bytes=2**30)
    decoder = Decoder()
    passed = [
        answer.pass_on(event)[0]
        for start in range(0, len(stream), cut)
        for event in decoder.feed(stream[start : start + cut])
    ]
    assert decoder.end() is None
    return answer.result(), b"".join(passed), answer.ended


@given(CHATS, st.integers(1, 200))
def test_a_chat_survives_the_wire(result, cut):
    stream = SPECS[Endpoint.CHAT].streaming.render(result, include_usage=True)
    back, passed, ended = streamed_back(Endpoint.CHAT, stream, cut)
    assert back == result
    assert passed == stream
    assert ended


@given(COMPLETIONS, st.integers(1, 200))
def test_a_completion_survives_the_wire(result, cut):
    stream = SPECS[Endpoint.COMPLETIONS].streaming.render(result, include_usage=True)
    back, passed, ended = streamed_back(Endpoint.COMPLETIONS, stream, cut)
    assert back == result
    assert passed == stream
    assert ended


@given(CHATS)
def test_every_chunk_has_one_id_and_time_and_the_role_comes_first(result):
    stream = SPECS[Endpoint.CHAT].streaming.render(result, include_usage=False)
    *events, done = Decoder().feed(stream)
    assert done.data == b"[DONE]"
    chunks = [orjson.loads(event.data) for event in events]
    assert {(c["id"], c["created"], c["model"]) for c in chunks} == {
        (result["id"], result["created"], result["model"])
    }
    opened: set[int] = set()
    for chunk in chunks:
        assert "usage" not in chunk
        [choice] = chunk["choices"]
        assert ("role" in choice["delta"]) == (choice["index"] not in opened)
        opened.add(choice["index"])
