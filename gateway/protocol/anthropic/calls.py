"""The tool calls of a chat completion, in whichever form a server sends them.

Laws:
- A piece belongs to the call of its index, else of its id, else to the last one. Another id with a
  name begins another call. So does a name behind a whole call, unless it only repeats the call's.
- A call without an id gets one that follows from its place in the conversation. No two calls of an
  answer share an id.
- What a call has for its server alone travels in its id, because clients send an id back unchanged.
  Gemini, for one, refuses the next turn without its signature.
"""

import hashlib
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.protocol import exact_json

EXTRAS = ("extra_content", "thought_signature", "provider_specific_fields")
"""Members of a call that its server wants back: Gemini's, or a proxy's in front."""
_MARK = "__extra_content__"
"""Between an id and the extra content. Anthropic allows these letters in ids."""
MAX_EXTRA_BYTES = 2**16
INVALID = "invalid_arguments"
"""The field of a message with a call whose arguments are no object: its input has their text."""


def with_extra(call_id: str, extra: dict[str, Any]) -> str:
    """Return an id that carries these members, if there are some and they are not too large."""
    if not extra:
        return call_id
    data = exact_json.dumps(extra)
    if len(data) > MAX_EXTRA_BYTES:
        return call_id
    return f"{call_id}{_MARK}{urlsafe_b64encode(data).decode().rstrip('=')}"


def split_id(call_id: Any) -> tuple[Any, dict[str, Any] | None]:
    """Return the server's own id of a call, and what it carries, None if that is nothing."""
    if not isinstance(call_id, str):
        return call_id, None
    given, mark, data = call_id.rpartition(_MARK)
    if not mark:
        return call_id, None
    try:
        carried = orjson.loads(urlsafe_b64decode(data + "=" * (-len(data) % 4)))
    except ValueError:
        return call_id, None
    if not isinstance(carried, dict) or not carried.keys() <= set(EXTRAS):
        return call_id, None
    return given, carried


_BRACES = re.compile(r'\\.|["{}]', re.DOTALL)


@dataclass(slots=True)
class _Braces:
    """Looks for the end of an object in pieces; each piece is looked at once."""

    closed: bool = False
    """Whether the object has its last brace, and nothing came behind it."""
    _is_broken: bool = False
    _depth: int = 0
    _in_text: bool = False
    _rest: str = ""
    """An escape that is cut at the end of a piece."""

    def feed(self, piece: str) -> None:
        if self.closed and not piece.isspace():
            self.closed, self._is_broken = False, True
        if self._is_broken:
            return
        text = self._rest + piece
        self._rest = "\\" if (len(text) - len(text.rstrip("\\"))) % 2 else ""
        for found in _BRACES.finditer(text):
            match found[0]:
                case '"':
                    self._in_text = not self._in_text
                case "{" | "}" as brace if not self._in_text:
                    self._depth += 1 if brace == "{" else -1
                    self._is_broken = self._is_broken or self.closed
                    self.closed = self._depth == 0 and not self._is_broken


@dataclass(slots=True, eq=False)
class Call:
    """One call, as far as it has come."""

    id: str = ""
    name: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    is_begun: bool = False
    """Whether a client knows of it, with id and name."""
    _pieces: list[str] = field(default_factory=list)
    _read: int = 0
    """The number of pieces that ``unread`` has returned."""
    _braces: _Braces = field(default_factory=_Braces)
    _was_whole: bool | None = None
    """Whether the arguments were whole, if that is known and no more of them has come."""

    @property
    def may_begin(self) -> bool:
        """Whether all that a client must know first is there: arguments come last."""
        return bool(self.id and self.name and self._pieces)

    @property
    def arguments(self) -> str:
        return "".join(self._pieces)

    def is_whole(self) -> bool:
        """Tell whether the arguments are a whole object: no more of them can come."""
        if not self._braces.closed:
            return False
        if self._was_whole is None:
            try:
                self._was_whole = isinstance(orjson.loads(self.arguments), dict)
            except orjson.JSONDecodeError:
                self._was_whole = False
        return self._was_whole

    def unread(self, *, ended: bool = False) -> str:
        """Return the new text of the arguments. If they are no object, they wait for the end."""
        text = "".join(self._pieces[self._read :])
        if self._read or text.lstrip().startswith("{"):
            self._read = len(self._pieces)
            return text
        given = self.input() if ended else None
        return exact_json.dumps(given).decode() if given else ""

    @property
    def is_valid(self) -> bool:
        return self._object() is not None

    def input(self) -> dict[str, Any]:
        """Return the arguments; if they are no object, one with their text."""
        given = self._object()
        return {"arguments": self.arguments} if given is None else given

    def _object(self) -> dict[str, Any] | None:
        text = self.arguments.strip()
        try:
            given = exact_json.loads(text.encode() or b"{}")
        except (orjson.JSONDecodeError, UnicodeEncodeError):
            return None
        return {} if given is None else given if isinstance(given, dict) else None

    def take(self, piece: "_Piece", tools: frozenset[str]) -> None:
        self.id = self.id or piece.id
        self.extra |= piece.extra
        if piece.name and not (self.is_begun or (self.name and self._pieces)):
            self.name = _joined(self.name, piece.name, tools)
        if piece.arguments:
            self._pieces.append(piece.arguments)
            self._braces.feed(piece.arguments)
            if not piece.arguments.isspace():
                self._was_whole = None


@dataclass(slots=True, eq=False)
class _Piece:
    index: int | None
    id: str
    name: str
    arguments: str
    extra: dict[str, Any]


def _piece(entry: Any) -> _Piece | None:
    """Read an entry; None if it says nothing."""
    if not isinstance(entry, dict):
        return None
    function = entry.get("function")
    function = function if isinstance(function, dict) else {}
    index, name, given = entry.get("index"), function.get("name"), entry.get("id")
    arguments = function.get("arguments")
    if isinstance(arguments, dict):
        arguments = exact_json.dumps(arguments).decode()
    piece = _Piece(
        index if type(index) is int else None,
        given if isinstance(given, str) else "",
        name if isinstance(name, str) else "",
        arguments if isinstance(arguments, str) else "",
        {extra: entry[extra] for extra in EXTRAS if entry.get(extra)},
    )
    return piece if piece.id or piece.name or piece.arguments or piece.extra else None


def _joined(known: str, piece: str, tools: frozenset[str]) -> str:
    """Return a name that came in pieces, or again and again, or longer each time."""
    if not known or known + piece in tools:
        return known + piece
    return piece if piece.startswith(known) else known + piece


def _repeats(piece: _Piece, call: Call) -> bool:
    """Tell whether a server sends a call once more: it is not to be run twice."""
    same = bool(piece.id) and (piece.id, piece.name) == (call.id, call.name)
    return same and call.is_whole() and piece.arguments == call.arguments


_OVERHEAD = 64
"""Memory of a piece beside its text, estimated."""


@dataclass(slots=True)
class Calls:
    """The calls of one answer, in the order in which they began.

    ``tools`` are the names of the request's tools. ``seed`` tells this answer from others of its
    conversation.
    """

    tools: frozenset[str]
    seed: str
    calls: list[Call] = field(default_factory=list)
    _by_index: dict[int, Call] = field(default_factory=dict)
    _by_id: dict[str, Call] = field(default_factory=dict)
    _by_place: dict[int, Call] = field(default_factory=dict)
    """Calls of servers that name neither index nor id, by their place in a list."""
    _ids: set[str] = field(default_factory=set)
    size: int = 0
    """Of all that has come, in characters of arguments."""

    def take(self, said: dict[str, Any]) -> bool:
        """Take the pieces of calls in a delta; tell whether there are any."""
        entries = said.get("tool_calls")
        pieces = [_piece(entry) for entry in entries] if isinstance(entries, list) else []
        if isinstance(said.get("function_call"), dict):  # the form before tools
            pieces.append(_piece({"function": said["function_call"]}))
        several = len(pieces) > 1
        for place, piece in enumerate(pieces):
            if piece is None:
                continue
            call = self._call_of(piece, place if several else None)
            if call is not None and _repeats(piece, call):
                continue
            if call is None or self._begins_another(call, piece):
                call = Call()
                self.calls.append(call)
            if piece.index is not None:
                self._by_index[piece.index] = call
            if piece.id:
                self._by_id[piece.id] = call
            self._by_place[place] = call
            call.take(piece, self.tools)
            self.size += len(piece.arguments) + _OVERHEAD
        return any(pieces)

    def take_whole(self, said: dict[str, Any]) -> None:
        entries = said.get("tool_calls")
        entries = list(entries) if isinstance(entries, list) else []
        if isinstance(said.get("function_call"), dict):
            entries.append({"function": said["function_call"]})
        for piece in map(_piece, entries):
            if piece is not None:
                self.calls.append(Call())
                self.calls[-1].take(piece, self.tools)

    def _call_of(self, piece: _Piece, place: int | None) -> Call | None:
        if piece.index is not None:
            return self._by_index.get(piece.index)
        if piece.id and (piece.id in self._by_id or piece.name):
            return self._by_id.get(piece.id)
        if place is not None:
            return self._by_place.get(place)
        return self.calls[-1] if self.calls else None

    def _begins_another(self, call: Call, piece: _Piece) -> bool:
        if not piece.name:
            return False
        if piece.id and call.id and piece.id != call.id:
            return True  # some servers give all calls one index
        if call.is_whole():
            return bool(piece.arguments.strip()) or piece.name != call.name
        if piece.id and piece.id == call.id:
            return False
        both = {piece.name, call.name} <= self.tools and call.name + piece.name not in self.tools
        return both and piece.name != call.name and not piece.name.startswith(call.name)

    def marks(self) -> dict[str, Any]:
        """Return what a message says of calls that must not be stored."""
        return {} if all(call.is_valid for call in self.calls) else {INVALID: True}

    def begin(self, call: Call) -> dict[str, Any]:
        if not call.id or call.id in self._ids:
            number = self.calls.index(call)
            call.id = f"toolu_{hashlib.sha256(f'{self.seed}/{number}'.encode()).hexdigest()[:24]}"
        self._ids.add(call.id)
        call.is_begun = True
        only = next(iter(self.tools)) if len(self.tools) == 1 else ""
        name = call.name or only
        return {"id": with_extra(call.id, call.extra), "name": name, "input": {}}
