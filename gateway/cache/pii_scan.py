"""Run a PII scan without holding up the loop, in bounded time, and fail closed.

Laws: owners share the threads fairly. A scan runs for a short turn at a time, and the next turn
goes to the owner that has had the least time. So no owner's texts make another owner's texts wait.

A long text is scanned in pieces. Its sections that were clean are remembered for their owner and
their scanner, each with what stands before it, and only the others are scanned. Content says where
a section ends, so a conversation that grows has the same ones again.
"""

import asyncio
import hashlib
import logging
import threading
import time
import zlib
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import NamedTuple, TypeVar

from gateway.cache.ports import Scanner
from gateway.cache.single_flight import SingleFlight
from policies.pii.readings import may_be_disguised, normalise

log = logging.getLogger(__name__)

T = TypeVar("T")

INLINE_CHARACTERS = 4096
INLINE_DIGITS = 200
"""Texts beyond either are scanned in a thread. What is within takes under a millisecond, most of
it a tenth of that, and the way to a thread and back costs as much."""
INLINE_DISGUISED = 256
"""Characters of a text that has other readings: digits may be hidden in it."""

SAME_SECONDS = 60.0
SCAN_SECONDS = 1.0
"""A scan that takes longer has failed: the client is waiting for it."""

PIECE = 16_384
"""Characters scanned at once in a thread: nothing stops a step, and some hold up the loop."""
OVERLAP = 4096
"""Characters that neighbouring pieces share, so that findings on a border are not lost."""
SHORTEST_SECTION = 3072
LONGEST_SECTION = PIECE - OVERLAP
CHOSEN = 1024
"""Characters between two borders of sections, on average. The digest of a line makes it one."""

MOST_CLEAN = 65_536
"""Sections remembered: at some 100 bytes each, 256 MiB of text in 6 MiB."""

TURN_SECONDS = 0.02
"""How long a scan runs before others have their turn. A piece that is begun is ended."""


class ScanFailedError(Exception):
    """The text could not be scanned in time, so nothing is known about it."""


class Turns:
    """Which scan runs next on one of ``threads``; an owner has half of them at most."""

    def __init__(self, threads: int) -> None:
        self._free, self._share = threads, max(1, threads // 2)
        self._waiting: dict[bytes, deque[tuple[int, asyncio.Future[None]]]] = {}
        """Of each owner, in order, with the length of the text."""
        self._running = Counter[bytes]()
        self._used: dict[bytes, float] = {}
        """Seconds that each owner has had, as long as it has scans."""

    async def take(self, owner: bytes, length: int) -> None:
        """Wait for a turn, which must be given back; of equal owners the shortest text is next."""
        turn = asyncio.get_running_loop().create_future()
        if owner not in self._used:  # it has no claim for the time before it came
            self._used[owner] = min(self._used.values(), default=0.0)
        self._waiting.setdefault(owner, deque()).append((length, turn))
        self._pass_on()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.give_back(owner, 0.0)
            raise

    def give_back(self, owner: bytes, seconds: float) -> None:
        """End a turn that took so long."""
        self._free += 1
        self._running[owner] -= 1
        self._used[owner] += seconds
        self._pass_on()
        self._forget(owner)

    def _pass_on(self) -> None:
        while self._free:
            ready = [owner for owner in self._waiting if self._running[owner] < self._share]
            if not ready:
                return
            owner = min(ready, key=lambda one: (self._used[one], self._waiting[one][0][0]))
            turns = self._waiting[owner]
            _, turn = turns.popleft()
            if not turn.done():
                turn.set_result(None)
                self._free -= 1
                self._running[owner] += 1
            if not turns:
                del self._waiting[owner]
                self._forget(owner)

    def _forget(self, owner: bytes) -> None:
        if owner not in self._waiting and not self._running[owner]:
            del self._running[owner]
            self._used.pop(owner, None)


class CleanSections:
    """The digests of sections in which a scan found nothing; those used last are kept.

    A digest is of owner, scanner and text: what one owner's text was found to be tells nothing to
    another, nor does what one scanner lets pass to the next.
    """

    def __init__(self, most: int = MOST_CLEAN) -> None:
        self._most = most
        self._digests: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()

    def pieces(self, text: str, owner: bytes, scanner: Scanner) -> Iterator["Piece | None"]:
        """Yield the pieces of a text that are to be scanned; neighbours overlap.

        None stands for a section that was clean before, so that no step takes long.
        """
        scope = _digest(owner) + _digest(scanner.identity.encode())
        start = behind = 0
        digests: list[bytes] = []
        for first, end in pairwise(sections(text)):
            before = _before(text, first)
            digest = _digest(scope + text[before:end].encode("utf-8", "surrogatepass"))
            is_clean = self._holds(digest)
            if digests and (is_clean or end - start > PIECE):
                yield Piece(text, start, behind, digests)
                digests = []
            if is_clean:
                yield None
            else:
                start, behind = start if digests else before, end
                digests.append(digest)
        if digests:
            yield Piece(text, start, behind, digests)

    def _holds(self, digest: bytes) -> bool:
        with self._lock:
            if digest not in self._digests:
                return False
            self._digests.move_to_end(digest)
            return True

    def add(self, piece: "Piece") -> None:
        """Note that a piece was clean."""
        with self._lock:
            self._digests.update(dict.fromkeys(piece.digests))
            while len(self._digests) > self._most:
                self._digests.popitem(last=False)


class Piece(NamedTuple):
    """A part of a text to scan at once, and the digests of its sections."""

    text: str
    start: int
    end: int
    digests: list[bytes]

    def scan(self, scanner: Scanner) -> str | None:
        """Return the kind of the first finding, or None.

        A number is none if a word says so, which may stand just before the piece. So what is found
        in a piece must be found with more text before it, too.
        """
        found = scanner.scan(self.text[self.start : self.end])
        if found is None or not self.start:
            return found
        return scanner.scan(self.text[_before(self.text, self.start) : self.end])


class Scans:
    """Owns the threads of long scans, so that slow ones hold up nothing but one another."""

    def __init__(self, threads: int = 2) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="scan")
        self._turns = Turns(threads)
        self._together: SingleFlight[str | None] = SingleFlight()
        self._clean = CleanSections()
        self._told: dict[str, float] = {}
        """When each kind of failure was logged last."""

    async def scan(self, scanner: Scanner, text: str, owner: bytes) -> str | None:
        """Return the kind of the first finding, or None. Raises ScanFailedError.

        Only what is scanned for the same ``owner`` shares a scan, at once or later: how long one
        takes must not tell what others ask.
        """
        try:
            if len(text) <= INLINE_CHARACTERS:
                if scanner.is_clean(text):
                    return None
                if _is_quick(text):
                    return scanner.scan(text)
            scan = partial(self._scan_in_turns, scanner, text, owner)
            return await self._together.ask((id(scanner), owner, text), scan)
        except Exception as error:  # noqa: BLE001 - fail closed, whatever it is
            # Whatever a detector raises, the safe answer is the same. Its message may quote the
            # finding, so only its type is logged.
            self._tell(type(error).__name__)
            raise ScanFailedError from None

    def _tell(self, kind: str) -> None:
        """Log a failure, each kind at most once a minute: under load, each request may have one."""
        now = time.monotonic()
        if now - self._told.get(kind, -SAME_SECONDS) >= SAME_SECONDS:
            self._told[kind] = now
            log.warning("PII scan failed (%s): neither looked up nor stored", kind)

    async def _scan_in_turns(self, scanner: Scanner, text: str, owner: bytes) -> str | None:
        given_up = threading.Event()
        pieces = self._clean.pieces(text, owner, scanner)
        scan = partial(_scan_for, scanner, pieces, self._clean, given_up)
        try:
            async with asyncio.timeout(SCAN_SECONDS):
                while True:
                    await self._turns.take(owner, len(text))
                    over, found = await self._run(scan, owner)
                    if over:
                        return found
        finally:
            given_up.set()

    async def _run(self, scan: Callable[[], T], owner: bytes) -> T:
        """Run a turn in a thread, and give it back once the thread has ended, waited for or not."""
        began = time.perf_counter()

        def end(turn: asyncio.Future[T]) -> None:
            if not turn.cancelled():
                turn.exception()  # it is noted, if anybody waits for it
            self._turns.give_back(owner, time.perf_counter() - began)

        turn = asyncio.get_running_loop().run_in_executor(self._threads, scan)
        turn.add_done_callback(end)
        return await asyncio.shield(turn)

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


def _scan_for(
    scanner: Scanner, left: Iterator[Piece | None], clean: CleanSections, given_up: threading.Event
) -> tuple[bool, str | None]:
    """Scan for a turn; return whether that was all, and the finding, if any."""
    until = time.perf_counter() + TURN_SECONDS
    for piece in left:
        if piece is not None:
            if (found := piece.scan(scanner)) is not None:
                return True, found
            clean.add(piece)
        if given_up.is_set() or time.perf_counter() > until:
            return False, None
    return True, None


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def sections(text: str) -> Iterator[int]:
    """Yield where the sections of a text begin, and its end: between lines, else words, if it can.

    Where a section ends depends on its own lines, and on where it began. So texts that are the same
    from some place on soon have the same sections. A text that can be one piece is one section.
    """
    start = 0
    yield start
    if len(text) > PIECE:
        while start < len(text) - SHORTEST_SECTION:
            latest = start + LONGEST_SECTION
            end = _chosen(text, start + SHORTEST_SECTION, latest)
            if not end:
                if latest >= len(text):
                    break
                end = _cut(text, latest - OVERLAP // 2, latest)
            yield (start := end)
    yield len(text)


def _chosen(text: str, earliest: int, latest: int) -> int:
    """Return the beginning of the first line that a section may end before; 0 if there is none."""
    start = text.find("\n", earliest, latest) + 1
    while start:
        end = text.find("\n", start, start + CHOSEN)
        if end < 0:  # a long line begins a section, and the last may go on in a later text
            return start if start + CHOSEN <= len(text) else 0
        line = text[start:end].encode("utf-8", "surrogatepass")
        if zlib.crc32(line) % CHOSEN <= len(line):
            return start
        start = end + 1 if end < latest else 0
    return 0


def _before(text: str, place: int) -> int:
    """Return from where text is read with what begins at a place."""
    return _cut(text, place - OVERLAP, place - OVERLAP // 2) if place else 0


def _cut(text: str, earliest: int, latest: int) -> int:
    """Return where to cut ``text`` from ``earliest`` to ``latest``."""
    for separator in "\n", " ":
        found = text.rfind(separator, max(0, earliest), max(0, latest))
        if found >= 0:
            return found + 1
    return max(0, latest)
