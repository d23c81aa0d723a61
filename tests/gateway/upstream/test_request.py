"""What the gateway adds to a request on its way, and that it adds nothing else."""

import pytest

from gateway.upstream.request import (
    call_fields,
    own_fields,
    passed_fields,
    unencoded_fields,
    with_key,
    without_salt,
)
from policies.decision import Priority


def test_a_body_is_keyed_without_the_salt_that_is_overwritten():
    assert without_salt({"a": 1, "cache_salt": "mine"}) == {"a": 1}
    body = {"a": 1}
    assert without_salt(body) is body


def test_a_client_does_not_choose_the_priority_of_a_call_of_ours():
    sent = own_fields([("X-REFRAIN-priority", "high"), ("A", "b"), ("Accept-Encoding", "br")])
    assert sent == (
        ("A", "b"),
        ("Content-Type", "application/json"),
        ("Accept-Encoding", "identity"),
        ("X-Refrain-Priority", "low"),
    )


def test_the_priority_of_a_client_s_call_is_the_policy_s_and_its_answer_comes_unencoded():
    sent = [("X-Refrain-Priority", "high"), ("Accept-Encoding", "br"), ("Content-Encoding", "gzip")]
    unencoded = ("Accept-Encoding", "identity")
    assert call_fields([("A", "b"), *sent], Priority.NORMAL) == (("A", "b"), unencoded)
    assert call_fields(sent, Priority.LOW) == (unencoded, ("X-Refrain-Priority", "low"))


def test_a_request_that_passes_through_keeps_all_but_priority_and_coding():
    sent = [("x-refrain-priority", "high"), ("accept-encoding", "br"), ("Content-Encoding", "gzip")]
    assert passed_fields([*sent, ("A", "b")]) == (("accept-encoding", "br"), ("A", "b"))
    assert passed_fields([("A", "b"), ("C", "d")], "a") == (("C", "d"),)
    read_here = unencoded_fields((("accept-encoding", "br"), ("A", "b")))
    assert read_here == (("A", "b"), ("Accept-Encoding", "identity"))


@pytest.mark.parametrize(
    "name",
    [
        *("Authorization", "API-Key", "x-api-key", "X-Goog-Api-Key", "Cookie"),
        *("OpenAI-Organization", "OpenAI-Project"),
    ],
)
def test_no_credential_of_a_client_stays(name):
    sent = [(name, "gateway-key"), ("A", "b"), (name.upper(), "again")]
    assert with_key(sent, None) == (("A", "b"),)
    assert with_key(sent, "upstream") == (("A", "b"), ("Authorization", "Bearer upstream"))
