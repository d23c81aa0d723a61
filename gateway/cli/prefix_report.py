"""What of recorded prompts a prefix cache could have had, where they part, and what would mend it.

Law: only those settings are recommended without which less would be found.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gateway.cli.prefix_choice import Naming, lost_without, needed, worth_a_trial
from gateway.cli.prefix_partings import Parting, partings
from gateway.cli.prefix_trials import LEAST_SHARE, Rewriting, Setting, Trial, Trials
from gateway.cli.recorded_requests import Recorded, Route

CHARACTERS_PER_TOKEN = 4.0
"""Where no upstream has told."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Where prompts part once some settings hold; what one hides shows only in the next."""

    settings: tuple[Setting, ...]
    found: float
    partings: tuple[Parting, ...]


@dataclass(frozen=True, slots=True)
class RouteReport:
    """What was found out about one route; shares are of ``characters``."""

    route: Route
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
    naming: Naming,
    progress: Callable[[int, int], None] = lambda _done, _most: None,
) -> RouteReport:
    """Report on one route's prompts, in the order in which they came.

    ``naming`` makes a setting of a pattern. ``progress`` is told after each pass over the prompts
    how many there were, and how many there are at most.
    """
    tried = worth_a_trial(Trials(prompts, rewriting), candidates, naming)
    done = 0

    def pass_done() -> None:
        nonlocal done
        done += 1
        progress(done, _most_passes(tried))

    trials = Trials(prompts, rewriting, pass_done)
    found, *_ = trial = trials.tried(())
    first = _layer(trials, (), trial, tried)
    layers = _worth_it((first, *_layers(trials, first, needed(trials, tried), tried)))
    last = layers[-1]
    losses = lost_without(trials, last.settings, found.share, last.found)
    size = [(len(trials.text(at, ())), one.prompt_tokens) for at, one in enumerate(prompts)]
    counted = [(characters, tokens) for characters, tokens in size if tokens]
    per_token = CHARACTERS_PER_TOKEN
    if counted:
        per_token = sum(length for length, _ in counted) / sum(tokens for _, tokens in counted)
    return RouteReport(
        route=prompts[0].route,
        requests=len(prompts),
        characters=found.characters,
        tokens=round(found.characters / per_token),
        tokens_counted=bool(counted),
        as_sent=found.share,
        upstream=_cached_share(prompts),
        settings=tuple(losses.items()),
        layers=layers,
    )


def _most_passes(tried: Sequence[Setting]) -> int:
    return 2 * len(tried) + 1


def _worth_it(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Return the layers up to the one behind which all others together gain next to nothing."""
    enough = layers[-1].found - LEAST_SHARE
    first = next(at for at, layer in enumerate(layers) if layer.found >= enough)
    return layers[: first + 1]


def _layers(
    trials: Trials, layer: Layer, left: list[Setting], tried: Sequence[Setting]
) -> Iterator[Layer]:
    """Yield what shows as the settings are taken in, that first which mends most."""
    while left:
        causes = [one.cause for one in layer.partings if one.cause in left]
        taken = causes[0] if causes and causes[0] is not None else left[0]
        left = [one for one in left if one != taken]
        settings = (*layer.settings, taken)
        layer = _layer(trials, settings, trials.tried(settings), tried)
        yield layer


def _layer(
    trials: Trials, settings: tuple[Setting, ...], trial: Trial, tried: Sequence[Setting]
) -> Layer:
    others = [one for one in tried if one not in settings]
    return Layer(settings, trial.found.share, partings(trials, settings, trial, others))


def _cached_share(prompts: Sequence[Recorded]) -> float | None:
    told = [
        (one.cached_tokens, one.prompt_tokens)
        for one in prompts
        if one.prompt_tokens and one.cached_tokens is not None
    ]
    counted = sum(tokens for _, tokens in told)
    return sum(cached for cached, _ in told) / counted if counted else None
