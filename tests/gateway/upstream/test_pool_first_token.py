"""Whether a reply has begun to answer, however its bytes are cut."""

import pytest

from gateway.protocol.http.cache_status import Reason
from gateway.upstream.tries import Failure, Kind
from gateway.upstream.wire.first_token import HELD_SECONDS, FirstToken, FirstTokenDetector

FAILS = Failure(Kind.CUT, Reason.UPSTREAM_STATUS)
LIMITED = Failure(Kind.LIMITED, Reason.UPSTREAM_LIMITED, personal=True)
PING = b": ping\n\n"

STREAMS = {
    b'data: {"error": {"message": "engine dead", "code": 500}}\n\n': FAILS,
    b'event: error\ndata: {"error": {"type": "server_error"}}\n\n': FAILS,
    b'data:{"error":"boom"}\n\ndata: [DONE]\n\n': FAILS,
    b'event: error\r\ndata: {"type": "error", "code": "server_error"}\r\n\r\n': FAILS,
    b': ping\n\ndata: {"error": {"code": 500}}\n\n': FAILS,
    b'data: {"error": {"code": 429, "message": "slow down"}}\n\n': LIMITED,
    b'data: {"error": {"code": "insufficient_quota"}}\n\n': LIMITED,
    b'event: error\ndata: {"type": "error", "code": "rate_limit_exceeded"}\n\n': LIMITED,
    b'data: {"error": {"code": 400, "message": "too long"}}\n\n': FirstToken.REFUSED,
    b'data: {"error": {"type": "invalid_request_error", "code": null}}\n\n': FirstToken.REFUSED,
    b'data: {"error": {"type": "BadRequestError"}}\n\n': FirstToken.REFUSED,
    b'data: {"error": 5}\n\n': FirstToken.SEEN,
    b'data: {"error": null, "choices": []}\n\n': FirstToken.PENDING,
    b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n': FirstToken.PENDING,
    b'data: {"choices": [{"delta": {"content": "\\"error\\""}}]}\n\n': FirstToken.SEEN,
    b'data: {"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}\n\n': FirstToken.SEEN,
    b'data: {"choices": [{"delta": {"reasoning_content": "Hm"}}]}\n\n': FirstToken.SEEN,
    b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n': FirstToken.SEEN,
    b'data: {"choices": [{"text": "", "finish_reason": null}]}\n\n': FirstToken.PENDING,
    b'data: {"choices": [{"text": "a", "finish_reason": null}]}\n\n': FirstToken.SEEN,
    b'event: response.created\ndata: {"type": "response.created"}\n\n': FirstToken.SEEN,
    b"data: [DONE]\n\n": FirstToken.NONE,
    b"data: 5\n\n": FirstToken.SEEN,
    b"data: \xff\x00\n\n": FirstToken.SEEN,
    b"\n\n: OPENROUTER PROCESSING\n\nevent: ping\n\nretry: 5\n\n": FirstToken.PENDING,
}


@pytest.mark.parametrize(("stream", "begun"), STREAMS.items(), ids=map(str, range(len(STREAMS))))
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_what_a_stream_has_come_to(stream: bytes, begun: FirstToken | Failure, size: int):
    beginning = FirstTokenDetector(events=True)
    found: FirstToken | Failure = FirstToken.PENDING
    for start in range(0, len(stream), size):
        if found is FirstToken.PENDING:
            found = beginning.add(stream[start : start + size], 0.0)
    assert found == begun
    assert stream.startswith(b"".join(beginning.held))


@pytest.mark.parametrize(
    ("stream", "begun"),
    [
        (b"", FirstToken.NONE),
        (PING, FirstToken.NONE),
        (b": pi", FirstToken.NONE),
        (b'data: {"choices": [', FirstToken.NONE),
        (b'data: {"choices": [{"text": "a"}]}', FirstToken.SEEN),
        (b'data: {"error": "boom"}\n', FAILS),
    ],
)
def test_what_a_stream_was_that_has_ended(stream: bytes, begun: FirstToken | Failure):
    beginning = FirstTokenDetector(events=True)
    if stream:
        assert beginning.add(stream, 0.0) is FirstToken.PENDING
    assert beginning.end() == begun


def test_a_plain_answer_begins_with_what_is_no_white_space():
    beginning = FirstTokenDetector(events=False)
    assert beginning.add(b" \n", 0.0) is FirstToken.PENDING
    assert beginning.add(b" {", 0.0) is FirstToken.SEEN
    assert FirstTokenDetector(events=False).end() is FirstToken.NONE


def test_an_end_behind_comments_is_no_answer_however_late():
    beginning = FirstTokenDetector(events=True)
    assert beginning.add(PING, 0.0) is FirstToken.PENDING
    assert beginning.add(b"data: [DONE]\n\n", 2 * HELD_SECONDS) is FirstToken.NONE
