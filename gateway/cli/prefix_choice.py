"""Which settings a route needs: those worth a trial, patterns for what none knows, those missed.

Law: settings hide one another (a time in front of shuffled documents), and one that goes too far
keeps others from their work, so they are tried together and taken away one by one.
"""

from collections.abc import Callable, Iterator, Sequence

from gateway.cli.prefix_patterns import pattern
from gateway.cli.prefix_tree import Node, PrefixTree
from gateway.cli.prefix_trials import LEAST_SHARE, Found, Setting, Trials
from gateway.cli.prompt_layout import INSTRUCTING, part_at

SAMPLE = 200
"""Prompts that settings and patterns are looked for in."""
_TAKEN_AWAY_FROM = 500
"""Prompts from which settings are taken away one by one."""
_MOST_PATTERNS = 16
_MOST_ROUNDS = 16
_COMPARED = 16

Naming = Callable[[str], Setting]
"""Returns the setting that a pattern is."""


def worth_a_trial(
    trials: Trials, candidates: Sequence[Setting], naming: Naming
) -> tuple[Setting, ...]:
    """Return those of the candidates that change anything and do no harm, and patterns."""
    few = trials.sample(SAMPLE)
    as_sent = [few.text(number, ()) for number in range(len(few.prompts))]
    kept = [one for one in candidates if _changes(few, one, as_sent)]
    kept = _harmless(few, kept, [])
    own: list[Setting] = []
    for _ in range(_MOST_ROUNDS):
        made = dict.fromkeys(map(naming, _patterns(few, (*own, *kept))))
        new = [each for each in made if each not in own][: _MOST_PATTERNS - len(own)]
        own += new
        if not new or len(own) >= _MOST_PATTERNS:
            break
    return (*own, *_harmless(few, kept, own))


def _harmless(trials: Trials, settings: Sequence[Setting], own: Sequence[Setting]) -> list[Setting]:
    """Return the settings that keep none of the others, and no pattern, from their work."""
    kept = list(settings)
    best = _stable_share(trials, (*own, *kept))
    for one in settings:
        without = [other for other in kept if other != one]
        if (share := _stable_share(trials, (*own, *without))) - best >= LEAST_SHARE:
            kept, best = without, share
    return kept


def needed(trials: Trials, candidates: Sequence[Setting]) -> list[Setting]:
    """Return the candidates without which less is found."""
    few = trials.sample(_TAKEN_AWAY_FROM)
    kept = list(candidates)
    best = few.share(kept)
    for one in candidates:
        without = [other for other in kept if other != one]
        loss = best - few.share(without)
        if loss < LEAST_SHARE:
            kept, best = without, best - loss
    return kept


def lost_without(
    trials: Trials, settings: Sequence[Setting], as_sent: float, found: float
) -> dict[Setting, float]:
    """Return how much less is found without each of these settings, the most first."""
    losses = {}
    for one in settings:
        without = [other for other in settings if other != one]
        losses[one] = found - (trials.share(without) if without else as_sent)
    return dict(sorted(losses.items(), key=lambda loss: -loss[1]))


def _stable_share(trials: Trials, settings: Sequence[Setting]) -> float:
    """Return what share would be found, less what was moved: where more hides, that is only added.

    So a share falls only where a setting keeps others from their work.
    """
    tree = PrefixTree()
    characters = shared = 0
    for number in range(len(trials.prompts)):
        parts = trials.parts(number, settings)
        text = "".join(part.text for part in parts if not part.is_block)
        characters += len(text)
        shared += tree.add(text)
    return Found(characters, shared).share


def _changes(trials: Trials, setting: Setting, as_sent: Sequence[str]) -> bool:
    return any(trials.text(number, (setting,)) != text for number, text in enumerate(as_sent))


def _patterns(trials: Trials, settings: Sequence[Setting]) -> Iterator[str]:
    """Yield patterns for what differs in instructions, at the first places where it does."""
    found, tree, _ = trials.tried(settings)
    least = LEAST_SHARE * found.characters
    lost = _lost_behind(tree)
    waiting = [tree.root]
    while waiting:
        node = waiting.pop()
        made = _pattern_at(trials, settings, node) if len(node.children) > 1 else None
        if made is not None:
            yield made  # what is behind it shows once it moves
        else:
            waiting += (each for each in node.children.values() if lost[each] >= least)


def _lost_behind(tree: PrefixTree) -> dict[Node, int]:
    """Return what is lost at each node and at all behind it."""
    nodes = [tree.root]
    for node in nodes:
        nodes += node.children.values()
    lost: dict[Node, int] = {}
    for node in reversed(nodes):
        lost[node] = node.lost + sum(lost[each] for each in node.children.values())
    return lost


def _pattern_at(trials: Trials, settings: Sequence[Setting], node: Node) -> str | None:
    texts: list[str] = []
    at = 0
    for child in list(node.children.values())[:_COMPARED]:
        part, start = part_at(trials.parts(child.prompt, settings), node.end)
        if part.role not in INSTRUCTING:
            return None
        texts.append(part.text[part.opening :])
        at = node.end - start - part.opening
    return pattern(texts, at) if at > 0 else None
