"""A lock that serves those who wait in the order they came.

`threading.Lock` may be taken again and again by a thread that lets go of it only for an instant: a
thread that builds a graph row by row would keep every search waiting.
"""

from threading import Lock


class Turns:
    """Use it as a context manager. Small, since every partition has one."""

    __slots__ = ("_guard", "_held", "_waiting")

    def __init__(self) -> None:
        self._guard = Lock()
        self._held = False
        self._waiting: list[Lock] = []

    def __enter__(self) -> None:
        with self._guard:
            if not self._held:
                self._held = True
                return
            mine = Lock()
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()

    def __exit__(self, *failure: object) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.pop(0).release()
            else:
                self._held = False
