"""The hits that were wrong and the right ones that were missed, to see what is to be mended."""

from collections.abc import Iterator, Sequence

from quality.outcomes import Outcome, Try


def told(outcomes: Sequence[Outcome], most: int) -> Iterator[str]:
    """Yield up to `most` wrong hits, surest first, and as many misses, nearest first."""
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
