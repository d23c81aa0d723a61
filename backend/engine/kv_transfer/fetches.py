"""The decode engine's part: requests wait here while a prefill engine computes their prompts.

A thread for each request asks and receives; the engine's loop puts the blocks into the host tier,
from which the scheduler loads them as it does any others. Whatever goes wrong, the request is
submitted with the blocks that came, and the rest is computed here.
"""

import logging
import queue
import socket
import threading
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import monotonic

from backend.engine.core import EngineCore
from backend.engine.kv_transfer.protocol import (
    Channel,
    Complaints,
    RefusedError,
    TransferError,
    Wanted,
    remove_left_memory,
)
from backend.engine.messages import Item, Submit
from backend.scheduler.block_pool import BLOCK_SIZE

logger = logging.getLogger(__name__)

_MOST_OPEN = 64
_PARTS_AHEAD = 2
_PARTS_AT_A_TIME = 8
"""Between two steps; each takes a millisecond or two."""
_CONNECT_SECONDS = 2.0
_FEW_BLOCKS = 64
"""So few behind more known ones are computed here: a conversation's answers are not there."""
_REST_SECONDS = 5.0
"""An engine that cannot be reached, or is silent, is not asked again for so long."""
_MOST_UNKNOWN = 16


@dataclass(slots=True, eq=False)
class _Fetch:
    """Blocks that are on their way; ``parts`` end with None."""

    message: Submit
    address: str
    wanted: Wanted
    hashes: tuple[bytes, ...]
    num_kept: int
    began: float
    until: float
    deadline: float
    """When its client gives up, as long as no block has come."""
    parts: "queue.Queue[bytearray | None]" = field(
        default_factory=lambda: queue.Queue(_PARTS_AHEAD)
    )
    is_left: bool = False
    is_refused: bool = False

    @property
    def result(self) -> str:
        """What came, for people."""
        if self.num_kept * BLOCK_SIZE >= len(self.wanted.tokens):
            return "complete"
        return "partial" if self.num_kept > self.wanted.num_known else "failed"


class Fetches:
    """Belongs to the engine's loop, but for its threads."""

    wake: Callable[[], None]

    def __init__(
        self,
        core: EngineCore,
        addresses: Mapping[str, tuple[str, int]],
        secret: str,
        *,
        seconds: float,
    ) -> None:
        """Ask the engines of ``addresses``, by their names in requests, for ``seconds`` each."""
        self._core = core
        self._addresses = addresses
        self._secret = secret
        self._seconds = seconds
        self._open: dict[int, _Fetch] = {}
        self._rests: dict[str, float] = {}
        self._unknown: set[str] = set()
        self._complaints = Complaints()
        self._free = threading.Semaphore(_MOST_OPEN)  # a thread may outlive its request
        remove_left_memory()
        self.wake = lambda: None

    def submit(self, message: Submit) -> bool:
        """Return whether ``message`` is held until its prompt's blocks are here."""
        address = message.request.prefill
        if not address:
            return False
        if address not in self._addresses:
            if len(self._unknown) < _MOST_UNKNOWN and address not in self._unknown:
                self._unknown.add(address)
                logger.warning("prefill engine %r is none of --kv-transfer", address)
            return False
        now = monotonic()
        if now < self._rests.get(address, 0.0):
            return False
        wanted, hashes = self._wanted(message)
        if wanted is None or not self._free.acquire(blocking=False):
            return False
        limit = self._queue_seconds(message)
        fetch = _Fetch(
            message,
            address,
            wanted,
            hashes,
            num_kept=wanted.num_known,
            began=now,
            until=now + self._seconds,
            deadline=float("inf") if limit is None else message.arrived + limit,
        )
        try:
            threading.Thread(target=self._run, args=(fetch,), name="kv-fetch", daemon=True).start()
        except RuntimeError:  # the system has no thread left
            self._free.release()
            return False
        self._open[message.number] = fetch
        return True

    def abort(self, number: int) -> bool:
        """Return whether the request of ``number`` was held; it is not any more."""
        fetch = self._open.pop(number, None)
        if fetch is not None:
            fetch.is_left = True
        return fetch is not None

    def advance(self) -> None:
        """Keep the blocks that came, and submit the requests that have theirs."""
        counts = self._core.transfer_counts
        left = _PARTS_AT_A_TIME
        for number, fetch in list(self._open.items()):
            for _ in range(fetch.parts.qsize()):  # later parts come with a wake
                if not left:
                    self.wake()
                    return
                part = fetch.parts.get()
                if part is None:
                    del self._open[number]
                    if fetch.is_refused:
                        self._forget(fetch)
                    counts["kv_transfers", (fetch.result,)] += 1
                    self._submit(fetch)
                    break
                left -= 1
                first = fetch.num_kept + 1
                fetch.num_kept += len(part) // fetch.wanted.block_bytes
                self._core.keep_blocks(fetch.hashes[first : fetch.num_kept + 1], part)
                counts["kv_transfer_blocks", ("received",)] += fetch.num_kept + 1 - first

    def _forget(self, fetch: _Fetch) -> None:
        """Its blocks may not be finite."""
        tiers, first = self._core.scheduler.cache.tiers, fetch.wanted.num_known + 1
        if tiers is not None:
            tiers.forget(fetch.hashes[first : fetch.num_kept + 1])
        fetch.num_kept = fetch.wanted.num_known

    def _submit(self, fetch: _Fetch) -> None:
        message, limit = fetch.message, self._queue_seconds(fetch.message)
        if limit is not None and fetch.num_kept > fetch.wanted.num_known:
            # It was computed meanwhile, so it did not wait.
            limit += monotonic() - fetch.began
            message = replace(message, request=replace(message.request, queue_seconds=limit))
        self._core.submit(message)

    def _queue_seconds(self, message: Submit) -> float | None:
        seconds = message.request.queue_seconds
        return self._core.limits.queue_seconds if seconds is None else seconds

    def close(self) -> None:
        """Leave all that is on its way."""
        for number in list(self._open):
            self.abort(number)

    def items(self, items: list[tuple[int, Item]]) -> list[tuple[int, Item]]:
        """Return ``items``: all are for clients."""
        return items

    def _wanted(self, message: Submit) -> tuple[Wanted | None, tuple[bytes, ...]]:
        """Return what to ask for and the prompt's hashes; None: nothing is missing."""
        request, core = message.request, self._core
        cache = core.scheduler.cache
        if cache.tiers is None or request.sampling.prompt_logprobs is not None:
            return None, ()
        prompt = request.prompt_tokens
        hashes = message.block_hashes or tuple(
            cache.hash_blocks(prompt, request.cache_salt, request.adapter)
        )
        # One token is left to compute, or there would be no logits.
        num_blocks = min((len(prompt) - 1) // BLOCK_SIZE, core.num_host_blocks)
        num_known = cache.num_known(hashes[1 : num_blocks + 1])
        if num_blocks - num_known <= min(num_known, _FEW_BLOCKS):
            return None, ()
        wanted = Wanted(
            core.fingerprints[request.adapter],
            request.cache_salt,
            core.runner.block_bytes,
            num_known,
            int(request.priority),
            array("I", prompt[: num_blocks * BLOCK_SIZE]),
        )
        return wanted, hashes

    def _run(self, fetch: _Fetch) -> None:
        try:
            self._receive(fetch)
        except (OSError, TransferError) as error:
            fetch.is_refused = isinstance(error, RefusedError)
            if isinstance(error, TimeoutError):
                self._rests[fetch.address] = monotonic() + _REST_SECONDS
            if self._complaints.is_due(f"{fetch.address} {error}"):
                logger.warning(
                    "the prompt's blocks do not come from %s: %s; it is computed here",
                    fetch.address,
                    error,
                )
        except Exception:
            logger.exception("a prompt's blocks do not come from %s", fetch.address)
        finally:
            self._free.release()
            self._put(fetch, None)

    def _receive(self, fetch: _Fetch) -> None:
        try:
            sock = socket.create_connection(
                self._addresses[fetch.address], timeout=_CONNECT_SECONDS
            )
        except OSError:
            self._rests[fetch.address] = monotonic() + _REST_SECONDS
            raise
        with sock:
            channel = Channel(sock)
            channel.greet(self._secret)
            channel.ask(fetch.wanted)
            until = min(fetch.until, fetch.deadline)
            left = len(fetch.wanted.tokens) // BLOCK_SIZE - fetch.wanted.num_known
            for part in channel.blocks(fetch.wanted.block_bytes):
                if fetch.is_left:
                    return
                if part:
                    left -= len(part) // fetch.wanted.block_bytes
                    if left < 0:
                        raise TransferError("it sends more than it was asked for")
                    until = fetch.until
                    self._put(fetch, part)
                if monotonic() > until:
                    raise TransferError(f"it takes longer than {until - fetch.began:.3g} s")

    def _put(self, fetch: _Fetch, part: bytearray | None) -> None:
        """Hand ``part`` to the loop, which always takes it, or leaves the request."""
        while not fetch.is_left:
            with suppress(queue.Full):
                fetch.parts.put(part, timeout=_CONNECT_SECONDS)
                self.wake()
                return
