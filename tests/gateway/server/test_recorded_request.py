"""A line that holds a request, as logs have it, and what is told of one that holds none."""

import re

import pytest

from gateway.server.admin.recorded_request import InvalidFieldError, read_request

BODY = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        (BODY, ""),
        ({"body": BODY, "url": "/v1/chat/completions", "custom_id": "1"}, ""),
        ({"request": BODY, "endpoint": "/v1/chat/completions", "rule": "faq"}, "faq"),
    ],
    ids=["a body", "a batch file's", "a decision log's"],
)
def test_requests_are_read_as_logs_have_them(line, rule):
    one = read_request(line)
    assert one.route == (rule, "/v1/chat/completions", "m")
    assert one.body == BODY


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ([], "expected a JSON object"),
        ({"request": 1}, "request: expected an object"),
        ({"time": 1, "rule": "default"}, "expected a body with messages, prompt, input or query"),
        ({"url": "/v1/moderations", "body": {"input": "x"}}, "endpoint: expected one of"),
        ({"body": {"input": [[[[]]] * 2]}, "headers": []}, "headers: expected an object of texts"),
    ],
)
def test_lines_that_hold_no_request_say_what_was_expected(line, told):
    with pytest.raises(InvalidFieldError, match=re.escape(told)):
        read_request(line)


def test_what_the_upstream_said_of_a_prompt_is_read():
    one = read_request({"body": BODY, "prompt_tokens": 9, "cached_tokens": 0})
    assert (one.prompt_tokens, one.cached_tokens) == (9, 0)
    assert read_request(BODY | {"prompt_tokens": 9}).prompt_tokens is None
