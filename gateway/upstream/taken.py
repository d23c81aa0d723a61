"""What of that which the gateway adds each upstream takes, learned from how it answers.

Law: what is added fails no request. Where it may be why one is refused, that request is sent once
more without; is it answered then, the upstream is sent nothing of the kind for a while, model by
model. Not for good: servers are updated.
"""

from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from typing import NamedTuple

from gateway.prompts.hints.hints import FIELD
from gateway.upstream.request import LONGEST_MODEL, MOST_MODELS
from policies.hints import MARKS

KNOWN_SECONDS = 600.0


class Added(Enum):
    """What a server may refuse that the client did not ask for."""

    USAGE = "stream_options"
    HINTS = "hints"
    VOLATILE = "a turn with volatile values"
    """The user's turn with volatile values, before the last one."""


NOTHING: frozenset[Added] = frozenset()

_NAMES = {
    Added.USAGE: (b"stream_options",),
    Added.HINTS: (
        FIELD.encode(),
        b"prompt_cache_retention",
        *(mark.encode() for mark in MARKS),
    ),
    Added.VOLATILE: (b"alternat", b"successive", b"consecutive", b"interleav", b"in a row"),
}
"""How servers name it; of a turn, what templates say that insist on user and assistant in turn."""
_REFUSALS = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})
_FAULT = HTTPStatus.INTERNAL_SERVER_ERROR
"""What llama.cpp says where a template raises."""


class Taker(NamedTuple):
    """Who takes or refuses something: not all models of a server are alike."""

    upstream: str
    model: str


@dataclass(slots=True)
class Taken:
    """What is known, by model: of an upstream and what is added if it takes it, and until when."""

    _known: dict[str, dict[tuple[str, Added], tuple[bool, float]]] = field(default_factory=dict)
    _listened: dict[str, float] = field(default_factory=dict)

    def listens(self, model: str, now: float) -> bool:
        """Tell whether a stream of the model is to be sent without the wish for usage.

        The first is, once in a while: its upstream may report usage unasked (``note_unasked``).
        """
        if now < self._listened.get(model, now) or len(model) > LONGEST_MODEL:
            return False
        self._listened.pop(model, None)
        if len(self._listened) >= MOST_MODELS:
            del self._listened[next(iter(self._listened))]
        self._listened[model] = now + KNOWN_SECONDS
        return True

    def note_unasked(self, who: Taker, now: float) -> None:
        """Note that usage comes unasked: it is the client's then, and need not be asked for."""
        self.note(who, frozenset({Added.USAGE}), now, takes=False)

    def refused(self, model: str, now: float) -> dict[str, frozenset[Added]]:
        """Return the upstreams that are not sent something for the model, and what."""
        found: dict[str, frozenset[Added]] = {}
        for (upstream, added), (takes, until) in self._known.get(model, {}).items():
            if not takes and now < until:
                found[upstream] = found.get(upstream, NOTHING) | {added}
        return found

    def suspects(
        self, who: Taker, sent: frozenset[Added], status: int, answer: bytes, now: float
    ) -> frozenset[Added]:
        """Return what of that which was sent may be why the request was refused.

        That is what the answer names; else what is not known to be taken there. A fault of the
        server's own is that of what it names, or of the wish for usage.
        """
        if not sent or status not in (*_REFUSALS, _FAULT):
            return NOTHING
        said = answer.lower()
        named = frozenset(added for added in sent if any(name in said for name in _NAMES[added]))
        suspected = named or self._new(who, sent, now)
        if status != _FAULT:
            return suspected
        return suspected & ({Added.VOLATILE, Added.USAGE} if named else {Added.USAGE})

    def _new(self, who: Taker, sent: frozenset[Added], now: float) -> frozenset[Added]:
        return frozenset(added for added in sent if not self._takes(who, added, now))

    def doubt(self, who: Taker, added: frozenset[Added], now: float) -> None:
        """Note what may be why a fault was answered that nobody has read."""
        self.note(who, self._new(who, added - {Added.HINTS}, now), now, takes=False)

    def note(self, who: Taker, added: frozenset[Added], now: float, *, takes: bool) -> None:
        """Note what an upstream takes, or refuses."""
        if not added or len(who.model) > LONGEST_MODEL:
            return
        known = self._known.get(who.model)
        if known is None:
            if len(self._known) >= MOST_MODELS:
                del self._known[next(iter(self._known))]
            known = self._known[who.model] = {}
        known.update(((who.upstream, each), (takes, now + KNOWN_SECONDS)) for each in added)

    def _takes(self, who: Taker, added: Added, now: float) -> bool:
        takes, until = self._known.get(who.model, {}).get((who.upstream, added), (False, now))
        return takes and now < until
