"""The hot path without a network: what it takes for a repetition, and what it never does."""

import asyncio
import random
from types import SimpleNamespace

import orjson
import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser
from hypothesis import settings
from multidict import CIMultiDict

from gateway.cache.lookup import Hit
from gateway.cache.ports import Entry, StoreStats
from gateway.cache.stores.memory import MemoryStore
from gateway.protocol.http.cache_status import HitStatus, Reason
from gateway.protocol.http.messages import Reply
from gateway.server import hot_path
from gateway.server.hot_path import NEUTRAL, HotPath, PlainRequest, Reader, read_head
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.observation import Asked, Lookup, Observation
from gateway.telemetry.prices import Price, Prices
from gateway.telemetry.usage import UsageLedger
from policies.decision import Endpoint
from policies.format.load import parse_policy

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "Why?"}]}'
LINES = (
    b"POST /v1/chat/completions HTTP/1.1",
    b"Host: 127.0.0.1:8080",
    b"Content-Type: application/json",
    b"Authorization: Bearer sk-one",
    b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    b"x-request-id: mine-1",
    b"Content-Length: %d" % len(BODY),
)
POLICY = """
version: 1
rules: [%s]
default: {exact: on, semantic: off, freshness: 1h, scope: tenant, pii: allow}
"""
KEY = bytes(32)
NOW = 1_800_000_000.0


def request(*lines, body=BODY):
    return b"\r\n".join(lines or LINES) + b"\r\n\r\n" + body


def entry(result=b'{"answer": 1}', stored_at=NOW):
    return Entry(
        key=KEY,
        endpoint="/v1/chat/completions",
        model="m",
        upstream="u",
        generation=0,
        scope=KEY,
        fingerprint=KEY,
        rule="default",
        stored_at=stored_at,
        expires_at=stored_at + 100,
        result=result,
    )


class Rig:
    """A hot path over a real memory store, with a clock and a policy of the test's."""

    def __init__(self, rules=""):
        self.memory = MemoryStore(max_bytes=1 << 20)
        self.now = NOW
        self.access = SimpleNamespace(rings=())
        self.policies = SimpleNamespace(active=None)
        self.set_policy(rules)
        self.stopping = False
        self.metrics = Metrics(lambda: StoreStats(0, 0, 0))
        prices = Prices({"m": Price(1e-6, 2e-6)})
        self.usage = UsageLedger(None, prices, self.metrics.count, now=lambda: self.now)
        self.metrics.collect = self.usage.collect
        self.hot = HotPath(
            self.memory,
            self.policies,
            self.access,
            self.metrics,
            self.usage,
            server="test",
            stopping=lambda: self.stopping,
            now=lambda: self.now,
        )

    def set_policy(self, rules=""):
        policy = parse_policy(POLICY % rules, "policy.yaml")
        self.policies.active = SimpleNamespace(policy=policy)

    def store(self, one=None):
        self.memory.keep(one or entry())
        return self.memory.find(KEY)

    def reader(self):
        return Reader(self.hot)

    def teach(self, reader, data, stored, body=None, gate=None):
        """Let the pipeline answer a plain request from an entry."""
        plain = reader.feed(data, waiting=True)
        assert isinstance(plain, PlainRequest)
        fields = (("Content-Type", "application/json"),)
        reply = Reply(200, fields, body or stored.result, fresh_until=stored.expires_at)
        asked = Asked("m", "default", "ann")
        seen = Observation(plain.endpoint.value, 0.0, lambda: 0.0, (), asked=asked)
        hit = Hit(stored, HitStatus(Reason.EXACT, 100), 0)
        seen.lookup, seen.outcome = Lookup(hit=hit), "hit"
        self.hot.remember(plain, seen, hit, reply, gate)

    def taught(self, data=None, stored=None):
        """Return a reader whose connection was answered once by the pipeline."""
        reader = self.reader()
        self.teach(reader, data or request(), stored or self.store())
        return reader


def is_repeated(found):
    """Tell whether a reader returned the bytes of a reply."""
    return isinstance(found, tuple) and not isinstance(found, PlainRequest)


def test_the_same_bytes_get_the_same_answer():
    rig = Rig()
    reader = rig.taught()
    rig.now += 7.5
    head, body = reader.feed(request(), waiting=True)
    assert body == b'{"answer": 1}'
    assert head.split(b"\r\n") == [
        b"HTTP/1.1 200 OK",
        b"Content-Type: application/json",
        b"Cache-Status: refrain; hit; ttl=92; detail=exact",
        b"Age: 7",
        b"Refrain-Entry: " + KEY.hex().encode(),
        b"x-request-id: mine-1",
        b"Content-Length: 13",
        b"Date: Fri, 15 Jan 2027 08:00:07 GMT",
        b"Server: test",
        b"",
        b"",
    ]


def test_what_the_key_lets_through_is_asked_at_each_repetition():
    rig, gates = Rig(), iter([b"\r\nx-more: 1", None, b""])
    reader = rig.reader()
    rig.teach(reader, request(), rig.store(), gate=lambda now: next(gates))
    head, _ = reader.feed(request(), waiting=True)
    assert b"\r\nx-more: 1\r\nDate: " in head
    assert isinstance(reader.feed(request(), waiting=True), PlainRequest)
    head, _ = reader.feed(request(), waiting=True)
    assert b"x-more" not in head


def test_each_repetition_counts_what_it_saves():
    rig = Rig()
    usage = {"prompt_tokens": 100, "completion_tokens": 10}
    stored = rig.store(entry(orjson.dumps({"answer": 1, "usage": usage})))
    reader = rig.taught(stored=stored)
    for _ in range(3):
        assert is_repeated(reader.feed(request(), waiting=True))
    rig.metrics.flush()
    found = rig.metrics.registry.get_sample_value
    assert found("refrain_tokens_saved_total", {"by": "exact"}) == 3 * 110
    dollars = found("refrain_cost_saved_dollars_total", {"by": "exact"})
    assert dollars == pytest.approx(3 * (100e-6 + 20e-6))


@pytest.mark.parametrize("cut", [0, 1, 10, len(BODY) - 1])
def test_a_body_may_come_after_its_head(cut):
    rig = Rig()
    reader = rig.taught()
    whole = request()
    at = len(whole) - len(BODY) + cut
    assert reader.feed(whole[:at], waiting=True) == b""
    assert reader.holds
    assert reader.feed(whole[at:], waiting=True)[1] == b'{"answer": 1}'
    assert not reader.holds


def test_a_late_body_makes_a_plain_request():
    reader = Rig().reader()
    other = request(body=BODY.replace(b"Why", b"How"))
    at = len(other) - 5
    assert reader.feed(other[:at], waiting=True) == b""
    assert reader.feed(other[at:], waiting=True).body == BODY.replace(b"Why", b"How")


def test_what_was_held_back_can_be_released_and_its_rest_follows():
    rig = Rig()
    reader = rig.taught()
    whole = request()
    assert reader.feed(whole[:-5], waiting=True) == b""
    assert reader.release() == whole[:-5]
    assert reader.feed(whole[-5:], waiting=False) == whole[-5:]
    assert reader.feed(request(), waiting=True)[1] == b'{"answer": 1}'


def test_what_is_held_back_goes_to_the_parser_if_more_than_the_body_comes():
    reader = Rig().reader()
    whole = request()
    assert reader.feed(whole[:-5], waiting=True) == b""
    assert reader.feed(whole[-5:] + b"GET", waiting=True) == whole + b"GET"
    assert reader.feed(whole, waiting=True) == whole


def test_a_plain_request_has_its_head_as_it_came():
    lines = (*LINES, b"X-Two:  a ", b"Cache-Control: no-cache")
    plain = Rig().reader().feed(request(*lines), waiting=True)
    head = plain.head
    assert (plain.endpoint, head.target, plain.body) == (Endpoint.CHAT, Endpoint.CHAT, BODY)
    assert plain.fields[0] == ("Host", "127.0.0.1:8080")
    assert plain.fields[-2:] == (("X-Two", "a"), ("Cache-Control", "no-cache"))
    assert plain.headers["x-two"] == "a"
    assert plain.headers["authorization"] == "Bearer sk-one"


def test_nothing_of_a_credential_stays_in_the_tables_or_is_shown():
    rig = Rig()
    plain = rig.reader().feed(request(), waiting=True)
    assert "sk-one" not in repr(plain)
    assert "sk-one" not in repr(rig.hot._heads)


def test_a_body_over_the_limit_is_left_to_the_parser():
    rig = Rig()
    rig.hot.max_body_bytes = len(BODY) - 1
    assert rig.reader().feed(request(), waiting=True) == request()


def test_without_a_memory_tier_no_answer_is_repeated():
    rig = Rig()
    rig.hot._memory = None
    reader = rig.taught()
    assert isinstance(reader.feed(request(), waiting=True), PlainRequest)
    rig.hot.sweep()


def test_headers_of_one_request_alone_do_not_tell_requests_apart():
    rig = Rig()
    reader = rig.taught()
    other = request().replace(b"4bf92f", b"aaaaaa").replace(b"mine-1", b"mine-2")
    head, _ = reader.feed(other, waiting=True)
    assert b"\r\nx-request-id: mine-2\r\n" in head
    head, _ = reader.feed(request().replace(b"x-request-id", b"b3"), waiting=True)
    assert b"\r\nx-request-id: req_" in head


def test_a_header_that_a_rule_reads_tells_requests_apart():
    rig = Rig("{name: b, match: {header: {b3: x*}}, freshness: 5m}")
    with_b3 = request(*LINES[:-1], b"b3: x1", LINES[-1])
    reader = rig.taught(with_b3)
    assert is_repeated(reader.feed(with_b3, waiting=True))
    other = with_b3.replace(b"x1", b"y1")
    assert isinstance(reader.feed(other, waiting=True), PlainRequest)


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        (b"sk-one", b"sk-two"),
        (b"Host: 127", b"Host: 128"),
        (b"/v1/chat/completions", b"/v1/chat/completions?a=1"),
        (b"/v1/chat/completions", b"/v1/completions"),
        (b"Why", b"How"),
        (b"Host", b"Cache-Control: no-cache\r\nHost"),
        (b"Host", b"cache-control: max-age=5\r\nHost"),
        (b"Host", b"X-New: 1\r\nHost"),
    ],
)
def test_another_plain_request_is_not_a_repetition(was, becomes):
    rig = Rig()
    reader = rig.taught()
    other = request().replace(was, becomes, 1)
    assert isinstance(reader.feed(other, waiting=True), PlainRequest)


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        (b"/v1/chat/completions", b"/v1/models"),
        (b"/v1/chat/completions", b"/v1/chat/completions?a=\xe9"),
        (b"/v1/chat/completions", b"/v1/chat/completions?a=#b"),
        (b"/v1/chat/completions", b"/v1/chat/completions#b"),
        (b"/v1/chat/completions", b"//v1/chat/completions"),
        (b"/v1/chat/completions", b"http://h/v1/chat/completions"),
        (b"POST", b"QUERY"),
        (b"POST", b"GET"),
        (b"HTTP/1.1", b"HTTP/1.0"),
        (b"Host", b"Connection: close\r\nHost"),
        (b"Host", b"Expect: 100-continue\r\nHost"),
        (b"Host", b"Upgrade: h2c\r\nHost"),
        (b"Host", b"Via: 1.1 proxy\r\nHost"),
        (b"Host", b"Content-Encoding: gzip\r\nHost"),
        (b"Host", b"Transfer-Encoding: chunked\r\nHost"),
        (b"Host", b"X New: 1\r\nHost"),
        (b"Host", b"Host: 1\r\nHost"),
        (b"Host", b"X-Host"),
        (b"Host: ", b"Host: user@"),
        (b"Authorization", b"authorization: Bearer sk-two\r\nAuthorization"),
        (b"Host", b": 1\r\nHost"),
        (b"x-request-id: mine-1", b"x-request-id: m\xc3\xa9"),
        (b"x-request-id: mine-1", b"x-request-id: one two"),
        (b"x-request-id: mine-1", b"x-request-id: " + b"m" * 129),
        (b"x-request-id: mine-1", b"x-request-id: mine-1\r\nx-request-id: mine-2"),
        (b"x-request-id: mine-1", b"x-request-id: mine-1\nX-Other: 1"),
        (b"x-request-id: mine-1", b"x-request-id: mine-1\rX-Other: 1"),
        (b"x-request-id: mine-1", b"x-request-id: mine-1\r\n folded"),
        (b"Content-Length: ", b"Content-Length: +"),
        (b"Content-Length: ", b"Content-Length : "),
        (b"Content-Length", b"Content-Length: 1\r\nContent-Length"),
    ],
)
def test_what_is_not_plain_goes_to_the_parser_as_it_came(was, becomes):
    rig = Rig()
    reader = rig.taught()
    other = request().replace(was, becomes, 1)
    assert other != request()
    assert reader.feed(other, waiting=True) == other


def test_a_reader_that_lost_the_boundary_never_answers_again():
    rig = Rig()
    reader = rig.taught()
    pair = request() + request()
    assert reader.feed(pair, waiting=True) == pair
    assert reader.feed(request(), waiting=True) == request()


def test_a_request_behind_another_goes_through_the_parser():
    rig = Rig()
    reader = rig.taught()
    assert reader.feed(request(), waiting=False) == request()
    assert is_repeated(reader.feed(request(), waiting=True))


@pytest.mark.parametrize("line", [b"Upgrade: websocket", b"Transfer-Encoding: identity"])
def test_a_header_that_makes_the_boundary_unsure_ends_it(line):
    rig = Rig()
    rig.taught()
    reader = rig.reader()
    unsure = request(*LINES[:-1], line, LINES[-1])
    assert reader.feed(unsure, waiting=True) == unsure
    assert reader.feed(request(), waiting=True) == request()


def test_a_parser_that_saw_two_requests_ends_it():
    rig = Rig()
    reader = rig.taught()
    reader.give_up()
    assert reader.feed(request(), waiting=True) == request()


def test_what_the_decision_hung_on_is_looked_at_again():
    def changed(change):
        rig = Rig()
        reader = rig.taught()
        assert is_repeated(reader.feed(request(), waiting=True))
        change(rig)
        assert isinstance(reader.feed(request(), waiting=True), PlainRequest)

    changed(lambda rig: rig.set_policy())
    changed(lambda rig: setattr(rig.access, "rings", (1,)))
    changed(lambda rig: setattr(rig, "stopping", True))
    changed(lambda rig: setattr(rig, "now", NOW + 100))
    changed(lambda rig: rig.memory.forget(KEY))
    changed(lambda rig: rig.memory.keep(entry(b'{"answer": 2}')))


def test_the_tables_are_bounded(monkeypatch):
    monkeypatch.setattr(hot_path, "MAX_ANSWERS", 10)
    monkeypatch.setattr(hot_path, "MAX_HEADS", 10)
    rig = Rig()
    for number in range(100):
        lines = [line.replace(b"sk-one", b"sk-%d" % number) for line in LINES]
        rig.taught(request(*lines))
    assert len(rig.hot._answers) == 10
    assert len(rig.hot._heads) <= 10
    assert len(rig.hot._answered) <= 10


def test_rendered_answers_are_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(hot_path, "MAX_RENDERED_BYTES", 1_000)
    rig = Rig()
    stored = rig.store()
    for number in range(100):
        data = request(*LINES[:-1], b"X-Number: %d" % number, LINES[-1])
        rig.teach(rig.reader(), data, stored, bytes(100))
    assert rig.hot._rendered_bytes <= 1_100
    assert rig.hot._rendered_bytes == 100 * len(rig.hot._answers)


def test_a_sweep_forgets_what_left_the_memory():
    rig = Rig()
    reader = rig.taught()
    reader.feed(request(), waiting=True)
    rig.memory.forget(KEY)
    rig.hot.sweep()
    assert not rig.hot._answers


def test_a_repeated_hit_counts_once_the_metrics_are_flushed():
    rig = Rig()
    rig.taught().feed(request(), waiting=True)
    rig.metrics.flush()
    labels = {
        "endpoint": "/v1/chat/completions",
        "rule": "default",
        "outcome": "hit",
        "reason": "exact",
    }
    assert rig.metrics.registry.get_sample_value("refrain_requests_total", labels) == 1


def test_head_and_neutral_headers_are_read_in_any_case():
    head = read_head(b"\r\n".join(LINES), NEUTRAL, 1)
    upper = b"\r\n".join(
        (LINES[0], *(line.upper().replace(b"MINE", b"mine") for line in LINES[4:]))
    )
    lower = b"\r\n".join((LINES[0], *(line.lower() for line in LINES[4:])))
    assert head.length == len(BODY)
    assert read_head(upper, NEUTRAL, 1) == read_head(lower, NEUTRAL, 1)
    assert read_head(b"\r\n".join(LINES), NEUTRAL, 2).facts != head.facts


def mutated(draw, data):
    """Return the bytes of a request with a few changes, as a broken or hostile client sends it."""
    pieces = (b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b"0", b"\x00", b"\xff", b"POST / HTTP/1.1")
    lines = (
        b"Transfer-Encoding: chunked\r\n",
        b"Content-Length: 5\r\n",
        b"x-request-id: a\nEvil: 1\r\n",
        b"traceparent: \r\n",
        b" folded\r\n",
        b"Connection: close\r\n",
    )
    out = bytearray(data)
    for _ in range(draw.randrange(4)):
        at = draw.randrange(len(out) + 1)
        match draw.randrange(6):
            case 0:
                out[at:at] = draw.choice(pieces)
            case 1:
                del out[at : at + draw.randrange(1, 9)]
            case 2 if at < len(out):
                out[at] = draw.randrange(256)
            case 3:
                line = out.find(b"\r\n", at) + 2
                out[line:line] = draw.choice(lines)
            case 4:
                out += draw.choice((data, data[:40], b"\r\n"))
            case 5:
                begin, end = sorted(draw.randrange(len(out) + 1) for _ in range(2))
                out[at:at] = out[begin : min(end, begin + 80)]
    return bytes(out)


def parsed(data):
    """Return the messages that aiohttp's parser finds, with their bodies; None if it refuses."""
    loop = asyncio.new_event_loop()
    try:
        parser = HttpRequestParser(
            BaseProtocol(loop),
            loop,
            2**16,
            max_line_size=8190,
            max_field_size=32768,
            max_headers=128,
        )
        try:
            messages, upgraded, tail = parser.feed_data(data)
        except HttpProcessingError:
            return None
        if upgraded or tail:
            return None
        return [
            (message, b"".join(payload._buffer) if payload.is_eof() else None)
            for message, payload in messages
        ]
    finally:
        loop.close()


def counted_fields(message):
    """Return the header fields that tell requests apart."""
    return CIMultiDict(
        (name, value)
        for name, value in message.headers.items()
        if name.lower() not in NEUTRAL and name.lower() != "content-length"
    )


def test_no_mutation_gets_an_answer_that_the_parser_would_not_have_led_to():
    draw = random.Random(20261123)
    rig = Rig()
    rig.taught()
    known = request()
    [(expected, _)] = parsed(known)
    answered = plain = 0
    for _ in range(100 * settings().max_examples):
        data = mutated(draw, known)
        cuts = sorted(draw.randrange(len(data) + 1) for _ in range(draw.randrange(3)))
        reader = rig.reader()
        begin, passed = 0, b""
        for end in (*cuts, len(data)):
            got = reader.feed(data[begin:end], waiting=not passed) if end > begin else b""
            begin = end
            if isinstance(got, tuple):
                assert not passed
                messages = parsed(data[:end])
                assert messages is not None
                [(message, body)] = messages
                assert not message.should_close
                if isinstance(got, PlainRequest):
                    plain += 1
                    assert (message.method, message.path) == ("POST", got.head.target)
                    fields = [(name.lower(), value) for name, value in message.headers.items()]
                    assert fields == [(name.lower(), value) for name, value in got.fields]
                    assert dict(fields) == got.headers
                    assert body == got.body
                    break
                answered += 1
                assert body == BODY
                assert (message.method, message.path) == (expected.method, expected.path)
                assert counted_fields(message) == counted_fields(expected)
                break
            passed += got
        else:
            assert passed + reader.release() == data
    assert answered > settings().max_examples
    assert plain > settings().max_examples
