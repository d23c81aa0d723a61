"""Where prompts part, and which setting lets them go on together.

Law: all that is lost is told, by the place where it is lost; the cause of a place is that of those
of its partings which lose most.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from gateway.cli.prefix_tree import Node, PrefixTree
from gateway.cli.prefix_trials import LEAST_SHARE, Ground, Place, Setting, Trial, Trials
from gateway.cli.prompt_layout import part_at
from gateway.prompts.rewrite.detectors import PLACEHOLDER

_BEFORE, _AFTER = 32, 24
_MOST_WAYS = 3
_MOST_TRIED = 8
"""Partings of a place whose cause is looked for: those that lose most."""
_MENDABLE = (Ground.STABLE, Ground.SAID)
_LOOKED_AT = 200
_PIECE = re.compile(r"[\n.{}]+")
_SHORTEST_PIECE = 20
_PLACEHOLDER = re.compile(PLACEHOLDER)
_MOVED = re.compile(rf"^({PLACEHOLDER}) = (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Parting:
    """Where prompts part: ``ways`` begin with the bytes that differ, behind ``before``."""

    place: str
    ground: Ground
    prompts: int
    """Those that left the others here."""
    lost: int
    """Characters behind it that had to be read anew."""
    before: str
    ways: tuple[str, ...]
    cause: Setting | None = None
    """The setting under which they go on together; None where there is none."""
    repeated: float = 0.0
    """The share of what is asked that others ask in the same words: instructions, documents."""
    is_cut: bool = False
    """Whether turns that an earlier prompt began with are left out, so that all others move up."""


def partings(
    trials: Trials, settings: Sequence[Setting], trial: Trial, candidates: Collection[Setting]
) -> tuple[Parting, ...]:
    """Return where prompts with some settings part, and which candidate would mend it."""
    gathered: dict[Place, list[Node]] = defaultdict(list)
    for node, place in trial.places.items():
        gathered[place].append(node)
    least = LEAST_SHARE * trial.found.characters
    found = []
    for place, nodes in gathered.items():
        if sum(node.lost for node in nodes) >= least:
            nodes.sort(key=lambda node: -node.lost)
            one = _parting(trials, settings, place, nodes)
            if place.ground in _MENDABLE:
                one = replace(one, cause=_cause(trials, settings, nodes, candidates))
            if place.ground is Ground.SAID:
                one = replace(one, is_cut=_is_cut(trials, settings, nodes))
            elif place.ground is Ground.ASKED:
                one = replace(one, repeated=_repeated(trials, settings, nodes))
            found.append(one)
    return tuple(sorted(found, key=lambda one: -one.lost))


def _parting(
    trials: Trials, settings: Sequence[Setting], place: Place, nodes: Sequence[Node]
) -> Parting:
    first = nodes[0]
    shown = [child.prompt for child in first.children.values()][:_MOST_WAYS]
    texts = [trials.text(number, settings) for number in shown]
    return Parting(
        place=place.words,
        ground=place.ground,
        prompts=sum(len(node.children) - 1 for node in nodes),
        lost=sum(node.lost for node in nodes),
        before=texts[0][max(0, first.end - _BEFORE) : first.end],
        ways=tuple(text[first.end : first.end + _AFTER] for text in texts),
    )


def _cause(
    trials: Trials,
    settings: Sequence[Setting],
    nodes: Sequence[Node],
    candidates: Collection[Setting],
) -> Setting | None:
    """Return the setting that lets go on together what most is lost behind."""
    votes: Counter[Setting] = Counter()
    for node in nodes[:_MOST_TRIED]:
        if (cause := _cause_at(trials, settings, node, candidates)) is not None:
            votes[cause] += node.lost
    return max(votes, key=votes.__getitem__, default=None)


def _cause_at(
    trials: Trials, settings: Sequence[Setting], node: Node, candidates: Collection[Setting]
) -> Setting | None:
    """Return the setting under which two prompts that part here have most in common, if more."""
    pair = [child.prompt for child in node.children.values()][:2]
    now = _in_common(trials, settings, pair)
    gains = {each: _in_common(trials, (*settings, each), pair) - now for each in candidates}
    best = max(gains, key=gains.__getitem__, default=None)
    return best if best is not None and gains[best] > 0 else None


def _in_common(trials: Trials, settings: Sequence[Setting], pair: Sequence[int]) -> int:
    """Return how much two prompts begin with, values in place of their placeholders.

    So a placeholder that is longer than its value is no gain.
    """
    one, other = (trials.parts(number, settings) for number in pair)
    values = {
        found[1]: found[2] for part in one if part.is_block for found in _MOVED.finditer(part.text)
    }
    text = "".join(part.text for part in one)
    tree = PrefixTree()
    tree.add(text)
    shared = text[: tree.add("".join(part.text for part in other))]
    placeholders = _PLACEHOLDER.findall(shared)
    return len(shared) + sum(len(values.get(each, each)) - len(each) for each in placeholders)


def _is_cut(trials: Trials, settings: Sequence[Setting], nodes: Sequence[Node]) -> bool:
    """Tell whether most is lost where a prompt goes on with a turn that another has later."""
    lost = cut = 0
    for node in nodes[:_MOST_TRIED]:
        earlier, later = sorted(child.prompt for child in node.children.values())[:2]
        parts = trials.parts(later, settings)
        part, start = part_at(parts, node.end)
        others = trials.parts(earlier, settings)
        here, _ = part_at(others, start)
        behind = {each.text for each in others[others.index(here) + 1 :]}
        lost += node.lost
        # Where values were moved, a block stood before the turn that was the last one then.
        cut += node.lost * (part.text in behind and not here.is_block)
    return 2 * cut > lost


def _repeated(trials: Trials, settings: Sequence[Setting], nodes: Sequence[Node]) -> float:
    """Return the share of the text behind these nodes that stands behind them twice."""
    prompts = [(child.prompt, node.end) for node in nodes for child in node.children.values()]
    texts = [trials.text(number, settings)[at:] for number, at in prompts[:_LOOKED_AT]]
    pieces = Counter(piece for text in texts for piece in set(_PIECE.split(text)))
    repeated = sum(
        len(piece)
        for text in texts
        for piece in _PIECE.split(text)
        if len(piece) >= _SHORTEST_PIECE and pieces[piece] > 1
    )
    return repeated / max(1, sum(map(len, texts)))
