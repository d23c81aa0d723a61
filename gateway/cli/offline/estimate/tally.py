"""Sums over the outcomes of a log: by way, model, rule, reason and time, and how often one repeats.

Laws: each request counts in one way alone, and what a prefix cache could find counts only of what
would still have been sent. A model without a price counts in tokens and not in money. All tables
are bounded: what is beyond counts as ``other``.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gateway.cli.offline.estimate.log_formats import LoggedRequest
from gateway.cli.offline.estimate.simulation import SAVING, Outcome, Way
from gateway.protocol.tokens import prompt_tokens, tokens_in
from gateway.telemetry.prices import Prices

BUCKETS = 48
"""Steps of the plot over time."""
OTHER = "other"
_MOST_NAMES = 1_000
_MOST_KEYS = 500_000
"""Distinct requests that are counted: some 60 MB."""
_KEY_BYTES = 8
_WRITTEN = frozenset({"content", "text", "arguments", "refusal"})
"""The fields of an answer with text that costs tokens."""
_REPEATS = ((1, 1), (2, 2), (3, 4), (5, 9), (10, 99), (100, 0))
"""Groups of the distribution: how often a request came, from and to; 0 is no bound."""


@dataclass(slots=True)
class Sums:
    """``dollars`` is of the requests with a price alone, ``unpriced`` counts the tokens without."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float = 0.0
    unpriced: int = 0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def add(self, prompt: int, completion: int, dollars: float | None, seconds: float) -> None:
        self.requests += 1
        self.prompt_tokens += prompt
        self.completion_tokens += completion
        self.seconds += seconds
        if dollars is None:
            self.unpriced += prompt + completion
        else:
            self.dollars += dollars

    def as_json(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "dollars": round(self.dollars, 6),
            "unpriced_tokens": self.unpriced,
            "seconds": round(self.seconds, 3),
        }


@dataclass(slots=True)
class Row:
    """The requests of one model or rule, and how many of them would have been saved."""

    all: Sums = field(default_factory=Sums)
    saved: Sums = field(default_factory=Sums)

    def as_json(self) -> dict[str, Any]:
        return {"all": self.all.as_json(), "saved": self.saved.as_json()}


@dataclass(slots=True)
class Tally:
    """All figures of an estimate. ``first`` and ``last`` are the log's times, None without any."""

    prices: Prices
    first: float | None = None
    last: float | None = None
    total: Sums = field(default_factory=Sums)
    ways: dict[Way, Sums] = field(default_factory=lambda: {way: Sums() for way in Way})
    prefix: Sums = field(default_factory=Sums)
    """What a prefix cache could find of the prompts that would still have been sent."""
    cached_tokens: int = 0
    """Prompt tokens that the upstreams themselves found in their caches, by the log."""
    models: dict[str, Row] = field(default_factory=dict)
    rules: dict[str, Row] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    """Why requests would not have been looked up."""
    ineligible: Counter[str] = field(default_factory=Counter)
    """Why requests could not have been answered by meaning."""
    timeline: list[Counter[Way]] = field(default_factory=list)
    estimated: int = 0
    """Requests without usage in the log."""
    without_answer: int = 0
    without_time: int = 0
    without_latency: int = 0
    _keys: dict[bytes, int] = field(default_factory=dict)
    uncounted_keys: int = 0

    def add(self, one: LoggedRequest, outcome: Outcome) -> None:
        prompt, completion, cached = self._tokens(one)
        price = self.prices.find(one.request.model)
        dollars = None if price is None else price.cost(prompt, completion, cached)
        way = outcome.way
        self.total.add(prompt, completion, dollars, one.seconds)
        saved = (prompt, completion, dollars) if outcome.saves_call else (0, 0, 0.0)
        for rows, name in ((self.models, one.request.model), (self.rules, outcome.rule)):
            row = _row(rows, name)
            row.all.add(prompt, completion, dollars, one.seconds)
            if way in SAVING:
                row.saved.add(*saved, outcome.seconds)
        if way in SAVING:
            self.ways[way].add(*saved, outcome.seconds)
        else:
            self.ways[way].add(prompt, completion, dollars, 0.0)
            self.cached_tokens += cached
            new = max(0, round(outcome.repeated * prompt) - cached)
            if new:
                discount = None if price is None else price.discount(new)
                self.prefix.add(new, 0, discount, 0.0)
        if way is Way.BYPASS and outcome.reason is not None:
            self.reasons[outcome.reason.value] += 1
        if outcome.ineligible is not None:
            self.ineligible[outcome.ineligible.value] += 1
        self._note(one, outcome)

    def _note(self, one: LoggedRequest, outcome: Outcome) -> None:
        self.without_answer += one.answer is None and one.storable
        self.without_time += one.start is None
        self.without_latency += one.end is None or one.end == one.start
        if one.start is not None and self.first is not None and self.last is not None:
            span = self.last - self.first
            step = int((one.start - self.first) / span * BUCKETS) if span > 0 else 0
            if not self.timeline:
                self.timeline = [Counter() for _ in range(BUCKETS if span > 0 else 1)]
            self.timeline[max(0, min(step, len(self.timeline) - 1))][outcome.way] += 1
        if outcome.key is not None:
            key = outcome.key[:_KEY_BYTES]
            if key in self._keys or len(self._keys) < _MOST_KEYS:
                self._keys[key] = self._keys.get(key, 0) + 1
            else:
                self.uncounted_keys += 1

    def _tokens(self, one: LoggedRequest) -> tuple[int, int, int]:
        request = one.request
        prompt, completion, cached, _ = one.usage
        self.estimated += prompt is None
        if prompt is None:
            prompt = prompt_tokens(request.endpoint, request.body)
            if completion is None and one.answer is not None:
                completion = tokens_in(_text_bytes(one.answer))
        return prompt, completion or 0, min(prompt, cached or 0)

    @property
    def saved(self) -> Sums:
        whole = Sums()
        for way in SAVING:
            each = self.ways[way]
            whole.requests += each.requests
            whole.prompt_tokens += each.prompt_tokens
            whole.completion_tokens += each.completion_tokens
            whole.dollars += each.dollars
            whole.unpriced += each.unpriced
            whole.seconds += each.seconds
        return whole

    def repeats(self) -> list[dict[str, int | None]]:
        """Return how many distinct requests that may be looked up came how often."""
        counts = Counter(self._keys.values())
        return [
            {
                "from": least,
                "to": most or None,
                "distinct": _sum_of(counts, least, most, weighed=False),
                "requests": _sum_of(counts, least, most, weighed=True),
            }
            for least, most in _REPEATS
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            "requests": self.total.requests,
            "first": self.first,
            "last": self.last,
            "total": self.total.as_json(),
            "ways": {way.value: sums.as_json() for way, sums in self.ways.items()},
            "saved": self.saved.as_json(),
            "prefix": self.prefix.as_json(),
            "cached_tokens": self.cached_tokens,
            "models": {name: row.as_json() for name, row in _largest(self.models)},
            "rules": {name: row.as_json() for name, row in _largest(self.rules)},
            "bypass_reasons": dict(self.reasons.most_common()),
            "ineligible": dict(self.ineligible.most_common()),
            "timeline": [
                {way.value: step[way] for way in Way if step[way]} for step in self.timeline
            ],
            "repeats": self.repeats(),
            "uncounted_repeats": self.uncounted_keys,
            "estimated": self.estimated,
            "without_answer": self.without_answer,
            "without_time": self.without_time,
            "without_latency": self.without_latency,
            "prices": self.prices.source,
        }


def _text_bytes(value: Any) -> int:
    """Return the bytes of all that a model wrote in an answer."""
    if isinstance(value, list):
        return sum(map(_text_bytes, value))
    if not isinstance(value, dict):
        return 0
    return sum(
        len(each.encode("utf-8", "surrogatepass"))
        if isinstance(each, str) and name in _WRITTEN
        else _text_bytes(each)
        for name, each in value.items()
    )


def _row(rows: dict[str, Row], name: str) -> Row:
    if name not in rows and len(rows) >= _MOST_NAMES:
        name = OTHER
    return rows.setdefault(name, Row())


def _largest(rows: dict[str, Row]) -> Iterable[tuple[str, Row]]:
    return sorted(rows.items(), key=lambda each: -each[1].all.requests)


def _sum_of(counts: Counter[int], least: int, most: int, *, weighed: bool) -> int:
    return sum(
        number * (times if weighed else 1)
        for times, number in counts.items()
        if times >= least and (not most or times <= most)
    )
