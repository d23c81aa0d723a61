"""The rows of the table: what is counted on each trial, and the figure to reach. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from quality.corrected import AS_READ
from quality.outcomes import (
    Outcome,
    Share,
    hits,
    right_among_hits,
    right_hits,
    wrong_among_hits,
    wrong_hits,
)

Counted = Callable[[Sequence[Outcome]], Share]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of a trial. `least` or `most` is what it is to reach, if it is to reach any."""

    trial: str
    name: str
    count: Counted
    most: float | None = None
    least: float | None = None

    @property
    def goal(self) -> str:
        if self.most is not None:
            return "none" if self.most == 0 else f"at most {self.most:.1%}"
        return "" if self.least is None else f"at least {self.least:.0%}"

    def met(self, share: Share) -> bool | None:
        """Tell whether the figure is reached; None where none is to be, or nothing was counted."""
        value = share.value
        if self.most is not None:
            # No hits, none of them wrong.
            return value is None or value <= self.most
        return None if self.least is None else value is not None and value >= self.least


def _where(
    holds: Callable[[Outcome], bool], count: Callable[[Sequence[Outcome]], Share]
) -> Counted:
    return lambda outcomes: count([each for each in outcomes if holds(each)])


def _of(group: str) -> Callable[[Outcome], bool]:
    return lambda outcome: outcome.request.group == group


def _same(outcome: Outcome) -> bool:
    return outcome.request.answer is not None


def _reworded(outcome: Outcome) -> bool:
    return _same(outcome) and not outcome.identical


def _inside(outcome: Outcome) -> bool:
    return outcome.request.group != "oos"


_OTHER_CONVERSATION = ("same words", "own sentence", "as it came")

ROWS: tuple[Row, ...] = (
    Row(
        "checklist",
        "CheckList, false accepts",
        _where(lambda each: not _same(each), hits),
        most=0.005,
    ),
    Row("checklist", "CheckList, recall", _where(_same, hits), least=0.6),
    Row("checklist", "  of those in other words", _where(_reworded, hits)),
    Row("gsm_plus", "GSM-Plus, wrong among hits", wrong_among_hits, most=0.02),
    Row(f"gsm_plus{AS_READ}", f"GSM-Plus, wrong among hits{AS_READ}", wrong_among_hits),
    Row(
        "gsm_plus",
        "GSM-Plus, rephrased problems hit",
        _where(_of("problem understanding"), right_hits),
        least=0.4,
    ),
    Row(
        "canard",
        "CANARD, other conversation",
        _where(lambda each: each.request.group in _OTHER_CONVERSATION, hits),
        most=0.0,
    ),
    Row(
        "canard",
        "  same conversation, may hit",
        _where(_of("same conversation"), right_hits),
    ),
    Row(
        "clinc150",
        "CLINC150, wrong intent among hits",
        _where(_inside, wrong_among_hits),
        most=0.005,
    ),
    Row("clinc150", "CLINC150, hit rate", _where(_inside, hits), least=0.4),
    Row("clinc150", "CLINC150, out of scope", _where(_of("oos"), hits), most=0.0),
    Row("banking77", "BANKING77, wrong intent among hits", wrong_among_hits, most=0.02),
    Row(
        f"banking77{AS_READ}",
        f"BANKING77, wrong intent among hits{AS_READ}",
        wrong_among_hits,
    ),
    Row("banking77", "BANKING77, hit rate", hits, least=0.45),
    Row("qqp", "QQP, precision", right_among_hits, least=0.88),
    Row("qqp", "QQP, recall", _where(_same, hits), least=0.36),
    Row("people", "Other people's pairs, wrong among hits", wrong_among_hits),
    Row("people", "  recall", _where(_same, right_hits)),
    Row(
        "rewordings",
        "Reworded by hand, near misses served",
        _where(_of("near miss"), wrong_hits),
    ),
    Row("rewordings", "  rewordings hit", _where(_of("rewording"), right_hits)),
    Row(
        "verbs",
        "Support verbs, near misses served",
        _where(_of("near miss"), wrong_hits),
        most=0.005,
    ),
    Row("verbs", "Support verbs, rewordings hit", _where(_of("rewording"), right_hits), least=0.8),
    Row("lookalikes", "Look-alike names served", _where(_of("another name"), hits), most=0.002),
    Row("lookalikes", "  the same name in other words hits", _where(_of("same name"), hits)),
    Row(
        "lookalikes_held_out",
        "Look-alike names served, held out",
        _where(_of("another name"), hits),
        most=0.002,
    ),
    Row(
        "lookalikes_held_out",
        "  the same name in other words hits",
        _where(_of("same name"), hits),
    ),
)


def counted(results: Mapping[str, Mapping[str, Sequence[Outcome]]]) -> dict[Row, dict[str, Share]]:
    """Return the figure of each row and system; `results` are outcomes by trial and system."""
    return {
        row: {system: row.count(outcomes) for system, outcomes in results[row.trial].items()}
        for row in ROWS
        if row.trial in results
    }
