"""A prefix report for a terminal: what is lost, what causes it, what to paste.

Law: prompts and names are clients' words; what a terminal would obey is written as an escape.
"""

import json
import re
from collections.abc import Collection, Iterator

from gateway.cli.prefix_partings import Parting
from gateway.cli.prefix_report import Layer, RouteReport
from gateway.cli.prefix_settings import written
from gateway.cli.prefix_trials import Ground, Setting

_COLUMNS = 78
_UNKNOWN_RULES = ("", "default")
_NO_NAME = re.compile(r"[^a-z0-9_-]+")
_LONGEST_SLUG = 40
_REPEATED = 0.3
"""Of what is asked: from here on it is told that others ask it, too."""


def route_text(one: RouteReport, requests: int, *, alone: bool) -> Iterator[str]:
    """Yield the lines about a route that had so many requests.

    ``alone`` tells that no other route has its rule.
    """
    rule, endpoint, model = one.route
    yield f"rule {_shown(rule) or '-'}, {endpoint}, model {_shown(model) or '-'}"
    seen = f", the first {one.requests:,} looked at" if requests > one.requests else ""
    counted = "" if one.tokens_counted else " (estimated)"
    yield f"  {_many(requests, 'request')}{seen}; {one.tokens:,} prompt tokens{counted}"
    if one.requests < 2:
        yield "  one request has nothing to part from; record more"
        return
    if one.upstream is not None:
        yield f"  found when recorded, by the upstream's own usage: {one.upstream:.1%}"
    for layer in one.layers:
        yield ""
        yield from _layer(layer, one)
    yield ""
    yield from _to_paste(one, alone=alone)


def yaml_of(one: RouteReport) -> str:
    """Return the ``prefix`` to paste, empty where there is none."""
    return written([setting for setting, _ in one.settings])


def _layer(layer: Layer, one: RouteReport) -> Iterator[str]:
    held = f"then, with {layer.settings[-1]}" if layer.settings else "as sent"
    yield f"  {_shown(held)}: {layer.found:.1%} could be found"
    for parting in layer.partings:
        yield from _parting(parting, parting.lost / one.characters, one.layers[-1].settings)


def _parting(parting: Parting, lost: float, taken: Collection[Setting]) -> Iterator[str]:
    where = f"    {lost:>6.1%} behind {_shown(parting.place)}"
    match parting.ground:
        case Ground.ASKED if parting.repeated >= _REPEATED:
            yield f"{where}: {parting.repeated:.0%} of it is the same in several"
            yield "           It is never rewritten: send as a system prompt what repeats."
        case Ground.ASKED:
            yield f"{where}: what is asked, as it should be"
            return
        case Ground.MOVED:
            yield f"{where}, as they should be"
            return
        case Ground.SAID if parting.is_cut:
            yield f"{where}: the oldest are left out, and all others move up"
            yield "           Leave out many at once, and seldom."
            return
        case Ground.SAID if parting.cause is None:
            yield f"{where}, which no earlier prompt had"
            return
        case _:
            cause = _cause(parting.cause, taken)
            parts = f"{where}: {_many(parting.prompts, 'prompt')} part"
            if len(parts) + len(cause) + 2 <= _COLUMNS:
                yield f"{parts}  {cause}"
            else:
                yield parts
                yield f"           {cause}"
    for way in parting.ways:
        yield f"           {_shown(parting.before)}[{_shown(way)}"[:_COLUMNS]


def _cause(cause: Setting | None, taken: Collection[Setting]) -> str:
    if cause is None:
        return "no setting knows it"
    return f"-> {cause}" if cause in taken else f"{cause} would gain too little"


def _to_paste(one: RouteReport, *, alone: bool) -> Iterator[str]:
    if not one.settings:
        yield "  no setting would gain anything"
        return
    yield f"  with the settings below: {one.rewritten:.1%}; without one of them, of all tokens"
    for setting, share in one.settings:
        yield f"    {share:>6.1%} are lost without {setting}"
    rule, endpoint, model = one.route
    lines = yaml_of(one).splitlines()
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


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _shown(text: str) -> str:
    """Return a text of one line in which nothing moves a cursor."""
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
