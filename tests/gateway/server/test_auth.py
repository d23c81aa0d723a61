"""Rings of keys: what a file of them may hold, and whom they let in."""

import asyncio
import threading
from hashlib import sha256

import pytest

from gateway.protocol.errors import UnauthorizedError
from gateway.protocol.http.headers import bearer
from gateway.server.keys import auth, key_line
from gateway.server.keys.auth import (
    NOBODY,
    Access,
    KeyReader,
    KeyRingError,
    authenticate,
    read_key_ring,
)
from gateway.server.open.watched_file import WatchedFile


def line(name, key):
    return f"{name} {sha256(key.encode()).hexdigest()}\n"


def ring(*lines):
    return read_key_ring("".join(lines).encode(), "keys")


NOW = 1_800_000_000.0
KEYS = ring(line("shop", "k1"), line("shop", "k2"), line("desk", "k3"))


@pytest.mark.parametrize(
    ("headers", "holder"),
    [
        ({"authorization": "Bearer k1"}, "shop"),
        ({"authorization": "bearer  k2 "}, "shop"),
        ({"api-key": "k3"}, "desk"),
        ({"x-api-key": "k3"}, "desk"),
        ({"authorization": "Bearer k1", "x-api-key": "k2"}, "shop"),
    ],
)
def test_a_key_on_the_ring_is_its_holders(headers, holder):
    assert authenticate(headers, KEYS, NOBODY, NOW).name == holder


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer k9"},
        {"authorization": "Bearer K1"},
        {"authorization": "Basic k1"},
        # A second line of the header is joined to the first.
        {"authorization": "Bearer k1, Bearer k3"},
        # Of two holders nobody knows whose answers are meant.
        {"authorization": "Bearer k1", "x-api-key": "k3"},
        {"authorization": "Bearer k1", "x-api-key": "k9"},
        {"authorization": f"Bearer {sha256(b'k1').hexdigest()}"},
        {"authorization": "Bearer \udcff"},
    ],
)
def test_nothing_else_gets_in(headers):
    with pytest.raises(UnauthorizedError) as raised:
        authenticate(headers, KEYS, NOBODY, NOW)
    assert raised.value.status == 401
    assert raised.value.body()["error"]["code"] == "invalid_api_key"
    assert not any(key in str(raised.value) for key in ("k1", "k9"))


def test_without_gateway_keys_only_denied_keys_are_looked_for():
    denied = ring(line("left-in-may", "k3"))
    assert authenticate({}, None, denied, NOW) is None
    assert authenticate({"authorization": "Bearer k1"}, None, denied, NOW) is None
    for name in ("authorization", "api-key", "x-api-key"):
        with pytest.raises(UnauthorizedError):
            authenticate({name: "k3"}, None, denied, NOW)
    with pytest.raises(UnauthorizedError):
        authenticate({"authorization": "Bearer k3"}, KEYS, denied, NOW)


def test_keys_whose_digests_begin_alike_are_told_apart():
    digest = sha256(b"k1").hexdigest()
    alike = digest[:16] + "0" * 48
    both = read_key_ring(f"one {alike}\ntwo {digest}".encode(), "keys")
    assert both.find("k1").name == "two"


def test_comments_blank_lines_and_a_byte_order_mark_are_no_keys():
    text = f"\ufeff# keys\n\n  {line('shop', 'k1').strip()}   # since May\r\n"
    assert read_key_ring(text.encode(), "keys").find("k1").name == "shop"
    assert read_key_ring(b"", "keys").find("") is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("shop sk-secret", "keys:1: expected NAME and the SHA-256"),
        ("\nsk-secret", "keys:2: expected NAME"),
        (line("shop", "a") + line("desk", "a"), "keys:2: this digest is there already"),
        (f"a b {'0' * 64}", "keys:1: expected NAME"),
        ("\udcff", "UTF-8"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_line_and_without_what_stands_there(text, told):
    with pytest.raises(KeyRingError, match=told) as raised:
        read_key_ring(text.encode(errors="surrogateescape"), "keys")
    assert "sk-secret" not in str(raised.value)


def test_all_problems_are_told_at_once():
    with pytest.raises(KeyRingError) as raised:
        read_key_ring(b"one\ntwo\n", "keys")
    assert str(raised.value).count("\n") == 1


def test_the_scheme_is_no_part_of_a_key():
    assert [bearer(value) for value in ("Bearer a", "BEARER a ", "a", "Bearer")] == [
        *("a", "a", "a"),
        "Bearer",
    ]


async def test_a_key_that_is_cut_off_waits_for_no_other_file(tmp_path, monkeypatch):
    keys, denied = tmp_path / "keys", tmp_path / "denied"
    keys.write_text(line("shop", "k1"))
    denied.write_text(line("thief", "k9"))
    access = Access(keys, denied)
    cut_off, may_go_on = threading.Event(), threading.Event()
    reload = WatchedFile.reload

    def slow(file):
        if file.path == denied and cut_off.is_set():
            may_go_on.wait(10)
        changed = reload(file)
        if changed:
            cut_off.set()
        return changed

    monkeypatch.setattr(WatchedFile, "reload", slow)
    monkeypatch.setattr(auth, "POLL_SECONDS", 0.01)
    watching = asyncio.create_task(access.watch(lambda: None))
    try:
        keys.write_text(line("desk", "k3"))
        assert await asyncio.to_thread(cut_off.wait, 10)
        await asyncio.sleep(0.05)
        assert access.rings[0].find("k1") is None
    finally:
        may_go_on.set()
        watching.cancel()
        await asyncio.wait([watching])


def test_lines_that_were_there_before_are_read_once(monkeypatch):
    read = []

    def read_key(words):
        read.append(words[0])
        return key_line.read_key(words)

    monkeypatch.setattr(auth, "read_key", read_key)
    reader = KeyReader()
    lines = [line(f"holder{n}", f"k{n}") for n in range(100)]
    reader("".join(lines).encode(), "keys")
    assert len(read) == 100
    ring = reader("".join([*lines[:50], *lines[51:], line("new", "k")]).encode(), "keys")
    assert read[100:] == ["new"]
    assert ring.find("k50") is None
    assert ring.find("k51").name == "holder51"
    assert (ring.find("k").name, len(ring.holders)) == ("new", 100)
