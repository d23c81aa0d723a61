"""What the gateway adds to a request on its way, and that it adds nothing else."""

import pytest

from gateway.upstream.request import own_fields, with_key, without_salt


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
