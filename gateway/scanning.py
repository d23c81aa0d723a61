"""Run a PII scan without holding up the loop, in bounded time, and fail closed."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from gateway.ports import Scanner

log = logging.getLogger(__name__)

INLINE_CHARACTERS = 1024
INLINE_DIGITS = 24
"""Texts beyond either are scanned in a thread: dense with digits, they take 40 us a character."""

SCAN_SECONDS = 2.0
"""A scan that takes longer has failed."""


class ScanFailedError(Exception):
    """The text could not be scanned in time, so nothing is known about it."""


class Scans:
    """Owns the threads of long scans, so that slow ones hold up nothing but one another."""

    def __init__(self, threads: int = 4) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="scan")

    async def scan(self, scanner: Scanner, text: str) -> str | None:
        """Return the kind of the first finding, or None. Raises ScanFailedError."""
        try:
            if len(text) <= INLINE_CHARACTERS and sum(map(str.isdigit, text)) <= INLINE_DIGITS:
                return scanner.scan(text)
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(SCAN_SECONDS):
                return await loop.run_in_executor(self._threads, scanner.scan, text)
        except Exception as error:  # noqa: BLE001 - fail closed, whatever it is
            # Whatever a detector raises, the safe answer is the same. Its message may quote the
            # finding, so only its type is told.
            log.warning("PII scan failed (%s): neither looked up nor stored", type(error).__name__)
            raise ScanFailedError from None

    def close(self) -> None:
        """Take no more scans; those under way end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)
