"""The body of a request that passes through: what was read of it, and the rest as it comes."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import orjson

from gateway.prompts.json_splice import Edit, Span, splice
from gateway.protocol.http.headers import Fields


@dataclass(frozen=True, slots=True)
class PassedBody:
    """A body of ``length`` bytes, None if that is not known. The ``rest`` can be sent once.

    ``first`` was read. The name of its ``model`` stands there at these ``places``, as JSON or as
    the text of a form's field.
    """

    first: bytes = b""
    rest: AsyncIterator[bytes] | None = None
    length: int | None = None
    model: str = ""
    places: Sequence[Span] = ()
    is_json: bool = False

    def sent(self, model: str | None) -> tuple[Fields, AsyncIterator[bytes]]:
        """Return the framing and the pieces; a given ``model`` replaces the name in the body."""
        first, length = self.first, self.length
        if model is not None and self.places:
            name = orjson.dumps(model) if self.is_json else model.encode()
            first = splice(first, [Edit(start, end, name) for start, end in self.places])
            length = None if length is None else length + len(first) - len(self.first)
        framing = () if length is None else (("Content-Length", str(length)),)
        return framing, self._pieces(first)

    async def _pieces(self, first: bytes) -> AsyncIterator[bytes]:
        if first:
            yield first
        if self.rest is not None:
            async for piece in self.rest:
                yield piece
