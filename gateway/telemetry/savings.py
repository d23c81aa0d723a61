"""What a request used and what it saved, in tokens, dollars and seconds; and the report of it.

Laws:
- Nothing is counted twice. The tokens of a call belong to the request that made it; a request that
  joined a call, or hit an entry, saved a call. Compression and prefix caching save on calls alone.
- Figures are the upstream's own. What it does not say is unknown. Tokens without a price are
  counted as tokens, and never as zero dollars.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum
from http import HTTPStatus
from typing import Any, NamedTuple

import orjson

from gateway.cache.ports import Entry
from gateway.cache.stores.counts import USAGE_OTHER, UsageRow
from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.http.cache_status import LEFT_BY_CLIENT, Reason
from gateway.protocol.http.messages import declared_name
from gateway.protocol.tokens import NOTHING_SAID, PromptUsage, prompt_usage
from gateway.telemetry.observation import CallFacts, Observation
from gateway.telemetry.prices import Price
from policies.decision import Endpoint

DEFAULT_DAYS = 30
MOST_LABEL = 128
"""Characters of a label that are kept: a client may invent a model's name."""

_CLIENTS = frozenset({"hit", "miss", "bypass", "refused", "error"})
_ANSWERED = frozenset({"miss", "bypass", "refresh", "sample"})
_UNKNOWN = Price()
_SINCE = re.compile(r"([1-9][0-9]{0,2})d")


class Way(StrEnum):
    """How a request was cheaper."""

    EXACT = "exact"
    SEMANTIC = "semantic"
    COALESCING = "coalescing"
    PREFIX = "prefix"
    COMPRESSION = "compression"


class Labels(NamedTuple):
    """What figures are summed by, beside the day.

    ``holder`` names the gateway key, and ``team`` is its team. ``upstream`` is empty where no call
    was made.
    """

    holder: str = ""
    model: str = ""
    rule: str = ""
    upstream: str = ""
    team: str = ""

    def text(self) -> str:
        return orjson.dumps(
            {name: value for name, value in self._asdict().items() if value}
        ).decode()


OTHERS = Labels(**orjson.loads(USAGE_OTHER))
"""Where figures are summed once there are too many rows."""

GROUPS = (*Labels._fields, "day")
"""What a report may group by."""

Figures = dict[str, float]
"""Sums by name; what is not there is zero. See ``_figures`` for the names."""


@dataclass(frozen=True, slots=True, eq=False)
class Account:
    """What one request used and saved."""

    labels: Labels
    figures: Figures


def entry_usage(entry: Entry) -> PromptUsage:
    """Return the tokens of the call that made a stored answer, as its result has them."""
    try:
        spec = SPECS[Endpoint(entry.endpoint)]
        plain = entry.result if spec.render is None else spec.render({}, entry.key, entry.result)
        return prompt_usage(spec.usage(orjson.loads(plain)))
    except (ValueError, TypeError, KeyError, AttributeError):
        return NOTHING_SAID  # an entry that an operator loaded may have any shape


def account(
    seen: Observation, hit: PromptUsage, price: Price | None, seconds: float | None, upstream: str
) -> Account | None:
    """Return what a finished request used and saved; None for one that counts nowhere.

    ``hit`` is the usage of the entry that was served, ``price`` the price of the model, ``seconds``
    the usual time of a call for the model. ``upstream`` names the only upstream, if there is one.
    """
    call, figures = seen.call.whole, Figures()
    if seen.outcome in _CLIENTS:
        figures["requests"] = 1
        failed = seen.outcome == "error" or seen.status >= HTTPStatus.BAD_REQUEST
        if failed and seen.outcome != "refused" and seen.reason not in LEFT_BY_CLIENT:
            figures["errors"] = 1
    elif call is None:
        return None
    price = price or _UNKNOWN
    if call is not None:
        _count_call(figures, seen, call, price)
    followed = seen.call.followed
    if seen.outcome == "hit" and seen.hit is not None:
        semantic = seen.hit.status.reason is Reason.SEMANTIC
        _save(figures, Way.SEMANTIC if semantic else Way.EXACT, hit, price, seconds)
    elif call is None and followed is not None and _is_answered(seen):
        # The call had begun already. A new call would have ended so much later.
        began = seen.started if followed.started is None else followed.started
        _save(figures, Way.COALESCING, followed.usage, price, max(0.0, seen.started - began))
    named = declared_name(seen.call.upstream or upstream) if call is not None else ""
    if call is not None and seen.reason is Reason.LOCAL:
        named = Reason.LOCAL.value
    asked = seen.asked
    model = asked.answering_model[:MOST_LABEL]
    labels = Labels(asked.holder, model, asked.rule, named, asked.team)
    return Account(labels, figures)


def account_of_earlier(
    seen: Observation, call: CallFacts, price: Price | None, upstream: str
) -> Account:
    """Return what a call used whose answer was not the last for its request."""
    asked, figures = seen.asked, Figures()
    _count_call(figures, seen, call, price or _UNKNOWN)
    named = declared_name(call.upstream or upstream)
    return Account(
        Labels(asked.holder, asked.model[:MOST_LABEL], asked.rule, named, asked.team), figures
    )


def _is_answered(seen: Observation) -> bool:
    return seen.outcome in _ANSWERED and seen.status == HTTPStatus.OK


def _count_call(figures: Figures, seen: Observation, call: CallFacts, price: Price) -> None:
    usage = call.usage
    prompt, completion, cached = usage.prompt or 0, usage.completion or 0, usage.cached or 0
    cached = min(cached, prompt)
    has_usage = usage.prompt is not None or usage.completion is not None
    if not has_usage and not _is_answered(seen):
        return  # the upstream answered with an error
    figures["calls"] = 1
    if call.started is not None and call.ended is not None:
        figures["call_seconds"] = call.ended - call.started
    if not has_usage:
        figures["calls_without_usage"] = 1
        return
    figures["prompt_tokens"], figures["completion_tokens"] = prompt, completion
    _pay(figures, "", prompt + completion, price.cost(prompt, completion, cached))
    if cached:
        figures["prefix_requests"], figures["prefix_tokens"] = 1, cached
        _pay(figures, "prefix_", cached, price.discount(cached))
    compression = seen.call.compression
    saved = 0 if compression is None else compression.saved
    if saved and _is_answered(seen):
        figures["compression_requests"], figures["compression_tokens"] = 1, saved
        _pay(figures, "compression_", saved, price.cost(saved, 0))


def _save(
    figures: Figures, way: Way, usage: PromptUsage, price: Price, seconds: float | None
) -> None:
    prompt, completion = usage.prompt or 0, usage.completion or 0
    figures[f"{way}_requests"] = 1
    if tokens := prompt + completion:
        figures[f"{way}_tokens"] = tokens
        cached = min(usage.cached or 0, prompt)
        _pay(figures, f"{way}_", tokens, price.cost(prompt, completion, cached))
    if seconds:
        figures[f"{way}_seconds"] = seconds


def _pay(figures: Figures, prefix: str, tokens: int, dollars: float | None) -> None:
    if dollars is None:
        figures[f"{prefix}unpriced_tokens"] = tokens
    elif dollars:
        figures[f"{prefix}dollars"] = dollars


def add(sums: Figures, figures: Mapping[str, float], times: int = 1) -> None:
    """Add figures to sums, ``times`` over."""
    for name, value in figures.items():
        sums[name] = sums.get(name, 0) + value * times


def day_of(now: float) -> str:
    """Return the day in UTC of a time in seconds since the epoch."""
    return (date(1970, 1, 1) + timedelta(seconds=now // 86_400 * 86_400)).isoformat()


def first_day(since: str | None, now: float) -> str:
    """Return the first day of a report: ``2026-11-24``, or ``30d`` with today as the last of 30.

    Raises ValueError.
    """
    days = _SINCE.fullmatch(since or f"{DEFAULT_DAYS}d")
    if days is not None:
        return day_of(now - (int(days[1]) - 1) * 86_400)
    try:
        return date.fromisoformat(since or "").isoformat()
    except ValueError:
        raise ValueError("a day such as 2026-11-24, or a number of days such as 30d") from None


def report(rows: Iterable[UsageRow], by: str, team: str | None = None) -> dict[str, Any]:
    """Return the figures of all rows, summed by one of GROUPS, the most used group first.

    With a ``team``, only its rows count; an empty one stands for holders without a team.
    """
    groups: dict[str, Figures] = {}
    total = Figures()
    for row in rows:
        labels = orjson.loads(row.labels)
        if team is not None and labels.get("team", "") != team:
            continue
        name = row.day if by == "day" else labels.get(by, "")
        add(groups.setdefault(name, Figures()), row.figures)
        add(total, row.figures)
    shown = [{by: name, **_figures(sums)} for name, sums in groups.items()]
    if by == "day":
        shown.sort(key=lambda each: str(each[by]))
    else:
        shown.sort(key=lambda each: (-each["requests"], each[by]))
    return {"by": by, "rows": shown, "total": _figures(total)}


def _figures(sums: Mapping[str, float]) -> dict[str, Any]:
    saved = {way.value: _part(sums, f"{way}_") for way in Way}
    whole: Figures = {}
    # An upstream finds prompts in its prefix cache without this gateway, too.
    for way in set(Way) - {Way.PREFIX}:
        for name in ("tokens", "dollars", "seconds", "unpriced_tokens"):
            whole[name] = whole.get(name, 0) + sums.get(f"{way}_{name}", 0)
    return {
        "requests": int(sums.get("requests", 0)),
        "errors": int(sums.get("errors", 0)),
        "calls": int(sums.get("calls", 0)),
        "calls_without_usage": int(sums.get("calls_without_usage", 0)),
        "mean_seconds": _mean(sums),
        "prompt_tokens": int(sums.get("prompt_tokens", 0)),
        "completion_tokens": int(sums.get("completion_tokens", 0)),
        "dollars": _dollars(sums),
        "unpriced_tokens": int(sums.get("unpriced_tokens", 0)),
        "saved": saved,
        "saved_total": _part(whole),
    }


def _mean(sums: Mapping[str, float]) -> float | None:
    calls = sums.get("calls")
    return round(sums.get("call_seconds", 0.0) / calls, 3) if calls else None


def _part(sums: Mapping[str, float], prefix: str = "") -> dict[str, Any]:
    part: dict[str, Any] = {}
    if prefix:
        part["requests"] = int(sums.get(f"{prefix}requests", 0))
    return {
        **part,
        "tokens": int(sums.get(f"{prefix}tokens", 0)),
        "dollars": _dollars(sums, prefix),
        "seconds": round(sums.get(f"{prefix}seconds", 0.0), 3),
        "unpriced_tokens": int(sums.get(f"{prefix}unpriced_tokens", 0)),
    }


def _dollars(sums: Mapping[str, float], prefix: str = "") -> float | None:
    """Return the dollars of all tokens with a price; None where no token has one."""
    dollars = sums.get(f"{prefix}dollars", 0.0)
    return None if not dollars and sums.get(f"{prefix}unpriced_tokens") else round(dollars, 6)
