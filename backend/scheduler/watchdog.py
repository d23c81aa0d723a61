"""Whether an engine that says nothing hangs, decided in turns of whoever watches it.

Pure, and without a clock: a watcher that was itself held up or stopped has had one turn, however
long it took. Law: only who owes an answer can hang. An idle engine owes none; one that has work is
asked, owes an answer from then on, even if nobody wants the work any more, and has all its turns to
give it. Anything that is heard is an answer.
"""

from enum import Enum, auto


class Verdict(Enum):
    """What a watcher is to do after a turn."""

    WAIT = auto()
    ASK = auto()
    HUNG = auto()


class Watchdog:
    """Watches one engine."""

    def __init__(self, turns: int) -> None:
        """Give an engine ``turns`` to answer in."""
        self._turns = turns
        self._left: int | None = None
        """Turns to answer in; None: it owes nothing."""

    def turn(self, *, heard: bool, waiting: bool) -> Verdict:
        """Judge after a turn in which something was ``heard`` or not; somebody is ``waiting``."""
        if heard:
            self._left = None
        elif self._left is not None:
            self._left -= 1
            return Verdict.WAIT if self._left else Verdict.HUNG
        elif waiting:
            self._left = self._turns
            return Verdict.ASK
        return Verdict.WAIT
