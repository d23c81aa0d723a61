"""A request in the form that suits each upstream: without what that one is known to refuse.

Law: what is left out costs a prefix hit or a figure, never an answer; the rest is sent as ever.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.protocol.endpoint import Endpoint
from gateway.protocol.usage import ask_for_usage
from gateway.upstream.exchange import Exchange
from gateway.upstream.taken import NOTHING, Added


@dataclass(frozen=True, slots=True)
class Version:
    """A request as it is sent; ``added`` is what of it may be refused, and can be left out."""

    exchange: Exchange
    raw: bytes
    added: frozenset[Added]
    usage: bool
    """Whether usage is asked for, by the client or the gateway."""


@dataclass(frozen=True, slots=True)
class Versions:
    """What is sent to any upstream, and in its place to some."""

    usual: Version
    others: Mapping[str, Version]

    def to(self, upstream: str) -> Version:
        """Return what is sent to an upstream."""
        return self.others.get(upstream, self.usual)

    @property
    def instead(self) -> dict[str, bytes]:
        """Return the bodies that are sent in place of the usual one."""
        return {name: version.raw for name, version in self.others.items()}


async def versions(
    exchange: Exchange, refused: Mapping[str, frozenset[Added]], dropped: frozenset[Added]
) -> Versions:
    """Return the versions for upstreams of which this is known; ``dropped`` goes to nobody."""
    made = {dropped: await _version(exchange, dropped)}
    others = {}
    for name, left_out in refused.items():
        without = left_out | dropped
        if without not in made:
            made[without] = await _version(exchange, without)
        others[name] = made[without]
    return Versions(made[dropped], others)


async def _version(exchange: Exchange, without: frozenset[Added]) -> Version:
    added = NOTHING
    if exchange.without_volatile is not None:
        if Added.VOLATILE in without:
            exchange = await exchange.without_volatile()
        else:
            added |= {Added.VOLATILE}
    if exchange.without_hints is not None:
        if Added.HINTS in without:
            exchange = exchange.without_hints
        else:
            added |= {Added.HINTS}
    as_asked = exchange.inbound.raw
    if Added.USAGE not in without and exchange.endpoint is not Endpoint.RESPONSES:
        raw, asks = ask_for_usage(exchange.body, as_asked)
        if asks:
            if "stream_options" not in exchange.body:  # else the client has to know them, too
                added |= {Added.USAGE}
            return Version(exchange, raw, added, usage=True)
    return Version(exchange, as_asked, added, usage=exchange.wants_usage)
