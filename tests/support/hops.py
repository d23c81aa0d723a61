"""The way of one request through our own code: which functions it enters, in which files."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).parents[2]
PACKAGES = tuple(f"{ROOT / package}/" for package in ("gateway", "policies", "embeddings"))


class Way:
    """The functions of ours that were entered from another file, in every thread begun meanwhile.

    A function counts once, for a coroutine is entered again each time that it goes on. What a file
    calls of itself is no hop: a reader has it open. Neither are comprehensions and lambdas.
    """

    def __init__(self) -> None:
        self.open = False
        self._entered: dict[CodeType, None] = {}

    def record(self, frame: FrameType, event: str, _argument: object) -> None:
        if not self.open or event != "call":
            return
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGES) or code.co_name.startswith("<"):
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(PACKAGES):
            caller = caller.f_back
        if caller is None or caller.f_code.co_filename != code.co_filename:
            self._entered[code] = None

    def restart(self) -> None:
        """Forget what was entered, and count from here."""
        self._entered, self.open = {}, True

    @property
    def hops(self) -> list[str]:
        """The functions in the order in which they were entered first."""
        return [
            f"{Path(code.co_filename).relative_to(ROOT)}:{code.co_qualname}"
            for code in self._entered
        ]


@contextmanager
def traced_way() -> Iterator[Way]:
    """Trace this thread, and those that begin within; ``Way.open`` says when it counts."""
    way = Way()
    before = sys.getprofile()
    sys.setprofile(way.record)
    threading.setprofile(way.record)
    try:
        yield way
    finally:
        threading.setprofile(None)
        sys.setprofile(before)
