"""Runs a draft model: known tokens in, the next ones guessed one by one.

The draft model has a second runner, with KV for the same block ids. It draws with the noise of
the model that it guesses for, so that two models that agree choose the same tokens at any
temperature. Nothing waits for the device before all guesses of a step are on their way.
"""

from collections.abc import Iterable

from backend.executor.model_runner import InFlight, ModelRunner
from backend.scheduler.batch import Row, StepBatch
from backend.scheduler.draft_model import DraftBatch, DraftRow


class DraftRunner:
    """Used by the thread that runs steps."""

    def __init__(self, runner: ModelRunner, *, max_model_len: int) -> None:
        """``max_model_len`` is the draft model's context, which may be the shorter one."""
        self.max_model_len = max_model_len
        self._runner = runner

    def propose(self, batch: DraftBatch) -> list[tuple[int, ...] | None]:
        """Return the guesses of each row of ``batch``; None: an output is not finite."""
        guessing = [row for row in batch.rows if row.num_drafts]
        passes = [(guessing, self._first(batch))]
        while guessing := [row for row in guessing if row.num_drafts > len(passes)]:
            passes.append((guessing, self._next(guessing, len(passes))))
        guesses: dict[int, list[int] | None] = {row.place: [] for row in batch.rows}
        for rows, in_flight in passes:
            for row, sampled in zip(rows, self._runner.collect(in_flight), strict=True):
                known = guesses[row.place]
                if sampled is None or known is None:
                    guesses[row.place] = None
                else:
                    known += sampled.tokens
        return [None if each is None else tuple(each) for each in guesses.values()]

    def discard(self, blocks: Iterable[int]) -> None:
        """Erase blocks; see ``ModelRunner.discard``."""
        self._runner.discard(blocks)

    def warm_up(self) -> None:
        """Compile, capture and show errors; see ``ModelRunner.warm_up``."""
        self._runner.warm_up()

    def sleep(self) -> None:
        """Give memory back; see ``ModelRunner.sleep``."""
        self._runner.sleep()

    def wake(self) -> None:
        """Take the memory again and warm up."""
        self._runner.wake()

    def _first(self, batch: DraftBatch) -> InFlight:
        """Compute the known tokens."""
        rows, last_tokens = [], []
        for _, slot, start, tokens, num_drafts in batch.rows:
            rows.append(Row(slot, start, len(tokens), num_drafts > 0, given=tokens))
            if len(tokens) == 1:
                last_tokens.append((slot, tokens[0]))
        return self._run(StepBatch(batch.new, batch.appended, tuple(rows), tuple(last_tokens)))

    def _next(self, guessing: list[DraftRow], number: int) -> InFlight:
        """Compute guess ``number``, which is on the device."""
        rows = [
            Row(row.slot, row.start + len(row.tokens) + number - 1, 1, samples=True)
            for row in guessing
        ]
        return self._run(StepBatch((), (), tuple(rows)))

    def _run(self, step: StepBatch) -> InFlight:
        return self._runner.sample(self._runner.launch(step))
