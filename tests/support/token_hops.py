"""The way of a token through both processes of the engine: which functions of ours, in which files.

Imported, it traces the server's process. As the module of the engine's process it traces that one
and then runs it: it writes each entry to the file that ``TRACE`` names, with its time.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).parents[2]
PACKAGE = f"{ROOT / 'backend'}/"
TRACE = "REFRAIN_TEST_TRACE"

Entry = tuple[int, str]
"""Nanoseconds of the clock that all processes share, and ``file:function``."""


def recorder(
    note: Callable[[Entry], object],
) -> Callable[[FrameType, str, object], None]:
    """Return a profiler that notes each function of ours that another file of ours enters.

    A coroutine or generator that goes on is entered again. Comprehensions and lambdas are not.
    """
    names: dict[CodeType, str | None] = {}

    def record(frame: FrameType, event: str, _argument: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        try:
            name = names[code]
        except KeyError:
            name = names[code] = _name(code)
        if name is None:
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(PACKAGE):
            caller = caller.f_back
        if caller is None or caller.f_code.co_filename != code.co_filename:
            note((time.monotonic_ns(), name))

    return record


def _name(code: CodeType) -> str | None:
    if not code.co_filename.startswith(PACKAGE) or code.co_name.startswith("<"):
        return None
    return f"{code.co_filename.removeprefix(f'{ROOT}/')}:{code.co_qualname}"


@contextmanager
def traced(note: Callable[[Entry], object]) -> Iterator[None]:
    """Trace this thread, and those that begin within."""
    record = recorder(note)
    before = sys.getprofile()
    sys.setprofile(record)
    threading.setprofile(record)
    try:
        yield
    finally:
        threading.setprofile(None)
        sys.setprofile(before)


def written(trace: Path) -> list[Entry]:
    """Return what the engine's process has written."""
    lines = [line.split(" ", 1) for line in trace.read_text().splitlines()]
    return [(int(moment), name) for moment, name in lines]


def hops(entries: Iterable[Entry], since: int, until: int) -> list[str]:
    """Return the functions entered meanwhile, in the order in which they were entered first."""
    inside = sorted(entry for entry in entries if since <= entry[0] <= until)
    return list(dict.fromkeys(name for _, name in inside))


def main() -> int:
    """Run the engine's process, traced."""
    from backend.engine.worker import main as run

    # Unbuffered, because the process ends without a flush.
    trace = os.open(os.environ[TRACE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with traced(lambda entry: os.write(trace, b"%d %s\n" % (entry[0], entry[1].encode()))):
        return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
