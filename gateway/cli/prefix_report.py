"""What an unbounded prefix cache would find of recorded prompts, and settings for it to find more.

Law: nothing is guessed that can be tried. Settings hide one another (a time in front of shuffled
documents), so all are tried together and taken away one by one; only those are recommended without
which less would be found.

The text of a prompt has its parts in the order in which a model reads them: tools, instructions,
turns. Chat templates differ; this is the order of OpenAI's and Anthropic's own prefix caches. A
client's own marks for the cache are no part of the prompt, and are left out.
"""

import re
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate
from typing import Any, NamedTuple

import orjson

from gateway.prompts.rewrite.rewrite import rewrite
from gateway.prompts.rewrite.tool_rules import KnownTools
from gateway.protocol.endpoints.table import SPECS
from gateway.server.admin.recorded_request import RecordedRequest, Route
from policies.decision import MARKS, Endpoint, PrefixSettings, SchemaKeys, VolatileKind
from policies.format.load import parse_policy

CHARACTERS_PER_TOKEN = 4.0
"""Where no upstream has counted."""
LEAST_SHARE = 0.005
"""Of all characters: what a setting must gain to be recommended."""

_SAMPLE = 500
"""Prompts from which settings are taken away one by one."""
_BEFORE, _AFTER = 32, 24
_MOST_WAYS = 3

_SCHEMA_KEYS, _TOOLS = "schema_keys: on", "tools: sorted"
_WHITESPACE, _TURNS = "whitespace: on", "turns: earlier"
_VOLATILE, _DOCUMENTS = "volatile: ", "documents: "
# The further one goes, the earlier it is taken away: what goes too far keeps others from work.
_KINDS = (
    VolatileKind.DATES,
    VolatileKind.USER_NAMES,
    VolatileKind.COMMITS,
    VolatileKind.REQUEST_IDS,
    VolatileKind.UUIDS,
    VolatileKind.TIMESTAMPS,
)
_TAG = re.compile(r"<([A-Za-z][A-Za-z0-9_-]{1,30})(>| +[A-Za-z_][\w.:-]{0,30}=)")
_NAME = re.compile(r"<([A-Za-z0-9_-]+)")
_LOOKED_AT = 200
_MOST_MARKERS = 3
_SPOKEN = frozenset({"text", "input_text", "output_text"})
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
    """Characters behind it that had to be read anew."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What would be found of so many characters, and where most of the rest is lost."""

    characters: int
    found: float
    worst: Parting | None


@dataclass(frozen=True, slots=True)
class Gain:
    """What is lost without a setting, and the first bytes that it changes, behind ``before``."""

    setting: Setting
    share: float
    before: str
    was: str
    becomes: str


@dataclass(frozen=True, slots=True)
class RouteReport:
    """What was found out about one route; shares are of all characters of its prompts."""

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
    """What to set, that first which gains most."""
    too_little: tuple[Setting, ...]
    """Settings that change something, but without which no less is found."""
    yaml: str
    """The ``prefix`` to paste, empty where nothing gains."""


def report(
    prompts: Sequence[RecordedRequest],
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> RouteReport:
    """Report on one route's prompts, in the order in which they came.

    ``progress`` gets after each pass over the prompts the number of passes done, and of all.
    """
    few = _Trials(prompts[:: -(-len(prompts) // _SAMPLE)])
    tried = candidates(prompts)
    changing = [one for one in tried if few.is_changed_by(one, tried)]
    # First those go that keep others from their work.
    kept = few.kept(few.kept(changing, -LEAST_SHARE), LEAST_SHARE)
    done = 0

    def pass_done() -> None:
        nonlocal done
        done += 1
        progress(done, 2 + len(kept))

    trials = _Trials(prompts, pass_done)
    as_sent, rewritten = trials.tried(()), trials.tried(kept)
    gains = [trials.gain(one, kept, rewritten.found) for one in kept]
    sizes = [(len(trials.text(one, ())), one.prompt_tokens) for one in prompts if one.prompt_tokens]
    per_token = CHARACTERS_PER_TOKEN
    if sizes:
        per_token = sum(length for length, _ in sizes) / sum(tokens for _, tokens in sizes)
    return RouteReport(
        route=prompts[0].route,
        requests=len(prompts),
        tokens=round(as_sent.characters / per_token),
        tokens_counted=bool(sizes),
        upstream=_cached_share(prompts),
        as_sent=as_sent,
        rewritten=rewritten,
        settings=tuple(sorted(gains, key=lambda gain: -gain.share)),
        too_little=tuple(one for one in changing if one not in kept),
        yaml=written(kept),
    )


@dataclass(frozen=True, slots=True)
class _Trials:
    """The prompts of one route, in the order in which they came; its tools are read once."""

    prompts: Sequence[RecordedRequest]
    passed: Callable[[], None] = lambda: None
    tools: KnownTools = field(default_factory=KnownTools)

    def parts(self, one: RecordedRequest, settings: Collection[Setting]) -> list[Part]:
        """Return a prompt as it would go on with these settings."""
        body = one.body
        if settings:
            prefix = _compiled(tuple(settings))
            known = self.tools.forms(prefix.schema_keys, b"")
            result = rewrite(one.endpoint, body, one.raw, prefix, known=known)
            self.tools.note(prefix.schema_keys, result.tools, b"")
            body = result.body
        return list(prompt_parts(one.endpoint, body))

    def text(self, one: RecordedRequest, settings: Collection[Setting]) -> str:
        return "".join(part.text for part in self.parts(one, settings))

    def tried(self, settings: Collection[Setting]) -> Ceiling:
        """Return what would be found: of each prompt what began an earlier one, too."""
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
                    way = other[shared : shared + _AFTER]
                    parting = Parting(_place_at(parts, shared), start[-_BEFORE:], [way])
                    partings[hash(start)] = parting
                parting.lost += len(text) - shared
                if len(parting.ways) < _MOST_WAYS:
                    parting.ways.append(text[shared : shared + _AFTER])
        self.passed()
        worst = max(partings.values(), key=lambda parting: parting.lost, default=None)
        return Ceiling(characters, found / max(1, characters), worst)

    def kept(self, settings: Sequence[Setting], least: float) -> tuple[Setting, ...]:
        """Return the settings without each of which so much less is found."""
        kept = tuple(settings)
        best = self.tried(kept).found
        for one in settings:
            others = tuple(other for other in kept if other != one)
            found = self.tried(others).found
            if best - found < least:
                kept, best = others, found
        return kept

    def is_changed_by(self, one: Setting, settings: Collection[Setting]) -> bool:
        """Tell whether a setting changes anything; some do only where others hold, too."""
        others = tuple(other for other in settings if other != one)
        return any(self.first_change(each, (*each, one)) for each in ((), others))

    def first_change(
        self, fewer: Collection[Setting], more: Collection[Setting]
    ) -> tuple[str, str] | None:
        """Return the first prompt that these settings do not leave alike, as both make it."""
        pairs = ((self.text(one, fewer), self.text(one, more)) for one in self.prompts)
        return next((pair for pair in pairs if pair[0] != pair[1]), None)

    def gain(self, one: Setting, settings: Collection[Setting], found: float) -> Gain:
        others = [other for other in settings if other != one]
        share = found - self.tried(others).found
        was, becomes = self.first_change(others, settings) or ("", "")
        at = _common(was, becomes)
        before = was[max(0, at - _BEFORE) : at]
        return Gain(one, share, before, was[at : at + _AFTER], becomes[at : at + _AFTER])


def candidates(prompts: Sequence[RecordedRequest]) -> list[Setting]:
    """Return the settings worth a trial."""
    volatile = [f"{_VOLATILE}{kind}" for kind in _KINDS]
    markers = [f"{_DOCUMENTS}{begin}" for begin in _markers(prompts[:_LOOKED_AT])]
    return [_TURNS, _WHITESPACE, *volatile, *markers[:_MOST_MARKERS], _TOOLS, _SCHEMA_KEYS]


def written(settings: Collection[Setting]) -> str:
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


def compiled(settings: Collection[Setting]) -> PrefixSettings:
    """Return what a policy with these settings, and nothing else, has a prompt rewritten by."""
    indented = "".join(f"  {line}\n" for line in written(settings).splitlines())
    prefix = parse_policy(_POLICY + indented, "report").default.prefix
    return prefix if _SCHEMA_KEYS in settings else replace(prefix, schema_keys=SchemaKeys.OFF)


_compiled: Callable[[tuple[Setting, ...]], PrefixSettings] = lru_cache(256)(compiled)


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


def _place_at(parts: Sequence[Part], at: int) -> str:
    ends = accumulate(len(part.text) for part in parts)
    return next(part.place for part, end in zip(parts, ends, strict=True) if at < end)


def _common(one: str, other: str) -> int:
    """Return how many characters two texts begin with alike."""
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


def _cached_share(prompts: Iterable[RecordedRequest]) -> float | None:
    counts = [
        (one.cached_tokens, one.prompt_tokens)
        for one in prompts
        if one.prompt_tokens and one.cached_tokens is not None
    ]
    total = sum(tokens for _, tokens in counts)
    return sum(cached for cached, _ in counts) / total if total else None


def prompt_parts(endpoint: Endpoint, body: dict[str, Any]) -> Iterator[Part]:
    """Yield the parts of a request's prompt; what is not text is printed as JSON."""
    spec = SPECS[endpoint]
    for name in spec.tool_fields:
        for index, tool in enumerate(_listed(body.get(name))):
            yield Part(f"{name}[{index}]", _printed(_unmarked(tool)) + "\n")
    if spec.instructions is not None and body.get(spec.instructions):
        yield Part(spec.instructions, _text(body[spec.instructions]) + "\n")
    if spec.turns is not None:
        yield from _turns(spec.turns, body.get(spec.turns))
    else:
        yield Part(spec.question_field, _text(body.get(spec.question_field)))


def _turns(field: str, turns: Any) -> Iterator[Part]:
    if isinstance(turns, str):
        yield Part(field, f"<user>{turns}\n")
        return
    for index, turn in enumerate(_listed(turns)):
        if not isinstance(turn, dict):
            yield Part(f"{field}[{index}]", _printed(turn))
            continue
        role = str(turn.get("role") or turn.get("type") or "user")
        rest = {name: turn[name] for name in _unmarked(turn) if name not in ("role", "content")}
        others = _printed(rest) if rest else ""
        yield Part(f"{field}[{index}] ({role})", f"<{role}>{_text(turn.get('content'))}{others}\n")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case list() if value and all(isinstance(each, dict) for each in value):
            return "\n".join(map(_part_text, value))
        case _:
            return _printed(value)


def _part_text(part: dict[str, Any]) -> str:
    text = part.get("text")
    if part.get("type") in _SPOKEN and isinstance(text, str):
        return text
    return _printed(_unmarked(part))


def _unmarked(value: Any) -> Any:
    """Return an object without marks; those of what it holds are left."""
    if not isinstance(value, dict) or MARKS.isdisjoint(value):
        return value
    return {name: each for name, each in value.items() if name not in MARKS}


def _printed(value: Any) -> str:
    try:
        printed = orjson.dumps(value).decode()
    except TypeError:  # nested deeper than can be printed, or lone surrogates
        return repr(value)
    # An image would count for thousands of times the tokens that a model makes of it.
    return _EMBEDDED.sub(_digest, printed) if ";base64," in printed else printed


def _digest(data: re.Match[str]) -> str:
    return blake2b(data[0].encode(), digest_size=16).hexdigest()
