"""Who may use the operator's API, and who may not."""

import pytest

from gateway.server.admin.access import admin_refusal

LOCAL = {"host": "127.0.0.1:8080"}


@pytest.mark.parametrize(
    ("headers", "peer"),
    [
        (LOCAL, "127.0.0.1"),
        ({"host": "localhost:8080"}, "127.0.0.1"),
        ({"host": "localhost"}, "::1"),
        ({"host": "[::1]:8080"}, "::1"),
        (LOCAL, "::ffff:127.0.0.1"),
        ({**LOCAL, "origin": "http://127.0.0.1:8080"}, "127.0.0.1"),
        ({**LOCAL, "sec-fetch-site": "same-origin"}, "127.0.0.1"),
    ],
)
def test_without_a_token_a_program_on_this_machine_may(headers, peer):
    assert admin_refusal(None, headers, peer) is None


@pytest.mark.parametrize(
    ("headers", "peer"),
    [
        (LOCAL, "192.0.2.7"),
        (LOCAL, "::ffff:192.0.2.7"),
        (LOCAL, None),
        (LOCAL, "/run/socket"),
        ({}, "127.0.0.1"),
        ({"host": "attacker.example:8080"}, "127.0.0.1"),
        ({"host": "127.0.0.1.attacker.example"}, "127.0.0.1"),
        ({"host": "[::1"}, "127.0.0.1"),
        ({**LOCAL, "origin": "https://attacker.example"}, "127.0.0.1"),
        ({**LOCAL, "origin": "http://127.0.0.1:9999"}, "127.0.0.1"),
        ({**LOCAL, "origin": "null"}, "127.0.0.1"),
        ({**LOCAL, "sec-fetch-site": "cross-site"}, "127.0.0.1"),
        ({**LOCAL, "x-forwarded-for": "192.0.2.7"}, "127.0.0.1"),
        ({**LOCAL, "forwarded": "for=192.0.2.7"}, "127.0.0.1"),
        ({**LOCAL, "via": "1.1 proxy"}, "127.0.0.1"),
    ],
)
def test_without_a_token_nobody_else_may(headers, peer):
    refusal = admin_refusal(None, headers, peer)
    assert refusal is not None
    assert refusal[0] == 403


@pytest.mark.parametrize("given", ["Bearer right", "bearer  right "])
def test_a_token_lets_in_from_anywhere(given):
    headers = {"authorization": given, "host": "gateway.example", "via": "1.1 proxy"}
    assert admin_refusal("right", headers, "192.0.2.7") is None


@pytest.mark.parametrize(
    "headers",
    [
        LOCAL,
        {**LOCAL, "authorization": "Bearer wrong"},
        {**LOCAL, "authorization": "Bearer "},
        {**LOCAL, "authorization": "Basic right"},
        {**LOCAL, "authorization": "right"},
        {**LOCAL, "authorization": "Bearer r\udcffght"},
    ],
)
def test_with_a_token_set_not_even_this_machine_passes_without_it(headers):
    refusal = admin_refusal("right", headers, "127.0.0.1")
    assert refusal is not None
    assert refusal[0] == 401
    assert "right" not in refusal[1]
