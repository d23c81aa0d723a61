"""``refrain prefix report``: where the prompts of a log part, and the settings that would mend it.

Law: only a log without any request is an error. Of each route so many prompts are kept, the first
ones, and of all so many bytes; it is told that there were more.
"""

import sys
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from gateway.cli.prefix_report import RouteReport, report
from gateway.cli.prefix_report_text import route_text, yaml_of
from gateway.cli.prefix_settings import candidates, compiled, of_pattern
from gateway.cli.recorded_requests import Recorded, Route
from gateway.cli.terminal import RecordedLog, show_progress
from gateway.prompts.rewrite.rewrite import rewrite
from gateway.prompts.rewrite.tools import KnownTools

_MOST_ROUTES = 20
_MOST_BYTES = 256 << 20
_TOLD_EACH = 5000


def run(file: Path, *, limit: int, as_json: bool) -> int:
    """Report on a log; return the exit code."""
    log, routes = RecordedLog(file), _Routes(limit)
    try:
        for number, (_, one) in enumerate(log):
            routes.take(one)
            if number % _TOLD_EACH == 0:
                show_progress(f"{file}: {number:,} requests read")
    except OSError as error:
        return _fail(f"{file}: cannot be read: {error.strerror or error}")
    finally:
        show_progress("")
    if not routes.kept:
        return _fail(
            f"{file}: no request in it; a gateway writes them down with decision_log and "
            "decision_log_requests set"
        )
    most = [route for route, _ in routes.counts.most_common(_MOST_ROUTES)]
    reports = [_reported(routes.kept[route]) for route in most]
    if as_json:
        plain = [asdict(one) | {"yaml": yaml_of(one)} for one in reports]
        print(orjson.dumps({"routes": plain, "skipped_lines": log.skipped}).decode())
        return 0
    rules = Counter(rule for rule, _, _ in most)
    for number, told in enumerate(reports):
        lines = route_text(told, routes.counts[told.route], alone=rules[told.route[0]] == 1)
        print("\n" * (number > 0) + "\n".join(lines))
    if (more := len(routes.counts) - len(most)) > 0:
        print(f"\n{more:,} routes with fewer requests are not told")
    if log.skipped:
        print(f"\n{log.skipped:,} lines held no request")
    return 0


class _Routes:
    """The requests of a log by route: the first ones, and how many there were."""

    def __init__(self, limit: int) -> None:
        self.kept: dict[Route, list[Recorded]] = {}
        self.counts: Counter[Route] = Counter()
        self._limit = limit
        self._bytes = 0

    def take(self, one: Recorded) -> None:
        self.counts[one.route] += 1
        kept = self.kept.setdefault(one.route, [])
        # One at least, so that each route can be told of.
        if len(kept) < self._limit and (not kept or self._bytes < _MOST_BYTES):
            kept.append(one)
            self._bytes += len(one.raw)


def _reported(prompts: list[Recorded]) -> RouteReport:
    shown = f"{ascii(prompts[0].model)[:40]}: {len(prompts):,} prompts"
    show_progress(f"{shown}, looking for what differs")

    def progress(done: int, most: int) -> None:
        show_progress(f"{shown}, pass {done} of at most {most}")

    rewriting = _Rewriting().rewritten
    result = report(prompts, candidates(prompts), rewriting, of_pattern, progress)
    show_progress("")
    return result


class _Rewriting:
    """Prompts as they would go on, the tools of a route read once."""

    def __init__(self) -> None:
        self._tools = KnownTools()

    def rewritten(self, one: Recorded, settings: Collection[str]) -> dict[str, Any]:
        """Return the body as it would go on with these settings."""
        prefix = _compiled(frozenset(settings))
        known = self._tools.forms(prefix.schema_keys, b"")
        result = rewrite(one.endpoint, one.body, one.raw, prefix, known=known)
        self._tools.note(prefix.schema_keys, result.tools, b"")
        return result.body


_compiled: Callable[[frozenset[str]], Any] = lru_cache(256)(compiled)


def _fail(message: str) -> int:
    print(f"refrain: {message}", file=sys.stderr)
    return 2
