"""A streamed answer: its server-sent events, the bytes for clients, and the complete result.

The decoder follows the WHATWG event stream grammar where servers use it. Any of LF, CRLF and CR
ends a line, several data lines join with LF, and comments and other fields stay in the raw bytes
only. The end of an event does not depend on how the stream was cut into reads.

Every event reaches a client unchanged, except for usage that this client did not request. Law:
nothing that an upstream sends stops the stream; an answer with unknown parts is only not stored.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import orjson

from gateway.protocol.errors import RequestError, is_anthropic
from gateway.protocol.exact_json import dumps, loads
from gateway.protocol.http.cache_status import Reason

DONE = b"[DONE]"
_END_OF_EVENT = b"\n\n"
# Atomic, so that CRLF is never taken for two ends of line.
_ANY_END_OF_EVENT = re.compile(rb"(?>\r\n|\n|\r){2}")
_LINE = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"
_NO_USAGE = b',"usage":null}\n\n'
_PLAIN_TEXT = re.compile(rb'[^"\\\x00-\x1f]*')
"""The inside of a JSON string without escapes."""
_TEXTS = re.compile(rb'(?:[^"\\\x00-\x1f]+|\\.|\n)*+')
"""The insides of JSON strings, with a line break between two of them."""


class EventTooLargeError(ValueError):
    """An event did not end within the limit."""


class UnknownShapeError(ValueError):
    """The events do not merge into a result that could be rendered again."""


class Event(NamedTuple):
    """One event: its data (None if missing or empty) and its original bytes."""

    data: bytes | None
    raw: bytes


class Run(NamedTuple):
    """Events that are alike: their bytes, the insides of their texts in JSON, and the texts.

    ``plain`` says that no text has an escape. Then ``texts`` has all of them joined.
    """

    raw: bytes
    parts: Sequence[bytes | bytearray]
    texts: list[str]
    plain: bool


class Pattern(NamedTuple):
    """An event of which only one text changes: the bytes before and behind the text.

    ``texts`` takes the texts of events that are alike. ``null_usage`` says that they have a
    ``usage`` of null.
    """

    before: bytes
    behind: bytes
    texts: list[str]
    null_usage: bool

    def run(self, data: bytes | bytearray, start: int, searched: int, *, many: bool) -> Run | None:
        """Return the events from ``start`` on that are alike, up to the last one or one alone.

        Return None if others are among them. No event ends before ``searched``.
        """
        before, behind = self.before, self.behind
        if not data.startswith(before, start):
            return None
        first = start + len(before)
        begin = max(first, searched - len(behind))
        end = data.rfind(behind, begin) if many else data.find(behind, begin)
        if end < 0:
            return None
        parts = data[first:end].split(behind + before)
        joined = b"".join(parts)
        plain = _PLAIN_TEXT.fullmatch(joined) is not None
        try:
            if plain and joined.isascii():
                texts = [joined.decode()]
            elif plain:  # a character that is cut between two events is none
                texts = [part.decode() for part in parts]
            else:
                if _TEXTS.fullmatch(b"\n".join(parts)) is None:
                    return None
                texts = orjson.loads(b'["' + b'","'.join(parts) + b'"]')
        except ValueError:
            return None
        return Run(bytes(data[start : end + len(behind)]), parts, texts, plain)


def pattern_of(
    name: bytes, text: str, raw: bytes, texts: list[str], *, null_usage: bool = False
) -> Pattern | None:
    """Return the pattern of an event whose field has this text; the name is there once.

    ``raw`` has no escapes.
    """
    encoded = text.encode("utf-8", "surrogatepass")
    for start in (b'"' + name + b'":"', b'"' + name + b'": "'):
        before, found, behind = raw.partition(start + encoded + b'"')
        # Behind a CR, the LF of a CRLF may follow.
        if found and behind.endswith(_NO_USAGE if null_usage else b"\n"):
            return Pattern(before + start, b'"' + behind, texts, null_usage)
    return None


Piece = tuple[bytes, bytes]
"""The bytes for clients: with usage, and without. Both are one object if they are equal."""


@dataclass(slots=True, kw_only=True)
class Decoder:
    """Cuts a byte stream into events, however the stream was split into reads."""

    max_event_bytes: int = 16 * 2**20
    pattern: Pattern | None = None
    """What the next events may be like."""
    _buffer: bytearray = field(default_factory=bytearray)

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that ``chunk`` completes, if there is no pattern. Raises as ``cut``."""
        return [event for event in self.cut(chunk) if isinstance(event, Event)]

    def cut(self, chunk: bytes) -> Iterator[Event | Run]:
        """Yield the events that ``chunk`` completes; events like the pattern come together.

        The pattern may change meanwhile. Raises EventTooLargeError, before it yields any, when an
        unfinished event outgrows the limit.
        """
        buffer = self._buffer
        text: bytes | bytearray = chunk
        search = start = 0
        if buffer:
            # An event's end may straddle two reads: look again at the last three bytes.
            search = max(0, len(buffer) - 3)
            buffer += chunk
            text = buffer
        size = len(text)
        if size > self.max_event_bytes:
            self._check_rest(text, search)
        only_lf = text.find(b"\r", search) < 0  # then there is a search that is much faster
        many = True
        while start < size:
            found: Event | Run | None = None
            if self.pattern is not None:
                found = self.pattern.run(text, start, search, many=many)
                if found is None and many:
                    many = False
                    continue
            found = found or _next_event(text, start, search, only_lf=only_lf)
            if found is None:
                break
            yield found
            start = search = start + len(found.raw)
        if text is buffer:
            del buffer[:start]
        elif start < size:
            buffer += text[start:]

    def _check_rest(self, text: bytes | bytearray, search: int) -> None:
        """Raise EventTooLargeError if too much would be left behind the last whole event."""
        last = 0
        for found in _ANY_END_OF_EVENT.finditer(text, search):
            if found.end() < len(text) or not text.endswith(b"\r"):
                last = found.end()
        if len(text) - last > self.max_event_bytes:
            raise EventTooLargeError(f"an event of over {self.max_event_bytes} bytes")

    def end(self) -> Event | None:
        """Return what the stream ended with if that is no whole event, else None.

        The standard drops such a rest; but servers exist that leave out the last blank line.
        """
        raw = bytes(self._buffer)
        self._buffer.clear()
        return _event(raw) if raw else None


def _next_event(text: bytes | bytearray, start: int, search: int, *, only_lf: bool) -> Event | None:
    """Return the event at ``start`` if it has ended, which is behind ``search``."""
    if only_lf:
        end = text.find(_END_OF_EVENT, search) + 2
        if end < 2:
            return None
    else:
        found = _ANY_END_OF_EVENT.search(text, search)
        if found is None or (found.end() == len(text) and text.endswith(b"\r")):
            return None  # the LF of a CRLF may be in the next read
        end = found.end()
    raw = bytes(text[start:end])
    # Nearly every event is one line of data.
    if raw.startswith(b"data: ") and raw.find(b"\n") == len(raw) - 2 and b"\r" not in raw:
        return Event(raw[6:-2] or None, raw)
    # Or it has a type before that line.
    if (
        raw.startswith(b"event: ")
        and raw.startswith(b"data: ", line := raw.find(b"\n") + 1)
        and raw.find(b"\n", line) == len(raw) - 2
        and b"\r" not in raw
    ):
        return Event(raw[line + 6 : -2] or None, raw)
    return _event(raw)


def _event(raw: bytes) -> Event:
    data = []
    for line in _LINE.split(raw.removeprefix(_BOM)):
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
    return Event(b"\n".join(data) or None, raw)


def _is_whole(event: Event) -> bool:
    """Tell whether an event without a blank line behind it was nevertheless sent to its end."""
    data = event.data
    if data is None or data == DONE:
        return data is not None
    try:
        loads(data)
    except orjson.JSONDecodeError:
        return False
    return True


def encode(data: bytes) -> bytes:
    """Return one event; ``data`` is JSON on one line, or DONE."""
    return b"data: " + data + _END_OF_EVENT


def encode_event(kind: str, data: dict[str, Any]) -> bytes:
    """Return one event that has a type. Raises TypeError if its data is nested too deeply."""
    return b"event: " + kind.encode() + b"\n" + encode(dumps({"type": kind, **data}))


@dataclass(slots=True, kw_only=True)
class StreamedAnswer(ABC):
    """Follows the events of one stream: the bytes to pass on, and the complete result."""

    strips_usage: ClassVar[bool] = True
    """Whether clients that did not request usage get the events without it."""

    assemble: bool
    """Whether the complete result is wanted."""
    max_bytes: int
    """The number of bytes of events to assemble, from now on."""
    on_event: Callable[[dict[str, Any]], None] | None = None
    """See ``Follow``."""
    usage: Any = None
    error: bytes | None = None
    """The upstream's own error event."""
    over: bool = False
    """Whether nothing is to come any more, an answer or not."""
    done: bool = False
    """Whether the event that ends the stream has come."""
    ended: bool = False
    """Whether the upstream ended the stream: all of the answer has come, an error, or [DONE]."""
    _unfit: Reason | None = None
    """Why there is no result to store."""
    _spoke: bool = False
    """Whether anything but usage has come."""
    _decoder: Decoder = field(default_factory=Decoder)

    def feed(self, data: bytes) -> tuple[Piece, Piece | None]:
        """Take the next bytes. Return the bytes to send now, and those after the answer is stored.

        The latter is None, unless these bytes bring the answer's end. Raises EventTooLargeError.
        """
        return self._pass_all(self._decoder.cut(data))

    def end(self) -> tuple[Piece, Piece | None]:
        """Take the stream's end, and return as ``feed`` does."""
        last = self._decoder.end()
        if last is None:
            return (b"", b""), None
        if not _is_whole(last):  # a client would fail to parse what was cut
            self._unfit, self._spoke = Reason.UNCLEAN, True
            return (b"", b""), None
        now, once_stored = self._pass_all([last])
        if self.error is not None or not self.ended:  # the error event must stand by itself
            blank_line = (_END_OF_EVENT, _END_OF_EVENT)
            if once_stored is not None:
                return now, _join([once_stored, blank_line])
            now = _join([now, blank_line])
        return now, once_stored

    def _pass_all(self, events: Iterable[Event | Run]) -> tuple[Piece, Piece | None]:
        now: list[Piece] = []
        once_stored: list[Piece] | None = None
        for event in events:
            was_done = self.done
            piece = self.pass_on(event) if isinstance(event, Event) else self._pass_run(event)
            if self.done and not was_done:
                once_stored = []
            (now if once_stored is None else once_stored).append(piece)
        return _join(now), None if once_stored is None else _join(once_stored)

    def pass_on(self, event: Event) -> Piece:
        """Return the bytes that clients get for this event, with usage and without."""
        data, raw = event
        if data is None or self.done:  # nothing that follows the end is part of the answer
            return raw, raw
        self._decoder.pattern = None
        if data == DONE:
            return self._pass_done(raw)
        try:
            chunk = loads(data)
        except orjson.JSONDecodeError:
            chunk = data
        if not isinstance(chunk, dict):  # a null says nothing: it keeps the connection alive
            self._unfit = self._unfit if chunk is None else Reason.UNCLEAN
            self._spoke = self._spoke or chunk is not None
            return raw, raw
        self._spoke = self._spoke or chunk.get("choices") != []
        if self.on_event is not None:
            self.on_event(chunk)
        if chunk.get("error") is not None or chunk.get("type") == "error":
            self._unfit, self.error, self.ended = Reason.UNCLEAN, data, True
            return raw, raw
        try:
            self._read(chunk, raw, merges=self._takes(raw))
        except (UnknownShapeError, RecursionError):
            self._unfit = Reason.UNKNOWN_SHAPE
        strips = self.strips_usage and "usage" in chunk
        return raw, _without_usage(chunk, raw) if strips else raw

    def _pass_run(self, run: Run) -> Piece:
        raw, pattern = run.raw, self._decoder.pattern
        if pattern is None:
            raise AssertionError("alike to nothing")
        if self._takes(raw):
            pattern.texts.extend(run.texts)
        return raw, raw.replace(_NO_USAGE, b"}\n\n") if pattern.null_usage else raw

    def _takes(self, raw: bytes) -> bool:
        """Tell whether an event is to be part of the result, and count its bytes."""
        if not self.assemble or self._unfit is not None:
            return False
        self.max_bytes -= len(raw)
        if self.max_bytes < 0:
            self.give_up()
            return False
        return True

    def give_up(self) -> None:
        """Assemble no result: it is too large. What was assembled is dropped."""
        self._unfit, self._decoder.pattern = self._unfit or Reason.TOO_LARGE, None
        self._drop()

    def _pass_done(self, raw: bytes) -> Piece:
        self.over = True
        if not self._spoke:  # without any content it is no answer's end
            return b"", b""
        self.done = self.ended = True
        last = raw if self.error is None else b""  # what failed ends without [DONE]
        return last, last

    @abstractmethod
    def _read(self, chunk: dict[str, Any], raw: bytes, *, merges: bool) -> None:
        """Merge an event into the result; ``raw`` are its bytes. Raises UnknownShapeError.

        May set the decoder's pattern to what the next event may be like.
        """

    @abstractmethod
    def _drop(self) -> None: ...
    @abstractmethod
    def result(self) -> dict[str, Any] | Reason: ...


def _join(pieces: list[Piece]) -> Piece:
    if len(pieces) == 1:
        return pieces[0]
    full = b"".join([full for full, _ in pieces])
    if all(without_usage is full for full, without_usage in pieces):
        return full, full
    return full, b"".join([without_usage for _, without_usage in pieces])


def _without_usage(chunk: dict[str, Any], raw: bytes) -> bytes:
    """Return the event without the usage that only the gateway requested.

    Some servers report usage unrequested, beside a choice: there it stays.
    """
    if chunk["usage"] is not None:
        return raw if chunk.get("choices") else b""
    if raw.endswith(_NO_USAGE):  # the last member of the chunk itself, since the brace ends it
        return raw[: -len(_NO_USAGE)] + b"}\n\n"
    rest = {name: value for name, value in chunk.items() if name != "usage"}
    try:
        return encode(dumps(rest))
    except TypeError:  # nested deeper than orjson prints
        return raw


def failure_event(fault: Exception, path: str = "") -> bytes:
    """Return the event that tells a client why its stream ends early, as its path has it."""
    if not isinstance(fault, RequestError):
        message = "The gateway had an internal error while it streamed the answer."
        fault = RequestError(500, message, kind="server_error", code=Reason.INTERNAL.value)
    event = encode(orjson.dumps(fault.body(path)))
    return b"event: error\n" + event if is_anthropic(path) else event
