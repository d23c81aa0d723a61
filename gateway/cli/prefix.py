"""``refrain prefix report``: what a prefix cache could find of a log, and the settings for it.

Laws: only a log without any request is an error. The first prompts of each route are kept, within a
bound on their number and on the bytes of all; the report says where there were more. Prompts and
names are clients' words: control characters are written as escapes.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import orjson

from gateway.cli.prefix_report import LEAST_SHARE, Ceiling, RouteReport, report
from gateway.cli.terminal import CommandError, Lines, add_command, run_command, unreadable
from gateway.server.admin.recorded_request import RecordedRequest, Route, read_request

_REPORT = """\
Tell of recorded requests where their prompts part, which settings of a policy would let a prefix
cache find more, which bytes these change, and the YAML to paste. Settings are tried on the requests
themselves, so what is told is what would have been found, in a cache without bounds.
"""
_REPORT_EPILOG = """\
A LOG holds JSON lines: a gateway's decision log with whole requests (decision_log_requests: true),
{"body": {...}} as in OpenAI's batch files, or the bodies alone. - is standard input.

examples:
  REFRAIN_DECISION_LOG=log.jsonl REFRAIN_DECISION_LOG_REQUESTS=true refrain serve --upstream URL
  refrain prefix report log.jsonl
  refrain prefix report --json log.jsonl

exit codes: 0 done, 2 bad usage or no request in the log
"""
_MOST_ROUTES = 20
_MOST_BYTES = 256 << 20
_PROGRESS_EVERY = 5000
_COLUMNS = 78
_UNKNOWN_RULES = ("", "default")
_NO_NAME = re.compile(r"[^a-z0-9_-]+")
_LONGEST_SLUG = 40


def main(argv: Sequence[str]) -> int:
    """Run ``refrain prefix`` with the arguments behind these words; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="refrain prefix", description="See why prefix caches miss, and mend it."
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    command = add_command(
        commands,
        "report",
        _report,
        summary="tell where recorded prompts part, and what would mend it",
        description=_REPORT,
        epilog=_REPORT_EPILOG,
    )
    command.add_argument("log", type=Path, metavar="LOG", help="recorded requests; - is stdin")
    command.add_argument(
        "--limit",
        type=_limit,
        default=2000,
        metavar="N",
        help="requests of a route that are looked at (default: %(default)s)",
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    return run_command(parser, argv)


def _limit(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 2:
        raise argparse.ArgumentTypeError(f"expected a number from 2 on, got {text!r}")
    return number


def _show_progress(text: str) -> None:
    """Write over the last line of a terminal; to a file or a pipe nothing is written."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _report(options: argparse.Namespace) -> int:
    file, log = options.log, Lines(read_request, options.log)
    kept: dict[Route, list[RecordedRequest]] = {}
    counts: Counter[Route] = Counter()
    kept_bytes = 0
    try:
        for number, (_, one) in enumerate(log):
            counts[one.route] += 1
            prompts = kept.setdefault(one.route, [])
            # One at least, so that each route is reported.
            if len(prompts) < options.limit and (not prompts or kept_bytes < _MOST_BYTES):
                prompts.append(one)
                kept_bytes += len(one.raw)
            if number % _PROGRESS_EVERY == 0:
                _show_progress(f"{file}: {number:,} requests read")
    except OSError as error:
        raise unreadable(file, error) from None
    finally:
        _show_progress("")
    if not kept:
        hint = "a gateway writes them down with decision_log and decision_log_requests set"
        raise CommandError(f"{file}: no request in it; {hint}")
    most = [route for route, _ in counts.most_common(_MOST_ROUTES)]
    reports = [_reported(kept[route]) for route in most]
    if options.json:
        plain = {"routes": [asdict(one) for one in reports], "skipped_lines": log.skipped}
        print(orjson.dumps(plain).decode())
        return 0
    rules = Counter(rule for rule, _, _ in most)
    for number, found in enumerate(reports):
        lines = _route_text(found, counts[found.route], alone=rules[found.route[0]] == 1)
        print("\n" * (number > 0) + "\n".join(lines))
    if (more := len(counts) - len(most)) > 0:
        print(f"\n{more:,} routes with fewer requests are not told")
    if log.skipped:
        print(f"\n{log.skipped:,} lines held no request")
    return 0


def _reported(prompts: list[RecordedRequest]) -> RouteReport:
    shown = f"{ascii(prompts[0].model)[:40]}: {len(prompts):,} prompts"
    _show_progress(f"{shown}, looking for settings")
    result = report(prompts, lambda done, of: _show_progress(f"{shown}, pass {done} of {of}"))
    _show_progress("")
    return result


def _route_text(one: RouteReport, requests: int, *, alone: bool) -> Iterator[str]:
    """Yield the lines about a route that had so many requests.

    ``alone`` tells that no other route has its rule.
    """
    rule, endpoint, model = one.route
    yield f"rule {_shown(rule) or '-'}, {endpoint}, model {_shown(model) or '-'}"
    seen = f", the first {one.requests:,} looked at" if requests > one.requests else ""
    counted = "" if one.tokens_counted else " (estimated)"
    many = "1 request" if requests == 1 else f"{requests:,} requests"
    yield f"  {many}{seen}; {one.tokens:,} prompt tokens{counted}"
    if one.requests < 2:
        yield "  one request has nothing to part from; record more"
        return
    if one.upstream is not None:
        yield f"  found when recorded, by the upstream's own usage: {one.upstream:.1%}"
    yield ""
    yield from _ceiling("as sent", one.as_sent)
    yield ""
    if one.settings:
        yield from _ceiling("with the settings below", one.rewritten)
        yield ""
        yield "  without one of them, of all tokens"
        for gain in one.settings:
            yield f"    {gain.share:>6.1%} are lost without {_shown(gain.setting)}"
            for sign, way in (("-", gain.was), ("+", gain.becomes)):
                yield f"         {sign} {_shown(gain.before)}[{_shown(way)}"[:_COLUMNS]
    if one.too_little:
        yield f"  less than {LEAST_SHARE:.1%} each: {_shown(', '.join(one.too_little))}"
    if one.settings:
        yield from _to_paste(one, alone=alone)
    else:
        yield "  no setting would gain anything"


def _ceiling(held: str, one: Ceiling) -> Iterator[str]:
    yield f"  {held}: {one.found:.1%} could be found"
    worst = one.worst
    share = 0.0 if worst is None else worst.lost / one.characters
    if worst is not None and share >= LEAST_SHARE:
        yield f"    {share:>6.1%} are lost where prompts part in {_shown(worst.place)}"
        for way in worst.ways:
            yield f"           {_shown(worst.before)}[{_shown(way)}"[:_COLUMNS]


def _to_paste(one: RouteReport, *, alone: bool) -> Iterator[str]:
    rule, endpoint, model = one.route
    lines = one.yaml.splitlines()
    if alone:
        yield "  to paste into the rule (or into default):"
        yield from (f"      {line}" for line in lines)
    elif rule in _UNKNOWN_RULES:
        yield "  to paste into rules, because other models or paths came by the same rule:"
        yield f"      - name: {_name(model, endpoint)}"
        yield f"        match: {{endpoint: {endpoint}, model: {json.dumps(model)}}}"
        yield from (f"        {line}" for line in lines)
    else:
        yield f"  to paste into a copy of the rule for {endpoint}, {_shown(model)} alone:"
        yield from (f"      {line}" for line in lines)


def _name(model: str, endpoint: str) -> str:
    slug = _NO_NAME.sub("-", model.lower())[:_LONGEST_SLUG].strip("-")
    return f"{slug}-{endpoint.rpartition('/')[2]}".lstrip("-")


def _shown(text: str) -> str:
    """Return a text of one line in which nothing moves a cursor."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
