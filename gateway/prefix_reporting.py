"""``refrain prefix report``: where the prompts of a log part, and the settings that would mend it.

Law: only a log without any request is an error. Of each route so many prompts are kept, the first
ones, and it is told that there were more.
"""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from gateway.core.prefix_report import Layer, Parting, Recorded, RouteReport, passes, report
from gateway.core.prefix_settings import candidates, compiled, written
from gateway.core.rewrite.plan import rewrite
from gateway.progress import show_progress
from gateway.recorded_log import RecordedLog

_MOST_ROUTES = 20
_COLUMNS = 76


def run(file: Path, *, limit: int, as_json: bool) -> int:
    """Report on a log; return the exit code."""
    log, routes = RecordedLog(file), _Routes(limit)
    try:
        for _, one in log:
            routes.take(one)
    except OSError as error:
        return _fail(f"{file}: cannot be read: {error.strerror or error}")
    if not routes.kept:
        return _fail(
            f"{file}: no request in it; a gateway writes them down with decision_log and "
            "decision_log_requests set"
        )
    reports = [
        _reported(routes.kept[route]) for route, _ in routes.counts.most_common(_MOST_ROUTES)
    ]
    if as_json:
        plain = [asdict(one) | {"yaml": _yaml(one)} for one in reports]
        print(orjson.dumps({"routes": plain, "skipped_lines": log.skipped}).decode())  # noqa: T201
        return 0
    for told in reports:
        print("\n".join(_told(told, routes.counts[told.route])))  # noqa: T201
    if log.skipped:
        print(f"\n{log.skipped:,} lines held no request")  # noqa: T201
    return 0


class _Routes:
    """The requests of a log by route: the first ones, and how many there were."""

    def __init__(self, limit: int) -> None:
        self.kept: dict[tuple[str, str, str], list[Recorded]] = {}
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self._limit = limit

    def take(self, one: Recorded) -> None:
        kept = self.kept.setdefault(one.route, [])
        self.counts[one.route] += 1
        if len(kept) < self._limit:
            kept.append(one)


def _reported(prompts: list[Recorded]) -> RouteReport:
    tried = candidates(prompts)
    steps = passes(tried)
    done = 0

    def progress() -> None:
        nonlocal done
        done += 1
        show_progress(
            f"{_shown(prompts[0].model)}: {len(prompts):,} prompts, pass {done} of at most {steps}"
        )

    result = report(prompts, tried, rewriting, progress)
    show_progress("")
    return result


def rewriting(one: Recorded, settings: Collection[str]) -> dict[str, Any]:
    """Return the body as it would go on with these settings."""
    return rewrite(one.endpoint, one.body, one.raw, _compiled(frozenset(settings))).body


_compiled: Callable[[frozenset[str]], Any] = lru_cache(256)(compiled)


def _told(one: RouteReport, requests: int) -> Iterator[str]:
    rule, endpoint, model = one.route
    # What a client has named its model may move the cursor of a terminal.
    yield f"rule {_shown(rule) or '-'}, {endpoint}, model {_shown(model) or '-'}"
    seen = f", the first {one.requests:,} looked at" if requests > one.requests else ""
    counted = "" if one.tokens_counted else " (estimated)"
    yield f"  {requests:,} requests{seen}; {one.tokens:,} prompt tokens{counted}"
    yield f"  could be found in a prefix cache as sent: {one.as_sent:.1%}"
    if one.upstream is not None:
        yield f"  found, by the upstream's own usage: {one.upstream:.1%}"
    for number, layer in enumerate(one.layers):
        yield ""
        yield from _told_layer(layer, one, first=number == 0)
    yield ""
    if not one.settings:
        yield "  no setting would gain anything"
        return
    yield f"  with the settings below: {one.rewritten:.1%}; without one of them, of all tokens"
    for setting, share in one.settings:
        yield f"    {share:>6.1%} are lost without {setting}"
    yield "  to paste into the rule (or into default):"
    yield from (f"      {line}" for line in _yaml(one).splitlines())


def _told_layer(layer: Layer, one: RouteReport, *, first: bool) -> Iterator[str]:
    held = "as sent" if first else f"then, with {layer.settings[-1]}"
    yield f"  {held}: {layer.found:.1%} found"
    for parting in layer.partings:
        yield from _told_parting(parting, one)


def _told_parting(parting: Parting, one: RouteReport) -> Iterator[str]:
    lost = parting.lost / one.characters
    if parting.asked:
        yield f"    {lost:>6.1%} behind {_shown(parting.place)}: what is asked, as it should be"
        return
    cause = f"-> {parting.cause}" if parting.cause else "no setting knows it"
    where = f"{_shown(parting.place)}: {parting.prompts:,} prompts part"
    yield f"    {lost:>6.1%} behind {where}  {cause}"
    for way in parting.ways:
        yield f"           {_shown(parting.before)}[{_shown(way)}"[:_COLUMNS]


def _shown(text: str) -> str:
    return text.encode("unicode_escape").decode()


def _yaml(one: RouteReport) -> str:
    return written([setting for setting, _ in one.settings])


def _fail(message: str) -> int:
    print(f"refrain: {message}", file=sys.stderr)  # noqa: T201
    return 2
