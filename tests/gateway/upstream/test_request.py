"""What the gateway adds to a request on its way, and that it adds nothing else."""

import json

import pytest

from gateway.upstream.request import Outgoing, own_fields, with_key, with_salt, without_salt


@pytest.mark.parametrize(
    ("raw", "salted"),
    [
        (b'{"model":"m"}', b'{"model":"m","cache_salt":"S"}'),
        (b'{ "model" : "m" \n}\n ', b'{ "model" : "m" \n,"cache_salt":"S"}\n '),
        (b"{}", b'{"cache_salt":"S"}'),
        (b'{"cache_salt":"mine","model":"m"}', b'{"cache_salt":"S","model":"m"}'),
        (
            b'{"a":1.50,\n"cache_salt" : {"x":[1,2]} ,"b":2}',
            b'{"a":1.50,\n"cache_salt" : "S" ,"b":2}',
        ),
        (
            b'{"a":{"cache_salt":"inner"},"cache_salt":null}',
            b'{"a":{"cache_salt":"inner"},"cache_salt":"S"}',
        ),
        (b'{"cache\\u005fsalt":"mine"}', b'{"cache\\u005fsalt":"S"}'),
        ('{"é":"ü{}","cache_salt":"漢"}'.encode(), '{"é":"ü{}","cache_salt":"S"}'.encode()),
        (
            b'{"t":"a \\"cache_salt\\": \\"x\\"}"}',
            b'{"t":"a \\"cache_salt\\": \\"x\\"}","cache_salt":"S"}',
        ),
    ],
)
def test_the_salt_is_the_only_change_to_the_bytes(raw, salted):
    body = json.loads(raw)
    assert with_salt(body, raw, "S") == ({**body, "cache_salt": "S"}, salted)
    assert json.loads(salted) == {**body, "cache_salt": "S"}


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


@pytest.mark.parametrize(
    ("fields", "rank"),
    [
        ((), 1),
        ((("X-Refrain-Priority", "high"),), 0),
        (own_fields((("x-refrain-priority", "high"),)), 2),
        ((("X-Refrain-Priority", "urgent"),), 1),
    ],
    ids=["nothing said", "high", "low", "no priority"],
)
def test_the_line_in_which_a_request_stands_is_that_of_the_policy(fields, rank):
    assert Outgoing("/v1/chat/completions", fields, b"{}").rank == rank
