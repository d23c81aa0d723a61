"""How fast each replica computes prompts, by its streams: when a plain reply's should be computed.

Law: a stream's first byte tells that its prompt is computed. A plain reply's comes when all of the
answer is, so who waits behind one goes by the clock.
"""

from gateway.core.routing import Sent

LEAST_BLOCKS = 8
"""Of fewer the time says little."""
SLOWER = 2.0
"""So many times the time that was seen before is waited for."""
_NEWEST = 0.3
"""What the newest counts for."""


class Pace:
    """Seconds a block at each replica, its queue included."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def go(self, sent: Sent, now: float) -> None:
        """Note that it is really sent, and when its prompt should be computed."""
        sent.went = now
        pace = self._seconds.get(sent.name)
        if pace is not None and not sent.streamed:
            sent.computed_by = now + SLOWER * pace * sent.blocks

    def first_token(self, sent: Sent, now: float) -> None:
        """Note its first byte."""
        if not sent.streamed or sent.blocks < LEAST_BLOCKS:
            return
        seen = (now - sent.went) / sent.blocks
        before = self._seconds.get(sent.name, seen)
        self._seconds[sent.name] = before + _NEWEST * (seen - before)
