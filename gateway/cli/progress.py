"""How far a long command is: a line on the terminal that standard error is, else nothing."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Timer
from typing import TypeVar

from gateway.cli.terminal import CommandError

QUIET_SECONDS = 1.0
"""What takes less shows nothing."""

T = TypeVar("T")


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show that a command does ``what``; what is yielded takes the number done so far."""
    if not sys.stderr.isatty():
        yield lambda _done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    shown = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn(
            "{task.completed:,}" if total is None else "{task.completed:,} of {task.total:,}"
        ),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
    )
    task = shown.add_task(what, total=total)
    begin = Timer(QUIET_SECONDS, shown.start)
    begin.daemon = True
    begin.start()
    try:
        yield lambda done: shown.update(task, completed=done)
    finally:
        begin.cancel()
        begin.join()
        shown.stop()


def noting(items: Iterable[T], note: Callable[[int], None]) -> Iterator[T]:
    """Yield the items; tell ``note`` how many are done."""
    for number, item in enumerate(items, 1):
        yield item
        note(number)


async def for_each(
    items: Sequence[T], work: Callable[[T], Awaitable[None]], *, at_a_time: int, what: str
) -> None:
    """Do the work on each item, and show how far it is. Raises CommandError."""
    queue, done = iter(items), 0

    async def worker() -> None:
        nonlocal done
        for item in queue:
            await work(item)
            done += 1
            note(done)

    with progress(what, len(items)) as note:
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(at_a_time):
                    workers.create_task(worker())
        except* CommandError as errors:
            raise errors.exceptions[0] from None
