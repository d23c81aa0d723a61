"""Run a PII scan without holding up the loop, in bounded time, and fail closed."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from gateway.cache.ports import Scanner
from gateway.cache.single_flight import SingleFlight
from policies.pii.readings import may_be_disguised, normalise

log = logging.getLogger(__name__)

INLINE_CHARACTERS = 4096
INLINE_DIGITS = 200
"""Texts beyond either are scanned in a thread. What is within takes under a millisecond, most of
it a tenth of that, and the way to a thread and back costs as much."""
INLINE_DISGUISED = 256
"""Characters of a text that has other readings: digits may be hidden in it."""

SCAN_SECONDS = 1.0
"""A scan that takes longer has failed: the client is waiting for it."""

PIECE = 65_536
"""Characters scanned at once in a thread: some steps hold up the loop for as long as they take."""
OVERLAP = 4096
"""Characters that neighbouring pieces share, so that findings on a border are not lost."""


class ScanFailedError(Exception):
    """The text could not be scanned in time, so nothing is known about it."""


class Scans:
    """Owns the threads of long scans, so that slow ones hold up nothing but one another."""

    def __init__(self, threads: int = 4) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="scan")
        self._together: SingleFlight[str | None] = SingleFlight()

    async def scan(self, scanner: Scanner, text: str, owner: bytes) -> str | None:
        """Return the kind of the first finding, or None. Raises ScanFailedError.

        Only what is scanned for the same ``owner`` shares a scan: how long one takes must not tell
        what others ask.
        """
        try:
            if len(text) <= INLINE_CHARACTERS:
                if scanner.is_clean(text):
                    return None
                if _is_quick(text):
                    return scanner.scan(text)
            scan = partial(self._scan_in_thread, scanner, text)
            return await self._together.ask((id(scanner), owner, text), scan)
        except Exception as error:  # noqa: BLE001 - fail closed, whatever it is
            # Whatever a detector raises, the safe answer is the same. Its message may quote the
            # finding, so only its type is told.
            log.warning("PII scan failed (%s): neither looked up nor stored", type(error).__name__)
            raise ScanFailedError from None

    async def _scan_in_thread(self, scanner: Scanner, text: str) -> str | None:
        loop = asyncio.get_running_loop()
        given_up = threading.Event()
        try:
            async with asyncio.timeout(SCAN_SECONDS):
                return await loop.run_in_executor(
                    self._threads, _scan_pieces, scanner, text, given_up
                )
        finally:
            given_up.set()

    def close(self) -> None:
        """Take no more scans; running scans end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _is_quick(text: str) -> bool:
    if _digits(text) > INLINE_DIGITS:
        return False
    return len(text) <= INLINE_DISGUISED or not may_be_disguised(normalise(text).encode())


def _digits(text: str) -> int:
    if text.isascii():
        return sum(map(text.count, "0123456789"))
    return sum(map(str.isdigit, text))


def _scan_pieces(scanner: Scanner, text: str, given_up: threading.Event) -> str | None:
    """Scan piece by piece, until a finding or until no caller waits."""
    for piece in pieces(text):
        if given_up.is_set():
            return None
        found = scanner.scan(piece)
        if found is not None:
            return found
    return None


def pieces(text: str) -> Iterator[str]:
    """Yield the text in overlapping pieces, cut between lines, else words, where there are any."""
    start = 0
    while len(text) - start > PIECE:
        end = _cut(text, start + PIECE - OVERLAP // 2, start + PIECE)
        yield text[start:end]
        start = _cut(text, end - OVERLAP, end - OVERLAP // 2)
    yield text[start:]


def _cut(text: str, earliest: int, latest: int) -> int:
    """Return where to cut ``text`` from ``earliest`` to ``latest``."""
    for separator in "\n", " ":
        found = text.rfind(separator, earliest, latest)
        if found >= 0:
            return found + 1
    return latest
