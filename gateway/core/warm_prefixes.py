"""Which beginnings of prompts a fresh replica should have in its cache, by recorded use.

Law: bounded in number and in bytes. A text is kept only once its beginning has come twice, and a
beginning ends before the first turn of a user's. What was used long ago counts less.
"""

from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from gateway.core.outbound import SALT
from gateway.core.types import Endpoint

LEAST_BYTES = 1024
LONGEST_BYTES = 2**18
MOST_BYTES = 2**23
"""Of all texts together."""
MOST_TEXTS = 64
MOST_MET = 4096
"""Beginnings that are counted."""
HALF_LIFE = 3600.0
"""Seconds after which a use counts half."""

_INSTRUCTING = frozenset({"system", "developer"})
_RENDERED = (
    "model",
    "tools",
    "functions",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    SALT,
)
"""What beside the turns a server may put into the prompt, or tells prompts apart by."""
_ASKED = {"role": "user", "content": "."}


class WarmPrefix(NamedTuple):
    """A request that computes a beginning and next to nothing else; ``raw`` is its JSON."""

    digest: bytes
    model: str
    raw: bytes

    @property
    def body(self) -> Any:
        """The request, parsed: kept is only its text, which is several times smaller."""
        return orjson.loads(self.raw)


@dataclass(slots=True)
class _Use:
    weight: float
    at: float

    def worth(self, now: float) -> float:
        return float(self.weight * 0.5 ** ((now - self.at) / HALF_LIFE))


class WarmPrefixes:
    """Counts beginnings, and keeps the texts of those that are used most."""

    def __init__(self, *, most: int = MOST_TEXTS, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._met: OrderedDict[bytes, _Use] = OrderedDict()
        self._kept: dict[bytes, WarmPrefix] = {}
        self._bytes = 0

    def note(self, endpoint: Endpoint, body: dict[str, Any], now: float) -> None:
        """Count a request as it was sent."""
        beginning = _beginning(endpoint, body)
        if beginning is None:
            return
        try:
            raw = orjson.dumps(beginning)
        except TypeError:  # an integer of more than 64 bits, or text that is no Unicode
            return
        if not LEAST_BYTES <= len(raw) <= LONGEST_BYTES:
            return
        digest = blake2b(raw, digest_size=16).digest()
        use = self._met.get(digest)
        if use is None:
            self._met[digest] = _Use(1.0, now)
            if len(self._met) > MOST_MET:
                self._met.popitem(last=False)
            return
        use.weight, use.at = use.worth(now) + 1.0, now
        self._met.move_to_end(digest)
        if digest not in self._kept:
            self._keep(WarmPrefix(digest, str(beginning.get("model") or ""), raw), now)

    def worth_most(self, now: float) -> list[WarmPrefix]:
        """Return what is kept, first what saves the most bytes of prompt."""
        return sorted(
            self._kept.values(), key=lambda one: -self._worth(one.digest, now) * len(one.raw)
        )

    def drop(self, digest: bytes) -> None:
        """Forget one, such as one that a replica could not take."""
        self._met.pop(digest, None)
        dropped = self._kept.pop(digest, None)
        if dropped is not None:
            self._bytes -= len(dropped.raw)

    def _keep(self, prefix: WarmPrefix, now: float) -> None:
        self._kept[prefix.digest] = prefix
        self._bytes += len(prefix.raw)
        while len(self._kept) > self._most or self._bytes > self._most_bytes:
            least = min(self._kept, key=lambda digest: self._worth(digest, now))
            self._bytes -= len(self._kept.pop(least).raw)

    def _worth(self, digest: bytes, now: float) -> float:
        use = self._met.get(digest)
        return 0.0 if use is None else use.worth(now)


def _beginning(endpoint: Endpoint, body: dict[str, Any]) -> dict[str, Any] | None:
    """Return a request for one token that begins like this one; None where nothing is stable."""
    turns = body.get("messages")
    if endpoint is not Endpoint.CHAT or not isinstance(turns, list):
        return None
    leading: list[Any] = []
    for turn in turns:
        if not isinstance(turn, dict) or turn.get("role") not in _INSTRUCTING:
            break
        leading.append(turn)
    if not leading and not body.get("tools"):
        return None
    kept = {field: body[field] for field in _RENDERED if field in body}
    if body.get("tool_choice") == "none":  # some leave the tools out then
        kept["tool_choice"] = "none"
    return {**kept, "messages": [*leading, _ASKED], "max_tokens": 1, "temperature": 0}
