"""``refrain prefix report``: the hits that a prefix cache could have, and the settings for them.

Laws: nothing is guessed that can be tried. Settings hide one another (a time in front of shuffled
documents), so all are tried together and taken away one by one; only those are recommended without
which less would be found. Prompts and names are clients' words: control characters are escaped.

The text of a prompt has its parts in the order in which a model reads them: tools, instructions,
turns. Chat templates differ; this is the order of OpenAI's and Anthropic's own prefix caches. A
client's own marks for the cache are no part of the prompt, and are left out.
"""

import json
import re
from bisect import bisect
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from gateway.cli.offline.json_lines import Lines
from gateway.cli.progress import noting, progress
from gateway.cli.terminal import CommandError, printable, show_json
from gateway.prompts.rewrite.rules import rewrite
from gateway.prompts.rewrite.tool_rules import KnownTools
from gateway.protocol.endpoints.registry import SPECS
from gateway.server.admin.recorded_request import RecordedRequest, Route, read_request
from policies.decision import (
    DEFAULT_RULE,
    MARKS,
    Endpoint,
    PrefixSettings,
    SchemaKeys,
    VolatileKind,
)
from policies.format.load import parse_policy

_MOST_ROUTES = 20
_MOST_BYTES = 256 << 20
_COLUMNS = 78
_LONGEST_NAME = 40
CHARACTERS_PER_TOKEN = 4.0
"""Where no upstream has counted."""
LEAST_SHARE = 0.005
"""Least gain of a recommended setting, as a share of all characters."""

_SAMPLE = 500
"""Prompts with settings removed one by one."""
_BEFORE, _AFTER = 32, 24
_MOST_WAYS = 3

_SCHEMA_KEYS, _TOOLS = "schema_keys: keywords", "tools: sorted"
_WHITESPACE, _TURNS = "whitespace: on", "turns: earlier"
_VOLATILE, _DOCUMENTS = "volatile: ", "documents: "
_TAG = re.compile(r"<([A-Za-z][A-Za-z0-9_-]{1,30})(>| +[A-Za-z_][\w.:-]{0,30}=)")
_NAME = re.compile(r"<([A-Za-z0-9_-]+)")
_LOOKED_AT = 200
_MOST_MARKERS = 3
_EMBEDDED = re.compile(r"(?<=;base64,)[A-Za-z0-9+/=]{256,}")
_POLICY = """\
version: 1
default:
  exact: on
  semantic: off
  freshness: 1h
  scope: tenant
  pii: bypass
"""

Setting = str
"""A setting's name, such as ``volatile: uuids``."""


class Part(NamedTuple):
    """A piece of a prompt; ``place`` is where it stands, such as ``messages[0] (system)``."""

    place: str
    text: str


@dataclass(slots=True)
class Parting:
    """A place where prompts part: ``ways`` begin with the bytes that differ, behind ``before``."""

    place: str
    before: str
    ways: list[str]
    lost: int = 0
    """Characters behind it that were computed again."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The share of the characters that would be found, and the place of the largest loss."""

    characters: int
    found: float
    worst: Parting | None


@dataclass(frozen=True, slots=True)
class Gain:
    """The loss without a setting, and the first text that it changes, behind ``before``."""

    setting: Setting
    share: float
    before: str
    was: str
    becomes: str


@dataclass(frozen=True, slots=True)
class RouteReport:
    """The results for one route; shares are of all characters of its prompts."""

    route: Route
    requests: int
    tokens: int
    tokens_counted: bool
    """Whether the upstream counted them; else they are estimated."""
    upstream: float | None
    """Share of prompt tokens that the upstream itself reported as cached."""
    as_sent: Ceiling
    rewritten: Ceiling
    """With all of ``settings``."""
    settings: tuple[Gain, ...]
    """The recommended settings, the largest gain first."""
    too_little: tuple[Setting, ...]
    """Settings that change something but gain too little."""
    yaml: str
    """The ``prefix`` to paste; empty if no setting gains."""


def report(prompts: Sequence[RecordedRequest]) -> RouteReport:
    """Report on one route's prompts, oldest first."""
    few = _Trials(prompts[:: -(-len(prompts) // _SAMPLE)])
    tried = candidates(prompts)
    changing = [one for one in tried if few.is_changed_by(one, tried)]
    # Settings that hinder others are dropped first.
    useful = few.drop_unneeded(few.drop_unneeded(changing, -LEAST_SHARE), LEAST_SHARE)
    trials = _Trials(prompts)
    as_sent, rewritten = trials.ceiling(()), trials.ceiling(useful)
    gains = [trials.gain(one, useful, rewritten.found) for one in useful]
    counted = [one for one in prompts if one.prompt_tokens]
    per_token = CHARACTERS_PER_TOKEN
    if counted:
        length = sum(len(trials.text(one, ())) for one in counted)
        per_token = length / sum(one.prompt_tokens or 0 for one in counted)
    return RouteReport(
        route=prompts[0].route,
        requests=len(prompts),
        tokens=round(as_sent.characters / per_token),
        tokens_counted=bool(counted),
        upstream=_cached_share([one for one in counted if one.cached_tokens is not None]),
        as_sent=as_sent,
        rewritten=rewritten,
        settings=tuple(sorted(gains, key=lambda gain: -gain.share)),
        too_little=tuple(one for one in changing if one not in useful),
        yaml=to_yaml(useful),
    )


def _cached_share(prompts: Sequence[RecordedRequest]) -> float | None:
    total = sum(one.prompt_tokens or 0 for one in prompts)
    return sum(one.cached_tokens or 0 for one in prompts) / total if total else None


@dataclass(frozen=True, slots=True)
class _Trials:
    """The prompts of one route, oldest first; its tools are read once."""

    prompts: Sequence[RecordedRequest]
    tools: KnownTools = field(default_factory=KnownTools)

    def parts(self, one: RecordedRequest, settings: Collection[Setting]) -> list[Part]:
        body = one.body
        if settings:
            prefix = compile_settings(tuple(settings))
            known = self.tools.forms(prefix.schema_keys, b"")
            result = rewrite(one.endpoint, body, one.raw, prefix, known=known)
            self.tools.note(prefix.schema_keys, result.tools, b"")
            body = result.body
        return list(prompt_parts(one.endpoint, body))

    def text(self, one: RecordedRequest, settings: Collection[Setting]) -> str:
        return "".join(part.text for part in self.parts(one, settings))

    def ceiling(self, settings: Collection[Setting]) -> Ceiling:
        earlier: list[str] = []  # in order, so that only neighbours need to be compared
        partings: dict[int, Parting] = {}
        characters = found = 0
        for one in self.prompts:
            parts = self.parts(one, settings)
            text = "".join(part.text for part in parts)
            at = bisect(earlier, text)
            neighbours = [(_common(text, each), each) for each in earlier[max(0, at - 1) : at + 1]]
            shared, other = max(neighbours, default=(0, ""))
            earlier.insert(at, text)
            characters += len(text)
            found += shared
            if shared < min(len(text), len(other)):  # else one goes on where the other ends
                start = text[:shared]
                parting = partings.get(hash(start))
                if parting is None:
                    ends = accumulate(len(part.text) for part in parts)
                    place = next(
                        p.place for p, end in zip(parts, ends, strict=True) if shared < end
                    )
                    way = other[shared : shared + _AFTER]
                    parting = Parting(place, start[-_BEFORE:], [way])
                    partings[hash(start)] = parting
                parting.lost += len(text) - shared
                if len(parting.ways) < _MOST_WAYS:
                    parting.ways.append(text[shared : shared + _AFTER])
        worst = max(partings.values(), key=lambda parting: parting.lost, default=None)
        return Ceiling(characters, found / max(1, characters), worst)

    def drop_unneeded(self, settings: Sequence[Setting], least: float) -> tuple[Setting, ...]:
        needed = tuple(settings)
        best = self.ceiling(needed).found
        for one in settings:
            others = tuple(other for other in needed if other != one)
            found = self.ceiling(others).found
            if best - found < least:
                needed, best = others, found
        return needed

    def is_changed_by(self, one: Setting, settings: Collection[Setting]) -> bool:
        """Tell whether a setting changes anything, alone or together with others."""
        others = tuple(other for other in settings if other != one)
        return any(self.first_change(each, (*each, one)) for each in ((), others))

    def first_change(
        self, fewer: Collection[Setting], more: Collection[Setting]
    ) -> tuple[str, str] | None:
        """Return the first prompt that differs between the settings, in both forms."""
        pairs = ((self.text(one, fewer), self.text(one, more)) for one in self.prompts)
        return next((pair for pair in pairs if pair[0] != pair[1]), None)

    def gain(self, one: Setting, settings: Collection[Setting], found: float) -> Gain:
        others = [other for other in settings if other != one]
        share = found - self.ceiling(others).found
        was, becomes = self.first_change(others, settings) or ("", "")
        at = _common(was, becomes)
        before = was[max(0, at - _BEFORE) : at]
        return Gain(one, share, before, was[at : at + _AFTER], becomes[at : at + _AFTER])


def candidates(prompts: Sequence[RecordedRequest]) -> list[Setting]:
    """Return the settings worth a trial."""
    # The strongest settings are tried without first: too strong a setting hinders others.
    volatile = [f"{_VOLATILE}{kind}" for kind in reversed(VolatileKind)]
    markers = [f"{_DOCUMENTS}{begin}" for begin in _markers(prompts[:_LOOKED_AT])]
    return [_TURNS, _WHITESPACE, *volatile, *markers[:_MOST_MARKERS], _TOOLS, _SCHEMA_KEYS]


def to_yaml(settings: Collection[Setting]) -> str:
    """Return the ``prefix`` of a rule with these settings, as YAML without indentation."""
    plain = (_SCHEMA_KEYS, _TOOLS, _WHITESPACE, _TURNS)
    lines = [f"  {one}" for one in plain if one in settings]
    if kinds := _of(settings, _VOLATILE):
        lines.append(f"  volatile: [{', '.join(each for each in VolatileKind if each in kinds)}]")
    if markers := _of(settings, _DOCUMENTS):  # a rule has one pair
        name = _NAME.match(markers[0])
        end = "" if name is None else f"</{name[1]}>"
        lines.append(f'  documents: {{begin: "{markers[0]}", end: "{end}"}}')
    return "\n".join(["prefix:", *lines]) if lines else ""


@lru_cache(maxsize=256)
def compile_settings(settings: tuple[Setting, ...]) -> PrefixSettings:
    """Return the prefix settings of a policy with only these settings."""
    indented = "".join(f"  {line}\n" for line in to_yaml(settings).splitlines())
    prefix = parse_policy(_POLICY + indented, "report").default.prefix
    return prefix if _SCHEMA_KEYS in settings else replace(prefix, schema_keys=SchemaKeys.OFF)


def _of(settings: Collection[Setting], kind: str) -> list[str]:
    return [one.removeprefix(kind) for one in settings if one.startswith(kind)]


def _markers(prompts: Iterable[RecordedRequest]) -> list[str]:
    """Return the beginnings of tags that enclose several pieces of one text, most frequent first.

    ``<document>``, or ``<document id=`` where something stands in them.
    """
    seen: Counter[str] = Counter()
    for one in prompts:
        for part in prompt_parts(one.endpoint, one.body):
            tags = Counter(_TAG.findall(part.text))
            seen.update(
                f"<{name}{rest}"
                for (name, rest), count in tags.items()
                if count > 1 and part.text.count(f"</{name}>") == count
            )
    return [begin for begin, _ in seen.most_common()]


def _common(one: str, other: str) -> int:
    low, high = 0, min(len(one), len(other))
    if other.startswith(one[:high]):
        return high
    while low < high - 1:
        middle = (low + high) // 2
        if other.startswith(one[low:middle], low):
            low = middle
        else:
            high = middle
    return low


def prompt_parts(endpoint: Endpoint, body: dict[str, Any]) -> Iterator[Part]:
    """Yield the parts of a request's prompt; values other than text are printed as JSON."""
    spec = SPECS[endpoint]
    for name in spec.tool_fields:
        for index, tool in enumerate(_listed(body.get(name))):
            yield Part(f"{name}[{index}]", _printed(_unmarked(tool)) + "\n")
    if spec.instructions is not None and body.get(spec.instructions):
        yield Part(spec.instructions, _text(body[spec.instructions]) + "\n")
    question = body.get(spec.question_field)
    if spec.turns is None:
        yield Part(spec.question_field, _text(question))
    elif isinstance(question, str):
        yield Part(spec.turns, f"<user>{question}\n")
    for index, turn in enumerate(_listed(question if spec.turns else None)):
        fields = _unmarked(turn) if isinstance(turn, dict) else {"content": turn}
        role = str(fields.get("role") or fields.get("type") or "user")
        others = {name: each for name, each in fields.items() if name not in ("role", "content")}
        text = _text(fields.get("content")) + (_printed(others) if others else "")
        yield Part(f"{spec.turns}[{index}] ({role})", f"<{role}>{text}\n")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            return text
        case list() if value and all(isinstance(each, dict) for each in value):
            return "\n".join(map(_text, value))
        case _:
            return _printed(_unmarked(value))


def _unmarked(value: Any) -> Any:
    """Return an object without its own marks; marks inside its values stay."""
    if not isinstance(value, dict) or MARKS.isdisjoint(value):
        return value
    return {name: each for name, each in value.items() if name not in MARKS}


def _printed(value: Any) -> str:
    try:
        printed = orjson.dumps(value).decode()
    except TypeError:  # nested deeper than can be printed
        return repr(value)
    # An image would count for thousands of times the tokens that a model makes of it.
    return _EMBEDDED.sub(_digest, printed) if ";base64," in printed else printed


def _digest(data: re.Match[str]) -> str:
    return blake2b(data[0].encode(), digest_size=16).hexdigest()


def run_report(*, log: Path, limit: int, as_json: bool) -> int:
    """Run ``refrain prefix report``; return the exit code.

    Only a log without any request is an error. The first prompts of each route are looked at,
    within a bound on their number and on the bytes of all; the report says where there were more.
    """
    lines = Lines(read_request, log)
    routes: dict[Route, list[RecordedRequest]] = {}
    counts: Counter[Route] = Counter()
    size = 0
    with progress("reading requests") as note:
        for _, one in noting(lines, note):
            counts[one.route] += 1
            prompts = routes.setdefault(one.route, [])
            # One at least, so that each route is reported.
            if len(prompts) < limit and (not prompts or size < _MOST_BYTES):
                prompts.append(one)
                size += len(one.raw)
    if not routes:
        hint = "a gateway writes them down with decision_log and decision_log_requests set"
        raise CommandError(f"{log}: no request in it; {hint}")
    most = [route for route, _ in counts.most_common(_MOST_ROUTES)]
    with progress("trying settings, route by route", len(most)) as note:
        reports = [report(routes[route]) for route in noting(most, note)]
    if as_json:
        plain = {"routes": [asdict(one) for one in reports], "skipped_lines": lines.skipped}
        show_json(plain)
        return 0
    rules = Counter(rule for rule, _, _ in most)
    for number, found in enumerate(reports):
        text = _route_text(found, counts[found.route], alone=rules[found.route[0]] == 1)
        print("\n" * (number > 0) + "\n".join(text), flush=True)
    if (more := len(counts) - len(most)) > 0:
        print(f"\n{more:,} routes with fewer requests are not told")
    if lines.skipped:
        print(f"\n{lines.skipped:,} lines held no request")
    return 0


def _route_text(one: RouteReport, requests: int, *, alone: bool) -> Iterator[str]:
    """Yield the lines about a route with this number of requests.

    ``alone`` tells that no other route has its rule.
    """
    rule, endpoint, model = one.route
    yield f"rule {printable(rule) or '-'}, {endpoint}, model {printable(model) or '-'}"
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
            yield f"    {gain.share:>6.1%} are lost without {printable(gain.setting)}"
            for sign, way in (("-", gain.was), ("+", gain.becomes)):
                yield f"         {sign} {printable(gain.before)}[{printable(way)}"[:_COLUMNS]
    if one.too_little:
        yield f"  less than {LEAST_SHARE:.1%} each: {printable(', '.join(one.too_little))}"
    if one.settings:
        yield from _to_paste(one, alone=alone)
    else:
        yield "  no setting would gain anything"


def _ceiling(held: str, one: Ceiling) -> Iterator[str]:
    yield f"  {held}: {one.found:.1%} could be found"
    worst = one.worst
    share = 0.0 if worst is None else worst.lost / one.characters
    if worst is not None and share >= LEAST_SHARE:
        yield f"    {share:>6.1%} are lost where prompts part in {printable(worst.place)}"
        for way in worst.ways:
            yield f"           {printable(worst.before)}[{printable(way)}"[:_COLUMNS]


def _to_paste(one: RouteReport, *, alone: bool) -> Iterator[str]:
    rule, endpoint, model = one.route
    indent = " " * 6
    if alone:
        yield "  to paste into the rule (or into default):"
    elif rule in ("", DEFAULT_RULE):
        yield "  to paste into rules, because other models or paths came by the same rule:"
        slug = re.sub("[^a-z0-9_-]+", "-", model.lower())[:_LONGEST_NAME].strip("-")
        name = f"{slug}-{endpoint.rpartition('/')[2]}".lstrip("-")
        yield f"      - name: {name}"
        yield f"        match: {{endpoint: {endpoint}, model: {json.dumps(model)}}}"
        indent = " " * 8
    else:
        yield f"  to paste into a copy of the rule for {endpoint}, {printable(model)} alone:"
    yield from (indent + line for line in one.yaml.splitlines())
