"""What an engine's KV events say of its prefix cache as a whole: emptied, or as full as it gets.

Law: only counts are kept, and an id is one that can be sent back in a header. Which prompt a block
belongs to an engine's digests do not say to somebody without its tokens, and it would be worth
little (benchmarks/prefix_routing.py).
"""

import re
from dataclasses import dataclass

import orjson

from gateway.protocol.streaming.sse import Event

_FEWEST_BLOCKS = 64
"""Fewer that can be found are no measure of how many could be."""

_GROWTH = 1.1

_ID = re.compile(r"[!-~]{1,128}")
"""What can be sent back; the bundled engine's have some 20 bytes."""


@dataclass(frozen=True, slots=True)
class Emptied:
    """What was in the cache is gone: the engine started anew."""


@dataclass(frozen=True, slots=True)
class Full:
    """With so many tokens in it, the cache had to drop something."""

    tokens: int


class KvReader:
    """Takes the events of one engine, over all connections to it."""

    def __init__(self) -> None:
        self.position = ""
        """The last event's id, to be sent when the connection is made anew."""
        self._server = ""
        self._block_size = 0
        self._blocks = 0
        self._most = 0
        self._in_snapshot = False

    def take(self, event: Event) -> Emptied | Full | None:
        """Return what is new, if anything. Raises ValueError for what is no KV event."""
        if event.data is None:
            return None
        fields = _fields(event.raw)
        data = orjson.loads(event.data)
        if (told := fields.get("id")) is not None:
            self.position = told if _ID.fullmatch(told) else ""
        match fields.get("event"), data:
            case (
                "snapshot",
                {"blocks": list(blocks), "block_size": int(size), "more": bool(more)},
            ) if size > 0:
                return self._snapshot(len(blocks), size, more=more)
            case "stored", {"blocks": list(blocks)}:
                self._blocks += len(blocks)
                return None
            case "removed", dict():
                return self._removed()
            case "cleared", dict():
                self._blocks = 0
                return Emptied()
            case _:
                raise ValueError("not an event of a prefix cache")

    def disconnected(self) -> None:
        """Note that the connection ended: a snapshot that was begun does not go on."""
        self._in_snapshot = False

    def _snapshot(self, blocks: int, size: int, *, more: bool) -> Emptied | None:
        had = self._blocks
        self._blocks = (self._blocks if self._in_snapshot else 0) + blocks
        self._block_size, self._in_snapshot = size, more
        if more:
            return None
        before, self._server = self._server, self.position.partition("-")[0]
        is_another = bool(before and self._server) and before != self._server
        return Emptied() if is_another or (had and not self._blocks) else None

    def _removed(self) -> Full | None:
        found, self._blocks = self._blocks, max(0, self._blocks - 1)
        if found < max(_FEWEST_BLOCKS, self._most * _GROWTH):
            return None
        self._most = found
        return Full(found * self._block_size)


def _fields(raw: bytes) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in raw.splitlines():  # of bytes: at LF, CR and CRLF alone
        name, _, value = line.partition(b":")
        if name in (b"id", b"event"):
            fields[name.decode()] = value.removeprefix(b" ").decode("utf-8", "replace")
    return fields
