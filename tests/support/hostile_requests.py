"""Requests as broken and hostile clients send them, made of requests that the gateway has answered.

An exchange is what is sent before the replies are compared: one request or several in a row, cut
into pieces that the server reads one by one.
"""

import gzip
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson

CHAT = b"/v1/chat/completions"
HIDDEN = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Exchange:
    """Bytes to send, piece by piece."""

    pieces: tuple[bytes, ...]
    what: str
    clean: bool = False
    """Whether both servers must be ready for a next request afterwards."""
    hurried: bool = False
    """Whether a piece is sent before the servers have done what they can with the one before."""


@dataclass(slots=True)
class Request:
    """A request's parts, before they are joined."""

    target: bytes
    lines: list[bytes]
    body: bytes
    method: bytes = b"POST"
    version: bytes = b"HTTP/1.1"
    end: bytes = b"\r\n"
    length: list[bytes] | None = None
    """Header lines that say the body's length; None for the right one."""
    marks: list[str] = field(default_factory=list)

    def join(self) -> bytes:
        """Return its bytes."""
        length = self.length
        if length is None:
            length = [b"Content-Length: %d" % len(self.body)]
        first = b" ".join((self.method, self.target, self.version))
        return self.end.join((first, *self.lines, *length, b"", self.body))


def plain(draw: random.Random, lane: int) -> Request:
    """Return one of a few requests, such as come again and again."""
    body = {
        "model": f"m{lane}",
        "messages": [{"role": "user", "content": f"Question {draw.randrange(2)}?"}],
    }
    target = CHAT
    if draw.random() < 0.1:
        target = b"/v1/completions"
        body = {"model": f"m{lane}", "prompt": body["messages"][0]["content"]}  # type: ignore[index]
    if draw.random() < 0.3:
        body["stream"] = True
    lines = [b"Host: h", b"Content-Type: application/json"]
    lines.append(b"Authorization: Bearer sk-%d-%d" % (lane, draw.random() < 0.2))
    if draw.random() < 0.3:
        trace = draw.randrange(10**9)
        lines.append(b"traceparent: 00-%032x-%016x-01" % (trace, trace))
    if draw.random() < 0.2:
        lines.append(b"x-request-id: mine-%d" % draw.randrange(100))
    return Request(target, lines, orjson.dumps(body))


def plain_request(draw: random.Random, lane: int) -> bytes:
    """Return the bytes of one of these requests."""
    return plain(draw, lane).join()


def _line(draw: random.Random, one: Request) -> int:
    return draw.randrange(len(one.lines)) if one.lines else 0


def _insert(draw: random.Random, one: Request, *lines: bytes) -> None:
    at = draw.randrange(len(one.lines) + 1)
    one.lines[at:at] = [draw.choice(lines)]


def repeat_line(draw: random.Random, one: Request) -> None:
    """Send a header twice."""
    one.lines.append(draw.choice(one.lines))


def repeat_length(draw: random.Random, one: Request) -> None:
    """Send two lengths, equal or not."""
    size = len(one.body)
    other = draw.choice((size, size, size + 1, max(0, size - 1), 0))
    one.length = [b"Content-Length: %d" % size, b"content-length: %d" % other]
    draw.shuffle(one.length)


def odd_length(draw: random.Random, one: Request) -> None:
    """Write the length as few parsers read it."""
    size = len(one.body)
    forms = (
        *(b"+%d" % size, b"-%d" % size, b"0x%x" % size, b"00%d" % size, b"%d.0" % size),
        *(b" %d " % size, b"\t%d" % size, b"%d,%d" % (size, size), b"%d;q=1" % size, b""),
        *(b"%d %d" % (size, size), b"1e2", b"\xd9\xa1", b"_%d" % size, b"9" * 30, b"%d\x0b" % size),
        *(b"\x00%d" % size, b'"%d"' % size),
    )
    one.length = [b"Content-Length: " + draw.choice(forms)]


def wrong_length(draw: random.Random, one: Request) -> None:
    """Declare more or less than comes."""
    size = len(one.body) + draw.choice((-40, -2, -1, 1, 2, 40))
    one.length = [b"Content-Length: %d" % max(0, size)]


def no_length(_draw: random.Random, one: Request) -> None:
    """Send a body of which no length is told."""
    one.length = []


def change_case(draw: random.Random, one: Request) -> None:
    """Write the names in other letters."""
    how: Callable[[bytes], bytes] = draw.choice((bytes.lower, bytes.upper, bytes.swapcase))
    for at, line in enumerate(one.lines):
        name, colon, value = line.partition(b":")
        one.lines[at] = how(name) + colon + value
    one.length = [how(b"Content-Length") + b": %d" % len(one.body)]


def fold(draw: random.Random, one: Request) -> None:
    """Break a header's value over two lines."""
    at = _line(draw, one)
    cut = draw.randrange(len(one.lines[at]) + 1)
    space = draw.choice((b" ", b"\t", b"  "))
    one.lines[at] = one.lines[at][:cut] + one.end + space + one.lines[at][cut:]


def odd_space(draw: random.Random, one: Request) -> None:
    """Put white space where it changes what some parsers read."""
    at = _line(draw, one)
    name, _, value = one.lines[at].partition(b":")
    space = draw.choice((b" ", b"\t", b"\x0b", b"\x0c", b"\xa0"))
    forms = (
        *(name + space + b":" + value, name + b":" + value.strip(), space + one.lines[at]),
        *(name + b":" + space * 3 + value, one.lines[at] + space, name + b":"),
        *(b":" + value, name, name[:3] + space + name[3:] + b":" + value),
    )
    one.lines[at] = draw.choice(forms)


def odd_line_end(draw: random.Random, one: Request) -> None:
    """End lines with LF alone, or CR alone, or both the wrong way round; one line, or all."""
    end = draw.choice((b"\n", b"\r", b"\n\r", b"\r\r\n", b"\r\n\r", b"\x85"))
    if draw.random() < 0.5:
        one.end = end
    else:
        at = _line(draw, one)
        one.lines[at] += end + b"X-More: 1"


def odd_target(draw: random.Random, one: Request) -> None:
    """Ask for the same in another form."""
    targets = (
        *(
            b"http://h" + CHAT,
            b"http://other:1" + CHAT,
            b"//h" + CHAT,
            b"/v1/../v1/chat/completions",
        ),
        *(CHAT + b"?a=1", CHAT + b"/", b"/v1/chat%2fcompletions", CHAT + b"#x", CHAT[1:], b"*"),
        *(b"/v1//chat/completions", CHAT.upper(), CHAT + b"\x7f", CHAT + b"\xc3\xa9", CHAT + b" x"),
        *(b"/" + b"a" * draw.choice((8000, 8200, 20000)), b"/v1/models", b"/healthz", b"/admin/x"),
        *(b"", b"h:443"),
    )
    one.target = draw.choice(targets)


def odd_version(draw: random.Random, one: Request) -> None:
    """Speak another HTTP."""
    versions = (b"HTTP/1.0", b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/0.9", b"http/1.1", b"")
    one.version = draw.choice((*versions, b"HTTP/1.1 ", b"HTTP/01.1", b"HTTP/1.1\x00"))


def odd_method(draw: random.Random, one: Request) -> None:
    """Use another method."""
    methods = (
        b"post",
        b"PUT",
        b"GET",
        b"HEAD",
        b"QUERY",
        b"OPTIONS",
        b"PATCH",
        b"POST ",
        b"P\xd6ST",
    )
    one.method = draw.choice((*methods, b"\r\nPOST", b"\nPOST", b" POST", b"XPOST", b"CONNECT"))


def connection(draw: random.Random, one: Request) -> None:
    """Say what is to become of the connection."""
    words = (b"close", b"keep-alive", b"Keep-Alive", b"close, keep-alive", b"Upgrade", b"TE", b"")
    _insert(draw, one, *(b"Connection: " + word for word in words), b"Keep-Alive: timeout=1")
    if draw.random() < 0.2:
        _insert(draw, one, b"Upgrade: websocket", b"Upgrade: h2c", b"HTTP2-Settings: AA")


def expect(draw: random.Random, one: Request) -> None:
    """Wait to be asked for the body."""
    _insert(
        draw, one, b"Expect: 100-continue", b"expect: 100-Continue", b"Expect: else", b"Expect:"
    )


def directive(draw: random.Random, one: Request) -> None:
    """Steer the cache."""
    words = (b"no-cache", b"no-store", b"max-age=5", b"only-if-cached", b"max-stale=30", b"x", b"")
    _insert(draw, one, *(b"Cache-Control: " + word for word in words), b"Pragma: no-cache")


def coding(draw: random.Random, one: Request) -> None:
    """Compress the body, or only say so."""
    word = draw.choice((b"gzip", b"gzip", b"deflate", b"br", b"identity", b"x-gzip", b""))
    one.lines.append(b"Content-Encoding: " + word)
    if draw.random() < 0.5:
        one.body = gzip.compress(one.body, mtime=0)


def neutral(draw: random.Random, one: Request) -> None:
    """Send headers that are left out of what counts, oddly."""
    _insert(
        draw,
        one,
        *(b"x-request-id: a b", b"x-request-id: ", b"X-Request-ID: caf\xc3\xa9", b"traceparent:"),
        *(b"x-request-id: " + b"a" * 200, b"x-request-id: a\tb", b"baggage: \x01", b"b3: 0"),
        *(b"x-correlation-id: short-1", b"x-correlation-id: long", b"x-request-id: mine-1"),
        *(b"tracestate: " + b"a=b," * 3000, b"x-request-id : mine-2", b"x-request-id"),
    )


def odd_name(draw: random.Random, one: Request) -> None:
    """Send headers that change who asks, or that no parser should take."""
    names = (b"X-Api-Key: sk-1", b"api-key: sk-2", b"OpenAI-Organization: o", b"Via: 1.1 x")
    odd = (
        b"H\xc3\xa4: 1",
        b"X-Y: \xff\xfe",
        b"X\x00: 1",
        b"X-Y: a\x00b",
        b"(x): 1",
        b"\xef\xbb\xbfX: 1",
    )
    _insert(draw, one, *names, *odd, b"Host: other", b"Content-Type: text/plain", b"@: 1")


def huge(draw: random.Random, one: Request) -> None:
    """Send a head near or above what is taken."""
    if draw.random() < 0.5:
        _insert(draw, one, b"X-Big: " + b"a" * draw.choice((7800, 8100, 8300, 32768, 40000)))
    else:
        one.lines += [b"X-%d: 1" % number for number in range(draw.choice((90, 97, 110, 126, 140)))]


def large(draw: random.Random, one: Request) -> None:
    """Send a body that takes several reads, or more than is read before it is parsed."""
    one.body += b" " * draw.choice((66_000, 150_000, 1 << 20))


def drop_line(draw: random.Random, one: Request) -> None:
    """Leave a header out."""
    del one.lines[_line(draw, one)]


def change_body(draw: random.Random, one: Request) -> None:
    """Change bytes of the body, or its white space."""
    at = draw.randrange(len(one.body))
    piece = draw.choice((b" ", b"\n", b"0", b'"', b"\xff", b"\x00", b"}", b"\r\n\r\n", b"{"))
    one.body = one.body[:at] + piece + one.body[at + draw.randrange(2) :]


def chunked(draw: random.Random, one: Request) -> None:
    """Send the body in chunks, rightly or not, perhaps beside a length."""
    words = (
        *(b"chunked", b"chunked", b"chunked", b"Chunked", b"xchunked", b" chunked", b"chunked "),
        *(b"\tchunked", b"\x0bchunked", b"chunked, identity", b"identity", b"gzip, chunked"),
        *(b"chunked, chunked", b"chunked;q=1", b"'chunked'", b"", b"chunk", b"chunked\x00"),
    )
    names = (
        b"Transfer-Encoding",
        b"Transfer-Encoding",
        b"transfer-encoding",
        b"Transfer-Encoding ",
    )
    odd_names = (
        b"Transfer_Encoding",
        b"X: y\nTransfer-Encoding",
        b"Transfer-Encoding\t",
        b" Transfer-Encoding",
    )
    name = draw.choice((*names, *names, *odd_names))
    size = len(one.body)
    extension = draw.choice((b"", b"", b";a=b", b';a="b"', b" ;a", b";" + b"a" * 300, b";\n"))
    sizes = (b"%x", b"%x", b"%x", b"%X", b"0%x", b"0x%x", b"+%x", b" %x", b"%x ", b"-%x")
    line = draw.choice(sizes) % size + extension
    trailer = draw.choice(
        (b"", b"", b"X: 1\r\n", b"Content-Length: 5\r\n", b"Authorization: a\r\n")
    )
    coded = line + b"\r\n" + one.body + b"\r\n0\r\n" + trailer + b"\r\n"
    length = draw.choice((None, None, len(coded), size, 0, 4, 5))
    one.body = coded + draw.choice((b"", b"", HIDDEN, HEALTH))
    one.length = [name + b": " + draw.choice(words)]
    if length is not None:
        one.length.append(b"Content-Length: %d" % length)
        draw.shuffle(one.length)


def hide(draw: random.Random, one: Request) -> None:
    """Hide a request behind the end of this one, as one of two parsers would find it."""
    hidden = draw.choice((HIDDEN, HEALTH, HEALTH[:20]))
    size = len(one.body)
    match draw.randrange(5):
        case 0:  # CL.TE
            one.body = b"0\r\n\r\n" + hidden
            one.length = [b"Content-Length: %d" % len(one.body), b"Transfer-Encoding: chunked"]
        case 1:  # TE.CL
            one.body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(hidden), hidden)
            one.length = [b"Content-Length: 4", b"Transfer-Encoding: chunked"]
        case 2:  # CL.0
            one.length = [b"Content-Length: %d" % (size + len(hidden))]
            one.body += hidden
        case 3:  # CL.CL
            one.length = [
                b"Content-Length: %d" % size,
                b"Content-Length: %d" % (size + len(hidden)),
            ]
            draw.shuffle(one.length)
            one.body += hidden
        case _:  # within a header's value
            _insert(draw, one, b"X: 1\n\n" + hidden, b"X: 1\r\r" + hidden, b"X: 1\n" + hidden)


MUTATIONS: tuple[Callable[[random.Random, Request], None], ...] = (
    *(repeat_line, repeat_length, odd_length, wrong_length, no_length, change_case, fold),
    *(odd_space, odd_line_end, odd_target, odd_version, odd_method, connection, expect),
    *(directive, coding, neutral, neutral, odd_name, huge, large, drop_line, change_body, chunked),
    *(chunked, hide, hide),
)


def _mutated(draw: random.Random, lane: int) -> tuple[bytes, str]:
    one = plain(draw, lane)
    names = []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        change = draw.choice(MUTATIONS)
        if one.lines and one.body:
            change(draw, one)
            names.append(change.__name__)
    data = one.join()
    if draw.random() < 0.15:
        data = _damaged(draw, data)
        names.append("damaged")
    return data, "+".join(names)


def _damaged(draw: random.Random, data: bytes) -> bytes:
    """Return bytes with a few changes that know nothing of HTTP."""
    out = bytearray(data)
    pieces = (b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b"0", b"\x00", b"\xff", b"POST / HTTP/1.1")
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(out) + 1)
        match draw.randrange(4):
            case 0:
                out[at:at] = draw.choice(pieces)
            case 1:
                del out[at : at + draw.randrange(1, 9)]
            case 2 if at < len(out):
                out[at] ^= 1 << draw.randrange(8)
            case _:
                begin = draw.randrange(len(out) + 1)
                out[at:at] = out[begin : begin + 80]
    return bytes(out)


def _cut(draw: random.Random, data: bytes, most: int) -> tuple[bytes, ...]:
    """Cut it at up to so many places."""
    cuts = sorted({draw.randrange(1, len(data)) for _ in range(draw.randrange(most + 1))})
    ends = (*cuts, len(data))
    return tuple(data[begin:end] for begin, end in zip((0, *cuts), ends, strict=True))


def every_split(data: bytes) -> list[Exchange]:
    """Return a request in two writes, for each place between two of its bytes."""
    return [Exchange((data[:at], data[at:]), f"split at {at}") for at in range(1, len(data))]


def exchange(draw: random.Random, lane: int) -> Exchange:
    """Return what a client sends next."""
    kind = draw.random()
    if kind < 0.25:
        data = plain_request(draw, lane)
        return Exchange(_cut(draw, data, draw.choice((0, 1))), "plain", clean=True)
    if kind < 0.30:
        slow = plain(draw, lane)
        slow.body = slow.body.replace(b"Question", b"%d" % draw.randrange(1 << 40))
        pieces = (slow.join(), *(plain_request(draw, lane) for _ in range(draw.choice((1, 2)))))
        return Exchange(pieces, "plain behind a slow one", clean=True, hurried=True)
    if kind < 0.35:
        data = b"".join(plain_request(draw, lane) for _ in range(draw.choice((2, 2, 3))))
        return Exchange(_cut(draw, data, draw.choice((0, 1, 2))), "plain pair", clean=True)
    if kind < 0.85:
        data, names = _mutated(draw, lane)
        return Exchange(_cut(draw, data, draw.choice((0, 0, 1, 3))), names)
    first, names = _mutated(draw, lane)
    other = plain_request(draw, lane)
    if draw.random() < 0.5:
        data, names = other + first, f"plain, {names}"
    else:
        data, names = first + other, f"{names}, plain"
    return Exchange(_cut(draw, data, draw.choice((0, 0, 1, 3))), names)
