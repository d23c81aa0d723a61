"""Lines of exported logs, whoever wrote them."""

import pytest

from gateway.cli.offline.estimate.log_formats import Format, read_line, recognise
from gateway.protocol.tokens import PromptUsage
from gateway.server.admin.recorded_request import InvalidFieldError
from policies.decision import Endpoint

BODY = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
ANSWER = {
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Yes"}, "finish_reason": "stop"}
    ],
    "created": 1000,
    "usage": {
        "prompt_tokens": 8,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 4},
    },
}
USED = PromptUsage(8, 2, 4)
NOON = 1772452800.0
"""2026-03-02 12:00 UTC."""

LITELLM = {
    "call_type": "acompletion",
    "messages": BODY["messages"],
    "response": ANSWER,
    "model": "openai/m-2026-01-01",
    "model_group": "m",
    "model_parameters": {"temperature": 0.5, "stream": True, "top_p": None, "extra_body": {}},
    "startTime": NOON,
    "endTime": NOON + 2.5,
    "prompt_tokens": 9,
    "completion_tokens": 9,
    "status": "success",
    "end_user": "kim",
    "metadata": {"user_api_key_hash": "abc", "user_api_key_team_id": "team"},
}
HELICONE = {
    "request_id": "r",
    "request_created_at": "2026-03-02T12:00:00.000Z",
    "response_created_at": "2026-03-02T12:00:09Z",
    "request_path": "/v1/chat/completions",
    "request_body": BODY,
    "response_body": ANSWER,
    "response_status": 200,
    "request_user_id": "kim",
    "delay_ms": 1500,
    "prompt_tokens": 1,
}
REFRAIN = {
    "time": NOON,
    "endpoint": "/v1/chat/completions",
    "model": "m",
    "rule": "default",
    "form": "00",
    "decision": {},
    "scopes": {"tenant": "t0", "user": None},
    "outcome": "miss",
    "status": 200,
    "declined": None,
    "prompt_tokens": 8,
    "cached_tokens": 4,
    "tokens": 10,
    "request": BODY,
}


@pytest.mark.parametrize(
    ("line", "log_format"),
    [
        (BODY, Format.OPENAI),
        ({"request": BODY, "response": ANSWER}, Format.OPENAI),
        ({"custom_id": "1", "url": "/v1/chat/completions", "body": BODY}, Format.OPENAI),
        (LITELLM, Format.LITELLM),
        (HELICONE, Format.HELICONE),
        (REFRAIN, Format.REFRAIN),
    ],
)
def test_a_line_is_recognised_by_its_fields(line, log_format):
    assert recognise(line) is log_format
    one = read_line(line)
    assert one == read_line(line, log_format)
    assert one.request.endpoint is Endpoint.CHAT
    assert one.request.model == "m"
    assert one.request.body["messages"] == BODY["messages"]


def test_a_bare_body_has_nothing_beside_it():
    one = read_line({**BODY, "time": "of its own"})
    assert (one.start, one.end, one.answer, one.holder) == (None, None, None, None)
    assert (one.usage.prompt, one.storable, one.seconds) == (None, True, 0.0)


def test_an_answer_beside_its_request_tells_usage_and_time():
    one = read_line({"request": BODY, "response": ANSWER, "tenant": "acme"})
    assert (one.usage, one.start, one.end, one.holder) == (USED, 1000, None, "acme")
    timed = read_line({**BODY, "response": ANSWER, "start": NOON, "end": "2026-03-02T12:00:02Z"})
    assert (timed.start, timed.seconds, timed.answer) == (NOON, 2.0, ANSWER)
    assert "response" not in timed.request.body


def test_a_batch_with_answers_is_read_and_its_output_alone_is_not():
    response = {"status_code": 200, "body": ANSWER}
    one = read_line({"custom_id": "1", "body": BODY, "response": response})
    assert (one.answer, one.storable) == (ANSWER, True)
    failed = {"status_code": 429, "body": {"error": {"message": "slow down"}}}
    assert not read_line({"body": BODY, "response": failed}).storable
    with pytest.raises(InvalidFieldError, match="give its input file"):
        read_line({"custom_id": "1", "response": response})


def test_litellm_tells_the_key_the_user_and_the_parameters():
    one = read_line(LITELLM)
    assert one.request.body == {**BODY, "temperature": 0.5, "stream": True}
    assert (one.holder, one.user, one.usage, one.seconds) == ("abc", "kim", USED, 2.5)
    row = {name: each for name, each in LITELLM.items() if name != "metadata"}
    row |= {"startTime": "2026-03-02T12:00:00", "endTime": None, "team_id": "team"}
    assert (read_line(row).start, read_line(row).end) == (NOON, None)
    assert read_line(row).holder == "team"
    assert not read_line({**LITELLM, "status": "failure"}).storable


def test_other_calls_of_litellm_go_to_their_endpoints():
    embedded = {**LITELLM, "call_type": "aembedding", "messages": "Hi", "response": None}
    one = read_line(embedded)
    assert (one.request.endpoint, one.request.body["input"]) == (Endpoint.EMBEDDINGS, "Hi")
    with pytest.raises(InvalidFieldError, match="call_type"):
        read_line({**LITELLM, "call_type": "image_generation"})


def test_redacted_prompts_are_refused_because_all_would_be_the_same():
    redacted = [{"role": "user", "content": "redacted-by-litellm"}]
    with pytest.raises(InvalidFieldError, match="turn_off_message_logging"):
        read_line({**LITELLM, "messages": redacted})
    text = {"choices": [{"message": {"content": "redacted-by-litellm"}}]}
    assert read_line({**LITELLM, "response": text}).answer is None


def test_helicone_tells_latency_user_and_bodies_as_text():
    one = read_line(HELICONE)
    assert (one.start, one.seconds, one.user, one.usage) == (NOON, 1.5, "kim", USED)
    as_text = {**HELICONE, "response_body": '{"usage": {"prompt_tokens": 7}}', "delay_ms": None}
    assert (read_line(as_text).usage.prompt, read_line(as_text).seconds) == (7, 9.0)
    assert not read_line({**HELICONE, "response_status": 500}).storable
    with pytest.raises(InvalidFieldError, match="--include-body"):
        read_line({**HELICONE, "request_body": None})


def test_a_decision_log_tells_the_tenant_and_what_was_declined():
    one = read_line(REFRAIN)
    assert (one.start, one.holder, one.usage) == (NOON, "t0", USED)
    assert not read_line({**REFRAIN, "declined": "truncated"}).storable
    bare = {name: each for name, each in REFRAIN.items() if name != "request"}
    with pytest.raises(InvalidFieldError, match="decision_log_requests"):
        read_line(bare)


def test_a_decision_log_tells_how_long_a_call_took_and_where_there_was_none():
    one = read_line({**REFRAIN, "seconds": 2.5})
    assert (one.start, one.end, one.seconds, one.called) == (NOON - 2.5, NOON, 2.5, True)
    for line in ({"outcome": "hit", "reason": "exact"}, {"reason": "collapsed"}):
        one = read_line({**REFRAIN, "seconds": 0.25, **line})
        assert (one.start, one.end, one.called) == (NOON - 0.25, None, False)
    old = read_line(REFRAIN)
    assert (old.start, old.end) == (NOON, NOON)


def test_a_decision_log_has_the_tokens_of_a_hit_as_one_sum():
    hit = {**REFRAIN, "outcome": "hit", "prompt_tokens": None, "cached_tokens": None}
    usage = read_line(hit).usage
    assert usage.prompt > 0
    assert (usage.prompt + usage.completion, usage.cached) == (10, None)
    assert read_line({**hit, "tokens": 0}).usage.prompt is None


VECTORS = {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}]}


@pytest.mark.parametrize(
    ("line", "endpoint"),
    [
        ({"model": "m", "input": "Hi"}, Endpoint.RESPONSES),
        ({"model": "m", "input": [{"role": "user", "content": "Hi"}]}, Endpoint.RESPONSES),
        ({"model": "m", "input": []}, Endpoint.RESPONSES),
        ({"model": "m", "input": ["Hi"]}, Endpoint.EMBEDDINGS),
        ({"model": "m", "input": [1, 2]}, Endpoint.EMBEDDINGS),
        ({"model": "m", "input": "Hi", "dimensions": 8}, Endpoint.EMBEDDINGS),
        ({"model": "BGE-Embedder", "input": "Hi"}, Endpoint.EMBEDDINGS),
        ({"request": {"model": "m", "input": "Hi"}, "response": VECTORS}, Endpoint.EMBEDDINGS),
        ({"request_body": {"model": "m", "input": "Hi"}, "response_body": VECTORS}, "embeddings"),
        (
            {"request": {"model": "m", "input": "Hi"}, "endpoint": "/v1/responses"},
            Endpoint.RESPONSES,
        ),
    ],
)
def test_a_body_with_input_is_of_embeddings_or_a_response(line, endpoint):
    assert read_line(line).request.endpoint.endswith(endpoint)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (NOON, NOON),
        (NOON * 1000, NOON),
        (str(int(NOON)), NOON),
        ("2026-03-02T13:00:00+01:00", NOON),
        ("2026-03-02 12:00:00", NOON),
    ],
)
def test_times_come_in_several_forms(value, seconds):
    assert read_line({"request": BODY, "start": value}).start == seconds


@pytest.mark.parametrize("value", ["noon", -1, True, [], 1e20])
def test_what_is_no_time_is_told(value):
    with pytest.raises(InvalidFieldError, match="start: expected seconds since 1970"):
        read_line({"request": BODY, "start": value})


@pytest.mark.parametrize("line", [None, [], {}, {"request": "Hi"}, {"model": "m"}])
def test_what_is_no_request_is_told(line):
    with pytest.raises(InvalidFieldError):
        read_line(line)


def test_the_end_user_is_put_into_the_body_only_where_none_is_named():
    assert read_line(HELICONE).with_user().request.body["user"] == "kim"
    named = {**HELICONE, "request_body": {**BODY, "safety_identifier": "lee"}}
    assert "user" not in read_line(named).with_user().request.body
    assert "user" not in read_line(BODY).with_user().request.body
