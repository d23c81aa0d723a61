"""What the gateway adds to a request, and what an upstream gets in place of that.

Laws:
- What the gateway adds fails no request (``tries``). An upstream that refuses an addition, and then
  answers the request without it, gets no such addition for a while.
- While the retry budget is empty, nothing is added that could be refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cachetools import TTLCache

from gateway.prompts.json_splice import Edit, Places, splice
from gateway.prompts.outcome import Rewrite
from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.http.messages import ALL_ADDITIONS, Addition
from gateway.upstream.request import MOST_MODELS, Exchange

REFUSED_SECONDS = 600.0
"""For so long an upstream gets no addition that it has refused."""
MOVED = "moved-values"
"""A turn of volatile values is no addition, but it is refused like one. This is its name."""

Accepts = Mapping[str, frozenset[Addition]]
"""Which additions each upstream accepts, by its declared name; one that is left out accepts all."""


NONE = frozenset[str]()
USAGE = frozenset({Addition.STREAM_USAGE.value, "stream_options"})
"""The usage of a stream, as an addition and as a field of a translation."""


@dataclass(eq=False)
class RefusedAdditions:
    """Which additions an upstream has refused, for a while; bounded. Not for threads.

    One client's requests may have another reason to be refused. So what is learned from a client
    holds for that client alone, and for one model.
    """

    clock: Callable[[], float]
    accepts: Accepts = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.differ = bool(self.accepts)
        """Whether some upstreams may not get everything."""
        self._refused: TTLCache[tuple[str, str | None, str], frozenset[str]] = TTLCache(
            MOST_MODELS, REFUSED_SECONDS, self.clock
        )

    def of(
        self, declared: str, client: str | None, model: str, *, needs_usage: bool = False
    ) -> frozenset[str]:
        """Return the additions that an upstream does not accept from a client, for a model.

        If the usage must be known, nothing is learned of it: only what the operator says counts.
        """
        learned = self._refused.get((declared, client, model), NONE)
        if needs_usage:
            learned -= USAGE
        accepted = self.accepts.get(declared)
        return learned if accepted is None else learned | (ALL_ADDITIONS - accepted)

    def note(
        self, declared: str, client: str | None, model: str, names: frozenset[str]
    ) -> str | None:
        """Note that an upstream refused these and answered without them.

        Return what an operator can set, None if that was known.
        """
        place = declared, client, model
        before = self._refused.get(place, NONE)
        self._refused[place], self.differ = before | names, True
        if names <= before:
            return None
        return _remedy(names, self.accepts.get(declared, ALL_ADDITIONS))


def _remedy(names: frozenset[str], accepts: frozenset[Addition]) -> str:
    """Return the settings that stop the gateway from sending the refused additions."""
    settings = []
    if refused := accepts & names:
        left = ", ".join(sorted(accepts - refused))
        settings.append(f"accepts: [{left}] (upstream_accepts where it has no long form)")
    if MOVED in names:
        settings.append("prefix: {volatile: off} in the policy")
    if others := sorted(names - ALL_ADDITIONS - {MOVED}):
        settings.append(f"api: anthropic if it has that API (it refuses {', '.join(others)})")
    return " and ".join(settings)


@dataclass(frozen=True, slots=True)
class Variant:
    """A request as some upstreams get it."""

    exchange: Exchange
    raw: bytes
    body: dict[str, Any]
    """What ``raw`` is the JSON of."""
    additions: frozenset[str]
    """Their names, and ``MOVED``."""
    usage: bool
    """Whether usage is requested, by the client or the gateway."""


@dataclass(eq=False, slots=True)
class Variants:
    """The variants of one request, each made once. Without ``adds`` nothing may be refused."""

    exchange: Exchange
    adds: bool = True
    usual: Variant = field(init=False)
    """What any upstream gets of which nothing else is known."""
    _made: dict[frozenset[str] | None, Variant] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.usual = self.without(NONE)

    def without(self, refused: frozenset[str] | None) -> Variant:
        """Return the variant without these additions; None is the request as the client sent it."""
        if refused is not None and not self.adds:
            refused = _EVERYTHING
        variant = self._made.get(refused)
        if variant is None:
            variant = self._made[refused] = _variant(self.exchange, refused)
        return variant


_EVERYTHING = ALL_ADDITIONS | {MOVED}


def _variant(exchange: Exchange, refused: frozenset[str] | None) -> Variant:
    added = set[str]()
    if refused is None or (MOVED in refused and Rewrite.VOLATILE in exchange.rewrites):
        exchange = exchange.original or exchange
    elif exchange.unhinted is not None and Addition.HINTS in refused:
        exchange = exchange.unhinted
    elif exchange.unhinted is not None:
        added.add(Addition.HINTS)
    if refused is not None and Rewrite.VOLATILE in exchange.rewrites:
        added.add(MOVED)
    request = exchange.request
    raw, usage, body = request.raw, request.wants_usage, request.asked
    streaming = SPECS[request.endpoint].streaming
    asks = refused is not None and Addition.STREAM_USAGE not in refused
    if asks and streaming is not None and streaming.usage_option:
        with_usage, raw = ask_for_usage(body, raw)
        if with_usage is not None:
            added.add(Addition.STREAM_USAGE)
            body, usage = with_usage, True
    return Variant(exchange, raw, body, frozenset(added), usage)


_NO_STREAM = frozenset({"false", "no", "off", "n", "f", "0"})


def ask_for_usage(body: dict[str, Any], raw: bytes) -> tuple[dict[str, Any] | None, bytes]:
    """Return the body to forward and its JSON. None: usage is not requested in addition.

    Only ``stream_options.include_usage`` is added, if the client streams and did not request usage.
    Every other byte stays.
    """
    # In an odd request, a server may take any other value for true.
    if not body.get("stream") or str(body["stream"]).lower() in _NO_STREAM:
        return None, raw
    options = body.get("stream_options")
    if not isinstance(options, dict | None) or (options or {}).get("include_usage") is True:
        return None, raw
    with_usage = {**body, "stream_options": {**(options or {}), "include_usage": True}}
    if "stream_options" not in body:
        end = raw.rindex(b"}")
        return with_usage, raw[:end] + b',"stream_options":{"include_usage":true}' + raw[end:]
    places = Places(raw, body)
    start, end = places.span(("stream_options",))
    text = b'{"include_usage":true}'
    if options and "include_usage" in options:
        (start, end), text = places.span(("stream_options", "include_usage")), b"true"
    elif options:
        start = end = end - 1
        text = b',"include_usage":true'
    return with_usage, splice(raw, [Edit(start, end, text)])
