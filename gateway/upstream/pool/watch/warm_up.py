"""A fresh replica computes the most used prompt prefixes before it gets client requests.

Laws:
- The record is bounded in number and bytes. A text is stored only at its prefix's second use, and
  a prefix ends before the first user turn. Old uses count less.
- A warm-up is bounded in time and number, and takes nothing from clients: it has the lowest
  priority, counts against the replica's limits, and stops if no other replica could answer. A fault
  ends it and excludes no replica; a refused prefix is not sent again.
- No client's credential is used, and requests that may not be stored are not recorded.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from hashlib import blake2b
from http import HTTPStatus
from typing import Any, NamedTuple

import orjson
from cachetools import FIFOCache

from gateway.prompts.rewrite.text_rules import INSTRUCTING
from gateway.protocol.errors import UpstreamError
from gateway.upstream.pool.prefix_chain import PromptChains
from gateway.upstream.pool.table import PoolTable
from gateway.upstream.request import OF_A_CLIENT, SALT, Outgoing, own_fields
from gateway.upstream.wire.http_client import HttpUpstream
from policies.decision import Endpoint

log = logging.getLogger(__name__)

LEAST_BYTES = 1024
LONGEST_BYTES = 2**18
MOST_BYTES = 2**23
"""Of all texts together."""
MOST_TEXTS = 64
MOST_COUNTED = 4096
"""Beginnings that are counted."""
HALF_LIFE = 3600.0
"""Seconds after which a use counts half."""

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
_USER_TURN = {"role": "user", "content": "."}


class WarmPrefix(NamedTuple):
    """A request that computes a beginning and next to nothing else; ``raw`` is its JSON.

    ``scope`` belongs to its clients.
    """

    digest: bytes
    model: str
    raw: bytes
    scope: bytes


class WarmPrefixes:
    """Counts beginnings, and keeps the most used texts."""

    def __init__(self, *, most: int = MOST_TEXTS, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._uses: FIFOCache[bytes, tuple[float, float]] = FIFOCache(MOST_COUNTED)
        """The uses of each prefix, decayed over time, and the time of its last use."""
        self._prefixes: dict[bytes, WarmPrefix] = {}
        self._bytes = 0

    def note(self, endpoint: Endpoint, body: dict[str, Any], scope: bytes, now: float) -> None:
        """Count a request as it was sent."""
        beginning = _prefix_request(endpoint, body)
        if beginning is None:
            return
        try:
            raw = orjson.dumps(beginning)
        except TypeError:  # an integer of more than 64 bits, or text that is no Unicode
            return
        if not LEAST_BYTES <= len(raw) <= LONGEST_BYTES:
            return
        digest = blake2b(scope + raw, digest_size=16).digest()
        is_repeated = digest in self._uses
        self._uses[digest] = (self._worth(digest, now) + 1.0, now)
        if is_repeated and digest not in self._prefixes:
            self._keep(WarmPrefix(digest, str(beginning.get("model") or ""), raw, scope), now)

    def worth_most(self, now: float) -> list[WarmPrefix]:
        """Return the stored prefixes; the one that saves the most prompt bytes is first."""
        return sorted(
            self._prefixes.values(), key=lambda one: -self._worth(one.digest, now) * len(one.raw)
        )

    def drop(self, digest: bytes) -> None:
        """Forget a prefix, for example one that a replica refused."""
        self._uses.pop(digest, None)
        dropped = self._prefixes.pop(digest, None)
        if dropped is not None:
            self._bytes -= len(dropped.raw)

    def _keep(self, prefix: WarmPrefix, now: float) -> None:
        self._prefixes[prefix.digest] = prefix
        self._bytes += len(prefix.raw)
        while len(self._prefixes) > self._most or self._bytes > self._most_bytes:
            least = min(self._prefixes, key=lambda digest: self._worth(digest, now))
            self._bytes -= len(self._prefixes.pop(least).raw)

    def _worth(self, digest: bytes, now: float) -> float:
        uses, at = self._uses.get(digest, (0.0, now))
        return float(uses * 0.5 ** ((now - at) / HALF_LIFE))


def _prefix_request(endpoint: Endpoint, body: dict[str, Any]) -> dict[str, Any] | None:
    """Return a request for one token that begins like this one; None where nothing is stable."""
    turns = body.get("messages")
    if endpoint is not Endpoint.CHAT or not isinstance(turns, list):
        return None
    leading: list[Any] = []
    for turn in turns:
        if not isinstance(turn, dict) or turn.get("role") not in INSTRUCTING:
            break
        leading.append(turn)
    if not leading and not body.get("tools"):
        return None
    request = {field: body[field] for field in _RENDERED if field in body}
    if body.get("tool_choice") == "none":  # some leave the tools out then
        request["tool_choice"] = "none"
    return {**request, "messages": [*leading, _USER_TURN], "max_tokens": 1, "temperature": 0}


SECONDS = 10.0
"""Of one warm-up."""
MOST = 32
"""Beginnings that one replica is sent."""


@dataclass(eq=False)
class WarmUp:
    """Records the prompts that are used, and sends them to fresh replicas.

    If ``own_credentials`` is set, no client's is passed on. ``on_warm`` counts prefixes.
    """

    upstreams: Mapping[str, HttpUpstream]
    table: PoolTable
    clock: Callable[[], float]
    _: KW_ONLY
    own_credentials: bool = False
    chains: PromptChains | None = None
    on_warm: Callable[[str], None] = lambda _name: None
    seconds: float = SECONDS
    prefixes: WarmPrefixes = field(default_factory=WarmPrefixes)

    def note(
        self, endpoint: Endpoint, body: dict[str, Any], headers: Mapping[str, str], scope: bytes
    ) -> None:
        """Record a request that was answered; ``headers`` are by lower-case name."""
        if self.own_credentials or not any(headers.get(name) for name in OF_A_CLIENT):
            self.prefixes.note(endpoint, body, scope, self.clock())

    async def warm(self, name: str) -> None:
        """Have a fresh upstream compute what is worth it. Raises nothing."""
        began, done = self.clock(), 0
        why = "all sent"
        try:
            async with asyncio.timeout(self.seconds):
                for prefix in self._due(name):
                    fault = await self._compute(name, prefix)
                    if fault is not None:
                        why = fault
                        break
                    done += 1
        except TimeoutError:
            why = "time is up"
        if done or why != "all sent":
            took = self.clock() - began
            log.info("upstream %s is warm: %d prefixes in %.1f s, %s", name, done, took, why)

    def _due(self, name: str) -> list[WarmPrefix]:
        """Return the prefixes that the upstream may be sent, in order."""
        return [
            prefix
            for prefix in self.prefixes.worth_most(self.clock())
            if self.table.can_be_spared(name, prefix.model, self.clock())
        ][:MOST]

    async def _compute(self, name: str, prefix: WarmPrefix) -> str | None:
        """Send one beginning; return what went wrong, if anything."""
        if not self.table.can_be_spared(name, prefix.model, self.clock()):
            return "it is needed, or has no room"
        self.table.count(name, self.clock())
        outgoing = Outgoing(Endpoint.CHAT.value, own_fields(()), prefix.raw, prefix.model)
        try:
            async with self.upstreams[name].send(outgoing) as reply:
                while await reply.read():
                    pass
        except UpstreamError as error:
            self.prefixes.drop(prefix.digest)
            return error.reason.value
        if reply.status != HTTPStatus.OK:
            self.prefixes.drop(prefix.digest)
            return f"status {reply.status}"
        self.on_warm(name)
        if self.chains is not None:
            chain = self.chains.of(Endpoint.CHAT, orjson.loads(prefix.raw), {}, scope=prefix.scope)
            self.table.record_prefix(name, chain)
        return None
