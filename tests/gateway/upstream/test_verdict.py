"""What a reply means: providers' own words for refused keys, refused content, unknown models."""

from typing import Any

import orjson
import pytest

from gateway.protocol.http.cache_status import Reason
from gateway.upstream.wire.verdict import error_of, fault_in, lacks_model, parsed_or_none

PAGE = b"<html>Log in</html>"
COMPLETION = {"id": "c", "choices": [{"index": 0, "message": {"content": "Hi"}}]}

REFUSED: dict[str, tuple[int, Any]] = {
    "OpenAI, wrong key": (401, {"error": {"code": "invalid_api_key", "message": "Incorrect API"}}),
    "OpenAI, no quota": (
        429,
        {"error": {"type": "insufficient_quota", "code": "insufficient_quota", "message": "quota"}},
    ),
    "OpenAI, billing": (429, {"error": {"code": "billing_not_active", "message": "Not active"}}),
    "OpenAI, country": (403, {"error": {"code": "unsupported_country_region_territory"}}),
    "Anthropic, key": (401, {"type": "error", "error": {"type": "authentication_error"}}),
    "Anthropic, credit": (
        400,
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "Your credit balance is too low to access the Anthropic API.",
            },
        },
    ),
    "Anthropic, permission": (403, {"type": "error", "error": {"type": "permission_error"}}),
    "Gemini, expired": (
        400,
        [{"error": {"code": 400, "message": "API key expired. Please renew the API key."}}],
    ),
    "Gemini, not valid": (
        400,
        {
            "error": {
                "code": 400,
                "status": "INVALID_ARGUMENT",
                "message": "Bad.",
                "details": [{"reason": "API_KEY_INVALID"}],
            }
        },
    ),
    "Gemini, denied": (403, [{"error": {"code": 403, "status": "PERMISSION_DENIED"}}]),
    "DeepSeek": (402, {"error": {"message": "Insufficient Balance", "type": "unknown_error"}}),
    "OpenRouter, credits": (402, {"error": {"message": "Insufficient credits", "code": 402}}),
    "OpenRouter, 200": (200, {"error": {"message": "User not found.", "code": 401}}),
    "OpenRouter, 200, credit": (200, {"error": {"code": 402}, "user_id": "u"}),
    "OpenRouter, key limit": (403, {"error": {"message": "Key limit exceeded", "code": 403}}),
    "200 with words": (200, {"error": {"message": "Invalid API key provided"}}),
    "200 with a text": (200, {"error": "invalid api key"}),
    "200 with empty choices": (200, {"choices": [], "error": {"code": "invalid_api_key"}}),
    "Mistral": (401, {"message": "Unauthorized", "request_id": "r"}),
    "Cohere": (401, {"message": "invalid api token"}),
    "xAI": (
        400,
        {"code": "Client specified an invalid argument", "error": "Incorrect API key pro"},
    ),
    "Alibaba": (400, {"error": {"code": "Arrearage", "message": "Access denied, overdue"}}),
    "AWS": (403, {"message": "Forbidden"}),
    "FastAPI": (401, {"detail": "Not authenticated"}),
    "no JSON": (401, "nope"),
    "nothing": (403, None),
}


def body_of(value: Any) -> bytes:
    return b"" if value is None else orjson.dumps(value)


def judged(status: int, value: Any, **facts: Any) -> Any:
    given = {"whole": True, "call": True, "own": True, **facts}
    return fault_in(status, "application/json", body_of(value), **given)


@pytest.mark.parametrize(("status", "value"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_of_the_gateway_is_no_answer_if_no_client_is_named(status: int, value: Any):
    fault = judged(status, value)
    assert fault is not None
    assert (fault.reason, fault.of_model) == (Reason.UPSTREAM_REFUSED, False)
    for word in ("key", "credit", "quota", "401", "account"):
        assert word not in fault.message
    assert judged(status, value, own=False) is None
    # What passes through is judged alike.
    passed = judged(status, value, call=False)
    assert passed is not None
    assert passed.reason is Reason.UPSTREAM_REFUSED


ANSWERS: dict[str, tuple[int, Any]] = {
    "an answer": (200, COMPLETION),
    "an answer beside an error": (200, {**COMPLETION, "error": {"code": 401}}),
    "no error": (200, {**COMPLETION, "error": None}),
    "vectors": (200, {"data": [{"embedding": [0.1]}]}),
    "a count": (200, {"input_tokens": 4}),
    "a bad request": (400, {"error": {"message": "max_tokens is too large", "code": None}}),
    "a bad token": (400, {"error": {"message": "Invalid token id 9 in logit_bias"}}),
    "a missing key": (400, {"error": {"message": "The key 'messages' is missing."}}),
    "a tool's token": (
        400,
        {"error": {"message": "The authorization token of server x is missing."}},
    ),
    "an image's address": (400, {"error": {"message": "https://x/?api_key=a is invalid"}}),
    "a long prompt": (400, {"error": {"code": "context_length_exceeded"}}),
    "OpenRouter, moderation": (
        403,
        {"error": {"code": 403, "message": "Bad.", "metadata": {"reasons": ["violence"]}}},
    ),
    "moderation in words": (403, {"error": {"message": "Your input was flagged by moderation."}}),
    "Azure, filter": (
        400,
        {
            "error": {
                "code": "content_filter",
                "message": "The response was filtered.",
                "innererror": {"code": "ResponsibleAIPolicyViolation"},
            }
        },
    ),
    "Azure, filter as 403": (403, {"error": {"code": "content_filter"}}),
    "Alibaba, inspection": (400, {"error": {"code": "data_inspection_failed"}}),
    "a rate limit that speaks of billing": (
        429,
        {"error": {"code": "rate_limit_exceeded", "message": "Visit account/billing to add"}},
    ),
    "Gemini, rate": (
        429,
        [{"error": {"status": "RESOURCE_EXHAUSTED", "message": "check your plan and billing"}}],
    ),
    "vLLM, the request in quotes": (
        400,
        {"message": "[{'msg': 'Bad', 'input': {'content': 'why is it an invalid API key?'}}]"},
    ),
    "a quoted escape": (400, {"message": 'Bad "x\\" invalid API key \\"" here'}),
    "a quotation without an end": (400, {"message": "Bad: 'It isn't an invalid API key"}),
    "a model that is in quotes": (400, {"message": "Bad: 'what if the model does not exist'"}),
    "moderation of a model": (403, {"error": {"message": "The model's safety system blocked it"}}),
    "a job that failed": (
        200,
        {"id": "j", "object": "fine_tuning.job", "error": {"code": "insufficient_quota"}},
    ),
    "a response that failed": (
        200,
        {"id": "r", "object": "response", "error": {"code": "server_error", "message": "no key"}},
    ),
    "too large": (413, {"error": {"message": "too large"}}),
    "an unknown path": (404, {"detail": "Not Found"}),
    "a model that is not listed": (404, {"error": {"code": "model_not_found"}}),
}


@pytest.mark.parametrize(("status", "value"), ANSWERS.values(), ids=ANSWERS)
def test_what_is_about_the_request_is_an_answer(status: int, value: Any):
    assert judged(status, value) is None
    assert judged(status, value, call=False) is None


@pytest.mark.parametrize("body", [b"", b" Hello, this is a transcription.\n", b"Gone"])
def test_a_plain_text_may_pass_through_as_html(body: bytes):
    assert fault_in(200, "text/html", body, whole=True, call=False, own=True) is None


LACKING: dict[str, tuple[int, Any]] = {
    "OpenAI": (404, {"error": {"code": "model_not_found", "message": "It does not exist"}}),
    "OpenAI, 403": (403, {"error": {"code": "model_not_found", "message": "no access"}}),
    "vLLM": (
        404,
        {"object": "error", "type": "NotFoundError", "message": "The model `m` does not"},
    ),
    "vLLM, newer": (404, {"error": {"type": "NotFoundError", "param": "model", "message": "No"}}),
    "Ollama": (404, {"error": {"message": 'model "m" not found, try pulling it first'}}),
    "Anthropic": (
        404,
        {"type": "error", "error": {"type": "not_found_error", "message": "model: m"}},
    ),
    "Gemini": (404, [{"error": {"code": 404, "message": "models/m is not found for API version"}}]),
    "Azure": (404, {"error": {"code": "DeploymentNotFound", "message": "No deployment."}}),
    "Mistral": (400, {"object": "error", "type": "invalid_model", "message": "Invalid model: m"}),
    "DeepSeek": (400, {"error": {"message": "Model Not Exist", "type": "invalid_request_error"}}),
    "OpenRouter": (400, {"error": {"message": "m is not a valid model ID", "code": 400}}),
}


@pytest.mark.parametrize(("status", "value"), LACKING.values(), ids=LACKING)
def test_a_model_that_is_listed_and_refused_is_no_answer(status: int, value: Any):
    assert lacks_model(status, error_of(parsed_or_none(body_of(value))))
    fault = judged(status, value, lists_model=True)
    assert (fault.reason, fault.of_model) == (Reason.UPSTREAM_REFUSED, True)
    assert judged(status, value, lists_model=True, own=False) is None
    is_permission = status == 403
    assert (judged(status, value) is not None) is is_permission


@pytest.mark.parametrize(
    ("status", "value"),
    [
        (400, {"error": {"message": "This model does not support images."}}),
        (400, {"error": {"message": "response_format is not supported with this model"}}),
        (404, {"detail": "Not Found"}),
        (404, None),
        (
            404,
            {
                "error": {
                    "message": "This is not a chat model and thus not supported in the "
                    "v1/chat/completions endpoint. Did you mean to use v1/completions?",
                    "param": "model",
                    "code": None,
                }
            },
        ),
        (
            404,
            {
                "error": {
                    "message": "This model is only supported in v1/responses",
                    "param": "model",
                }
            },
        ),
        (500, {"error": {"code": "model_not_found"}}),
    ],
)
def test_what_a_model_cannot_do_is_no_lack_of_the_model(status: int, value: Any):
    assert not lacks_model(status, error_of(parsed_or_none(body_of(value))))


NO_ANSWERS = {
    "a page": b"<!DOCTYPE html><html>Log in</html>",
    "a page behind a mark": b"\xef\xbb\xbf\n <html></html>",
    "nothing": b"",
    "blanks": b" \n",
    "a word": b"OK",
    "a JSON word": b'"OK"',
    "null": b"null",
    "half an object": b'{"id": "c", "choices": [',
    "XML": b"<?xml version='1.0'?><a/>",
}


@pytest.mark.parametrize("status", [200, 201, 204])
@pytest.mark.parametrize("kind", ["application/json", "text/html", "text/plain"])
@pytest.mark.parametrize("body", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_what_is_no_json_is_no_answer_to_a_call(status: int, kind: str, body: bytes):
    for own in (False, True):
        fault = fault_in(status, kind, body, whole=True, call=True, own=own)
        assert fault is not None
        assert fault.reason is Reason.UPSTREAM_BROKE


@pytest.mark.parametrize(
    "body",
    [
        orjson.dumps(COMPLETION),
        b'{"choices": [{"logprob": NaN}]}',
        b'{"choices": [{"text": "\\ud800"}]}',
        b"[" * 200_000 + b"]" * 200_000,
        b'data: {"choices": []}\n\ndata: [DONE]\n\n',
        b": ping\n\n",
        b"event: message_start\ndata: {}\n\n",
    ],
    ids=range(7),
)
@pytest.mark.parametrize("kind", ["application/json", "text/html", "text/plain"])
def test_json_and_streams_are_answers_whatever_their_type_says(kind: str, body: bytes):
    assert fault_in(200, kind, body, whole=True, call=True, own=False) is None


def test_the_beginning_of_a_long_answer_is_enough():
    long = b'{"data": [' + b"1," * 50_000
    assert fault_in(200, "application/json", long, whole=False, call=True, own=True) is None
    page = b"<html>" + b"x" * 100_000
    assert fault_in(200, "text/html", page, whole=False, call=False, own=False) is not None


def test_what_passes_through_may_be_empty_or_of_any_kind_but_a_page():
    for kind, body in (("text/html", b""), ("audio/mpeg", b"\x00"), ("text/plain", b"<a>")):
        assert fault_in(200, kind, body, whole=True, call=False, own=True) is None
    assert fault_in(200, "text/html", PAGE, whole=True, call=False, own=True) is not None


def test_no_content_of_the_reply_is_in_the_log():
    value = {"error": {"code": "invalid_api_key", "message": "Incorrect API key: sk-secret"}}
    fault = judged(401, value)
    assert "sk-secret" not in fault.text
    assert fault.text.startswith("it refuses the key that the gateway has for it (status 401, ")
    odd = judged(401, {"error": {"code": "a\nb", "type": "c" * 99}})
    assert odd.text.startswith("it refuses the key that the gateway has for it (status 401);")
