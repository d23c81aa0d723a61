import orjson
import pytest

from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.streaming.decode import DONE, Decoder
from policies.decision import Endpoint

CHAT, COMPLETIONS = Endpoint.CHAT, Endpoint.COMPLETIONS
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


def result_of(*choices, **top):
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "choices": list(choices),
        "usage": USAGE,
        **top,
    }


def said(content, index=0, **message):
    return {
        "index": index,
        "message": {"role": "assistant", "content": content, "refusal": None, **message},
        "logprobs": None,
        "finish_reason": "stop",
    }


def written(text, index=0, **fields):
    return {"index": index, "text": text, "logprobs": None, "finish_reason": "stop", **fields}


def chunks_of(result, endpoint=CHAT, *, include_usage=False):
    stream = SPECS[endpoint].streaming.render(result, include_usage=include_usage)
    *events, last = Decoder().feed(stream)
    assert last.data == DONE
    assert all(event.raw == b"data: " + event.data + b"\n\n" for event in events)
    return [orjson.loads(event.data) for event in events]


def test_a_chat_is_role_content_finish():
    chunks = chunks_of(result_of(said("Hi ✓"), system_fingerprint="fp", service_tier="default"))
    assert [chunk["choices"] for chunk in chunks] == [
        [
            {
                "index": 0,
                "delta": {"role": "assistant", "content": "", "refusal": None},
                "logprobs": None,
                "finish_reason": None,
            }
        ],
        [{"index": 0, "delta": {"content": "Hi ✓"}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}],
    ]
    for chunk in chunks:
        del chunk["choices"]
        assert chunk == {
            "id": "c1",
            "object": "chat.completion.chunk",
            "created": 7,
            "model": "m",
            "system_fingerprint": "fp",
            "service_tier": "default",
        }


def test_a_completion_is_text_then_finish():
    chunks = chunks_of(
        result_of(written("Hi", logprobs={"tokens": ["Hi"]}), object="text_completion"), COMPLETIONS
    )
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "text": "Hi", "logprobs": {"tokens": ["Hi"]}, "finish_reason": None}],
        [{"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}],
    ]


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_usage_comes_last_and_only_if_asked_for(endpoint):
    result = result_of(said("a") if endpoint is CHAT else written("a"))
    assert not any("usage" in chunk for chunk in chunks_of(result, endpoint))
    *chunks, last = chunks_of(result, endpoint, include_usage=True)
    assert all(chunk["usage"] is None for chunk in chunks)
    assert (last["choices"], last["usage"]) == ([], USAGE)
    assert last["id"] == "c1"


def test_a_result_without_usage_has_no_usage_chunk():
    chunks = chunks_of(result_of(said("a"), usage=None), include_usage=True)
    assert all(chunk["choices"] for chunk in chunks)


def test_what_a_client_may_need_beside_the_text_is_there():
    one = said("a", reasoning_content="because", annotations=[{"type": "url_citation"}])
    one |= {"logprobs": {"content": [{"token": "a"}]}, "stop_reason": 7}
    _, delta, finish = (chunk["choices"][0] for chunk in chunks_of(result_of(one)))
    assert delta["delta"]["reasoning_content"] == "because"
    assert delta["delta"]["annotations"] == [{"type": "url_citation"}]
    assert delta["logprobs"] == {"content": [{"token": "a"}]}
    assert (finish["finish_reason"], finish["stop_reason"]) == ("stop", 7)


def test_a_refusal_is_streamed_as_one():
    opening, delta, _ = (
        chunk["choices"][0]["delta"] for chunk in chunks_of(result_of(said(None, refusal="No.")))
    )
    assert opening == {"role": "assistant", "content": None}
    assert delta == {"refusal": "No."}
