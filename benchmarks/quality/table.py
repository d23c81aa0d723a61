"""The figures as text. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from quality.kept_budget import Promise
from quality.outcomes import (
    Outcome,
    Share,
    Try,
    grouped,
    hits,
    right_hits,
    wrong_among_hits,
    wrong_hits,
)
from quality.rows import Row
from quality.systems import guards_in

_LABEL, _CELL, _GOAL = 36, 22, 14


def cell(share: Share) -> str:
    """Return `12.3% (11.8-12.9)`, or what stands for no share at all."""
    if share.value is None:
        return "no hits"
    low, high = share.interval
    return f"{share.value:.1%} ({100 * low:.1f}-{100 * high:.1f})"


def table(figures: Mapping[Row, Mapping[str, Share]], judged: str) -> list[str]:
    """Return the lines of the table; `judged` is the system whose figures have a goal."""
    systems = list(dict.fromkeys(name for row in figures.values() for name in row))
    label = max(_LABEL, *(1 + len(row.name) for row in figures), 0)
    lines = [
        "".join((" " * label, *(f"{name:>{_CELL}}" for name in systems), f"{'goal':>{_GOAL}}"))
    ]
    for row, shares in figures.items():
        cells = "".join(
            f"{cell(shares[name]) if name in shares else '':>{_CELL}}" for name in systems
        )
        met = row.met(shares[judged]) if judged in shares else None
        mark = {None: "", True: " met", False: " MISSED"}[met]
        lines.append(f"{row.name:{label}}{cells}{row.goal:>{_GOAL}}{mark}")
    return lines


def markdown(figures: Mapping[Row, Mapping[str, Share]]) -> list[str]:
    """Return the table for a document."""
    systems = list(dict.fromkeys(name for row in figures.values() for name in row))
    lines = [f"| | {' | '.join(systems)} | goal |", "|" + "---|" * (len(systems) + 2)]
    for row, shares in figures.items():
        cells = [cell(shares[name]) if name in shares else "" for name in systems]
        lines.append(f"| {' | '.join((row.name.strip(), *cells, row.goal))} |")
    return lines


def breakdown(outcomes: Mapping[str, Sequence[Outcome]], *, most: str | None = None) -> list[str]:
    """Return hits and wrong ones among them for each group and system."""
    systems = list(outcomes)
    lines = [
        "".join((f"{'hits, wrong among them':{_LABEL + 30}}", *(f"{name:>16}" for name in systems)))
    ]
    by_system = {name: grouped(outcomes[name], most=most) for name in systems}
    for group in sorted(by_system[systems[0]]):
        cells = []
        for name in systems:
            found = by_system[name][group]
            wrong = wrong_among_hits(found)
            cells.append(f"{hits(found).part:>9},{wrong.part:>6}")
        count = len(by_system[systems[0]][group])
        lines.append(f"{group[: _LABEL + 20]:{_LABEL + 22}}{count:>8}" + "".join(cells))
    return lines


def ablation(judged: Mapping[str, Sequence[Outcome]], threshold: float) -> list[str]:
    """Return right and wrong hits of each trial with every guard, and without each in turn.

    A guard is the reason of a refusal: the first that a pair gets. A pair that two guards would
    refuse counts for the first alone. Without the score every pair is served that no guard refuses.
    """
    found = guards_in([each for outcomes in judged.values() for each in outcomes])
    ways: dict[str, tuple[float, Collection[str]]] = {"all guards and the score": (threshold, ())}
    ways |= {
        f"without {guard} ({count:,} refused)": (threshold, (guard,))
        for guard, count in found.items()
    }
    ways |= {"without any guard": (threshold, found), "without the score": (0.0, ())}
    heads = "".join(f"{name:>14}" for name in judged)
    lines = [f"{'hits right, wrong':{_LABEL + 2}}{heads}"]
    for way, (least, without) in ways.items():
        cells = ""
        for outcomes in judged.values():
            served = [each.at(least, without=without) for each in outcomes]
            right, wrong = right_hits(served).part, wrong_hits(served).part
            cells += f"{right:>8},{wrong:>5}"
        lines.append(f"{way:{_LABEL + 2}}{cells}")
    return lines


def promised(promises: Sequence[Promise]) -> list[str]:
    """Return a line for each budget."""
    broken = "broken in (5 % at most)"
    lines = [f"{'budget':>8}{broken:>26}{'no threshold':>14}{'wrong':>9}{'hit rate':>10}"]
    for each in promises:
        wrong = "-" if each.wrong is None else f"{each.wrong:.2%}"
        rate = "-" if each.hit_rate is None else f"{each.hit_rate:.1%}"
        none = f"{each.none} draws"
        lines.append(f"{each.budget:>8.1%}{cell(each.broken):>26}{none:>14}{wrong:>9}{rate:>10}")
    return lines


def as_json(figures: Mapping[Row, Mapping[str, Share]]) -> dict[str, dict[str, list[float | None]]]:
    """Return by row and system: part, whole, share, both ends of the interval."""
    return {
        row.name.strip(): {
            name: [
                share.part,
                share.whole,
                *(
                    None if each is None else round(each, 5)
                    for each in (share.value, *share.interval)
                ),
            ]
            for name, share in shares.items()
        }
        for row, shares in figures.items()
    }


def errors(outcomes: Sequence[Outcome], most: int) -> Iterator[str]:
    """Yield the hits that were wrong and the right ones missed: what is to be mended.

    Up to `most` wrong hits, surest first, and as many misses, nearest first.
    """
    wrong = sorted((each for each in outcomes if each.wrong), key=_score, reverse=True)
    yield f"{len(wrong)} wrong hits"
    for outcome in wrong[:most]:
        yield from _told(outcome, outcome.tries[-1:])
    missed = [each for each in outcomes if not each.hit and _best(each) is not None]
    missed.sort(key=lambda each: _similarity(_best(each)), reverse=True)
    yield ""
    yield f"{len(missed)} misses for which a right answer was verified"
    for reason, count in _reasons(missed):
        yield f"  {count:>6} {reason}"
    for outcome in missed[:most]:
        best = _best(outcome)
        yield from _told(outcome, () if best is None else (best,))
    unseen = [each for each in outcomes if not each.hit and each.request.answer is not None]
    early = [each for each in unseen if not each.tries]
    yield ""
    yield f"{len(unseen)} misses for which a right answer may be stored, {len(early)} of them"
    yield "without any candidate to verify:"
    for reason, count in _counts([each.reason for each in early]):
        yield f"  {count:>6} {reason}"


def _told(outcome: Outcome, tries: Sequence[Try]) -> Iterator[str]:
    request = outcome.request
    yield f"  [{request.group}] asked:  {request.text}"
    for each in tries:
        said = each.verification
        verdict = f"refused: {said.refusal}" if said.refusal else f"score {said.score:.4f}"
        yield f"      {each.similarity:.3f} {verdict}; stored: {each.stored}"


def _best(outcome: Outcome) -> Try | None:
    """Return the right candidate that came nearest to be served."""
    right = [each for each in outcome.tries if each.right(outcome.request)]
    return max(
        right, key=lambda each: (not each.verification.refusal, each.similarity), default=None
    )


def _score(outcome: Outcome) -> float:
    return outcome.tries[-1].verification.score if outcome.tries else 1.0


def _similarity(found: Try | None) -> float:
    return 0.0 if found is None else found.similarity


def _reasons(missed: Sequence[Outcome]) -> list[tuple[str, int]]:
    best = [each for outcome in missed if (each := _best(outcome)) is not None]
    return _counts([each.verification.refusal or "score below the threshold" for each in best])


def _counts(words: Sequence[str]) -> list[tuple[str, int]]:
    counts = {word: words.count(word) for word in set(words)}
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
