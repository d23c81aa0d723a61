"""What of recorded prompts a prefix cache could have had, where they part, and what would mend it.

Law: nothing is guessed that can be tried. Every setting is tried on the prompts themselves, against
an unbounded prefix cache, and only those are recommended without which less would be found.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gateway.core.prefix_tree import Node, PrefixTree
from gateway.core.prompt_layout import Part, laid_out
from gateway.core.types import Endpoint

CHARACTERS_PER_TOKEN = 4.0
"""Where no upstream has told."""
LEAST_SHARE = 0.005
"""Of all tokens: what a setting must save, and a parting must lose, to be told."""
_BEFORE, _AFTER = 32, 24
_MOST_WAYS = 3
_MOST_TRIED = 40
"""Partings whose cause is looked for: those that lose most."""

Setting = str
"""A setting's name, such as ``volatile: uuids``."""
Rewriting = Callable[["Recorded", Collection[Setting]], dict[str, Any]]
"""Returns a recorded body as it would go on to the upstream with these settings."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recorded request, and what the upstream said of it."""

    endpoint: Endpoint
    model: str
    rule: str
    body: dict[str, Any] = field(repr=False)
    raw: bytes = field(repr=False)
    """The JSON of ``body``."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None

    @property
    def route(self) -> tuple[str, str, str]:
        """What has settings of its own: rule, endpoint and model."""
        return (self.rule, self.endpoint.value, self.model)


@dataclass(frozen=True, slots=True)
class Found:
    """Of so many characters, those that began an earlier prompt, too."""

    characters: int
    shared: int

    @property
    def share(self) -> float:
        """0 to 1."""
        return self.shared / self.characters if self.characters else 0.0


@dataclass(frozen=True, slots=True)
class Parting:
    """Where prompts part: ``ways`` begin with the bytes that differ, behind ``before``."""

    place: str
    cause: Setting | None
    """The setting under which they go on together; None where there is none."""
    asked: bool
    """Whether it is what is asked: nothing is wrong with it."""
    prompts: int
    lost: int
    """Characters behind it that had to be read anew."""
    before: str
    ways: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Layer:
    """Where prompts part once some settings hold; what one hides shows only in the next."""

    settings: tuple[Setting, ...]
    found: float
    partings: tuple[Parting, ...]


@dataclass(frozen=True, slots=True)
class RouteReport:
    """What was found out about one route; shares are of ``characters``."""

    route: tuple[str, str, str]
    requests: int
    characters: int
    tokens: int
    tokens_counted: bool
    """Whether the upstream counted them; else they are estimated."""
    as_sent: float
    upstream: float | None
    """Share of prompt tokens that the upstream itself reported as cached."""
    settings: tuple[tuple[Setting, float], ...]
    """What to set, and the share of all tokens that is lost without it."""
    layers: tuple[Layer, ...]
    """As sent first, all of ``settings`` last."""

    @property
    def rewritten(self) -> float:
        """The share that is found with all settings."""
        return self.layers[-1].found


def report(
    prompts: Sequence[Recorded],
    candidates: Sequence[Setting],
    rewriting: Rewriting,
    progress: Callable[[], None] = lambda: None,
) -> RouteReport:
    """Report on one route's prompts, in the order in which they came.

    ``progress`` is called after each pass over them; there are at most ``passes(candidates)``.
    """
    as_sent = _found(prompts, None)
    progress()
    needed = _needed(prompts, candidates, rewriting, as_sent.share, progress)
    told = [one for one in prompts if one.prompt_tokens]
    counted = sum(one.prompt_tokens or 0 for one in told)
    cached = [one.cached_tokens for one in told if one.cached_tokens is not None]
    return RouteReport(
        route=prompts[0].route,
        requests=len(prompts),
        characters=as_sent.characters,
        tokens=round(as_sent.characters / _characters_per_token(told, counted)),
        tokens_counted=counted > 0,
        as_sent=as_sent.share,
        upstream=sum(cached) / counted if cached and counted else None,
        settings=tuple(needed.items()),
        layers=tuple(_layers(prompts, list(needed), candidates, rewriting, progress)),
    )


def passes(candidates: Sequence[Setting]) -> int:
    """Return how many passes over the prompts a report takes at most."""
    return 2 * len(candidates) + 3


def _layers(
    prompts: Sequence[Recorded],
    needed: Sequence[Setting],
    candidates: Sequence[Setting],
    rewriting: Rewriting,
    progress: Callable[[], None],
) -> Iterator[Layer]:
    """Yield what shows as the settings are taken in, that first which mends most."""
    applied: tuple[Setting, ...] = ()
    while True:
        bodies = [replace(one, body=rewriting(one, applied)) if applied else one for one in prompts]
        tree = PrefixTree()
        found = _found(bodies, None, tree)
        progress()
        left = [one for one in needed if one not in applied]
        tried = [one for one in candidates if one not in applied]
        again = partial(_on_top, prompts, rewriting, applied)
        partings = _partings(bodies, tree, tried, again, found.characters)
        yield Layer(applied, found.share, partings)
        if not left:
            return
        next_one = [one.cause for one in partings if one.cause in left]
        applied = (*applied, next_one[0] if next_one and next_one[0] else left[0])


def _on_top(
    prompts: Sequence[Recorded],
    rewriting: Rewriting,
    applied: tuple[Setting, ...],
    number: int,
    setting: Setting,
) -> str:
    """Return the text of one prompt with one setting more."""
    one = prompts[number]
    return _text(rewriting(one, (*applied, setting)), one.endpoint)


def _text(body: dict[str, Any], endpoint: Endpoint) -> str:
    return "".join(part.text for part in laid_out(endpoint, body))


def _found(
    prompts: Sequence[Recorded],
    rewritten: Callable[[Recorded], dict[str, Any]] | None,
    tree: PrefixTree | None = None,
) -> Found:
    tree = PrefixTree() if tree is None else tree
    characters = shared = 0
    for one in prompts:
        text = _text(one.body if rewritten is None else rewritten(one), one.endpoint)
        characters += len(text)
        shared += tree.add(text)
    return Found(characters, shared)


def _needed(
    prompts: Sequence[Recorded],
    candidates: Sequence[Setting],
    rewriting: Rewriting,
    as_sent: float,
    progress: Callable[[], None],
) -> dict[Setting, float]:
    """Return the settings without which less is found, and how much less.

    They hide one another (a time in front of shuffled documents), so all are tried together first,
    and those are taken away that are not missed.
    """

    def share(settings: Collection[Setting]) -> float:
        if not settings:
            return as_sent
        found = _found(prompts, lambda one: rewriting(one, settings))
        progress()
        return found.share

    kept = list(candidates)
    best = share(kept)
    if best - as_sent < LEAST_SHARE:
        return {}
    missed: dict[Setting, float] = {}
    for candidate in candidates:
        without = [one for one in kept if one != candidate]
        loss = best - share(without)
        if loss < LEAST_SHARE:
            kept, best = without, best - loss
        else:
            missed[candidate] = loss
    return missed


def _characters_per_token(told: Sequence[Recorded], counted: int) -> float:
    if not counted:
        return CHARACTERS_PER_TOKEN
    return sum(len(_text(one.body, one.endpoint)) for one in told) / counted


def _partings(
    prompts: Sequence[Recorded],
    tree: PrefixTree,
    candidates: Sequence[Setting],
    again: Callable[[int, Setting], str],
    characters: int,
) -> tuple[Parting, ...]:
    """Return where prompts part, those in the same place for the same cause as one."""
    nodes = sorted((node for node in tree.partings() if node.lost), key=lambda node: -node.lost)
    gathered: dict[tuple[str, Setting | None, bool], list[Node]] = {}
    for node in nodes[:_MOST_TRIED]:
        # Of a prompt that goes on: one that ends here may have no part at all.
        one = prompts[next(iter(node.children.values())).prompt]
        parts = list(laid_out(one.endpoint, one.body))
        part = _part_at(parts, node.end)
        asked = part is parts[-1] and part.role == "user"
        cause = None if asked else _cause(node, candidates, again)
        place = "tools" if part.role == "tools" else f"{part.place} ({part.role})"
        gathered.setdefault((place, cause, asked), []).append(node)
    found = [_parting(prompts, *key, nodes) for key, nodes in gathered.items()]
    told = [one for one in found if one.lost >= LEAST_SHARE * characters]
    return tuple(sorted(told, key=lambda one: -one.lost))


def _part_at(parts: Sequence[Part], at: int) -> Part:
    for part in parts:
        at -= len(part.text)
        if at < 0:
            return part
    return parts[-1]


def _cause(
    node: Node, candidates: Sequence[Setting], again: Callable[[int, Setting], str]
) -> Setting | None:
    """Return the setting under which two prompts that part here have most in common, if more."""
    one, other = [child.prompt for child in node.children.values()][:2]
    gains: dict[Setting, int] = {}
    for candidate in candidates:
        pair = PrefixTree()
        pair.add(again(one, candidate))
        gains[candidate] = pair.add(again(other, candidate))
    best = max(gains, key=gains.__getitem__, default=None)
    return best if best is not None and gains[best] > node.end else None


def _parting(
    prompts: Sequence[Recorded],
    place: str,
    cause: Setting | None,
    asked: bool,
    nodes: Sequence[Node],
) -> Parting:
    first = nodes[0]
    shown = [prompts[child.prompt] for child in list(first.children.values())[:_MOST_WAYS]]
    texts = [_text(one.body, one.endpoint) for one in shown]
    return Parting(
        place=place,
        cause=cause,
        asked=asked,
        prompts=max(node.visits for node in nodes),
        lost=sum(node.lost for node in nodes),
        before=texts[0][max(0, first.end - _BEFORE) : first.end],
        ways=tuple(text[first.end : first.end + _AFTER] for text in texts),
    )
