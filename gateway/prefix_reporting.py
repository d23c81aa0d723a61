"""``refrain prefix report``: where the prompts of a log part, and the settings that would mend it.

Law: the log is read line by line, and a line that holds no request is told by file and line and
passed over; only a log without any is an error. Of each route so many prompts are kept, the first
ones, and it is told that there were more.
"""

import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from gateway.core.prefix_report import Layer, Parting, Recorded, RouteReport, passes, report
from gateway.core.prefix_settings import candidates, compiled, written
from gateway.core.recorded_request import RecordedError, parse_recorded
from gateway.core.rewrite.plan import rewrite

_TOLD = 10
_MOST_ROUTES = 20
_COLUMNS = 76


def run(file: Path, *, limit: int, as_json: bool) -> int:
    """Report on a log; return the exit code."""
    log = _Log(limit)
    try:
        for number, line in enumerate(_lines(file), 1):
            log.take(line, f"{file}:{number}")
    except OSError as error:
        return _fail(f"{file}: cannot be read: {error.strerror or error}")
    if not log.routes:
        return _fail(
            f"{file}: no request in it; a gateway writes them down with decision_log and "
            "decision_log_requests set"
        )
    routes = sorted(log.routes.items(), key=lambda item: -log.counts[item[0]])[:_MOST_ROUTES]
    reports = [_reported(prompts) for _, prompts in routes]
    if as_json:
        plain = [asdict(one) | {"yaml": _yaml(one)} for one in reports]
        print(orjson.dumps({"routes": plain, "skipped_lines": log.skipped}).decode())  # noqa: T201
        return 0
    for one in reports:
        print("\n".join(_told(one, log.counts[one.route])))  # noqa: T201
    if log.skipped:
        print(f"\n{log.skipped:,} lines held no request")  # noqa: T201
    return 0


class _Log:
    """The requests of a log by route."""

    def __init__(self, limit: int) -> None:
        self.routes: dict[tuple[str, str, str], list[Recorded]] = {}
        self.counts: dict[tuple[str, str, str], int] = {}
        self.skipped = 0
        self._limit = limit

    def take(self, line: bytes, place: str) -> None:
        if not line.strip():
            return
        try:
            one = parse_recorded(line)
        except RecordedError as error:
            self.skipped += 1
            if self.skipped <= _TOLD:
                print(f"refrain: {place}: {error}", file=sys.stderr)  # noqa: T201
            return
        kept = self.routes.setdefault(one.route, [])
        self.counts[one.route] = self.counts.get(one.route, 0) + 1
        if len(kept) < self._limit:
            kept.append(one)


def _lines(file: Path) -> Iterator[bytes]:
    if str(file) == "-":
        yield from sys.stdin.buffer
        return
    with file.open("rb") as lines:
        yield from lines


def _reported(prompts: list[Recorded]) -> RouteReport:
    tried = candidates(prompts)
    steps = passes(tried)
    done = 0

    def progress() -> None:
        nonlocal done
        done += 1
        _progress(
            f"{_shown(prompts[0].model)}: {len(prompts):,} prompts, pass {done} of at most {steps}"
        )

    result = report(prompts, tried, rewriting, progress)
    _progress("")
    return result


def rewriting(one: Recorded, settings: Collection[str]) -> dict[str, Any]:
    """Return the body as it would go on with these settings."""
    return rewrite(one.endpoint, one.body, one.raw, _compiled(frozenset(settings))).body


_compiled: Callable[[frozenset[str]], Any] = lru_cache(256)(compiled)


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)  # noqa: T201


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
