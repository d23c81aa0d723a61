"""The prefill engine's part: it computes prompts for decode engines, and sends their blocks.

A thread for each connection talks; the engine's loop computes and copies blocks out of its pool.
A prompt is a request like others, for one token that nobody reads. Its blocks are taken from the
prefix cache by hash as they come, so nothing is held for a decode engine that is slow. What was
evicted before it was sent, that engine computes itself.
"""

import logging
import queue
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from time import monotonic

from backend.engine.core import EngineCore
from backend.engine.kv_transfer.protocol import (
    WAITING_SECONDS,
    Channel,
    Complaints,
    TransferError,
    Wanted,
    part_rows,
)
from backend.engine.messages import Abort, Item, Submit
from backend.models.config import ModelLoadError
from backend.scheduler.block_pool import BLOCK_SIZE
from backend.scheduler.prefix_cache import extend_block_hashes, root_hash
from backend.scheduler.request import (
    FinishReason,
    GenerationRequest,
    Priority,
    SamplingParams,
    TokenDelta,
)

logger = logging.getLogger(__name__)

_MOST_CONNECTIONS = 64
_PARTS_AHEAD = 2
_PARTS_AT_A_TIME = 8
"""Between two steps; each takes a millisecond or two."""
_AGAIN_SECONDS = 1.0

_ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)


@dataclass(slots=True, eq=False)
class _Offer:
    """A prompt that is computed for a decode engine; ``parts`` end with None, or with a reason."""

    wanted: Wanted
    adapter: int
    hashes: list[bytes]
    num_sent: int
    parts: "queue.Queue[tuple[memoryview, int] | str | None]" = field(
        default_factory=lambda: queue.Queue(_PARTS_AHEAD + 1)
    )
    is_computed: bool = False
    is_left: bool = False


class Offers:
    """Belongs to the engine's loop, but for its threads."""

    wake: Callable[[], None]

    def __init__(self, core: EngineCore, address: tuple[str, int], secret: str) -> None:
        """Listen at ``address``. Raises ModelLoadError where that cannot be."""
        self._core = core
        self._secret = secret
        self._numbers = count(-1, -1)  # clients' are positive
        self._new: queue.SimpleQueue[_Offer] = queue.SimpleQueue()
        self._open: dict[int, _Offer] = {}
        self._closed = threading.Event()
        self._complaints = Complaints()
        self._free = threading.Semaphore(_MOST_CONNECTIONS)
        self.wake = lambda: None
        host, port = address
        try:
            self._socket = socket.create_server(
                address, family=socket.AF_INET6 if ":" in host else socket.AF_INET
            )
        except OSError as error:
            raise ModelLoadError(f"kv-transfer {host}:{port}: {error.strerror}") from error
        self.port: int = self._socket.getsockname()[1]
        logger.info("decode engines are served at %s:%d", host, self.port)
        threading.Thread(target=self._listen, name="kv-offers", daemon=True).start()

    def submit(self, message: Submit) -> bool:
        """Take nothing of what clients ask."""
        del message
        return False

    def abort(self, number: int) -> bool:
        """Hold nothing that a client could end."""
        del number
        return False

    def advance(self) -> None:
        """Begin what was asked for, and hand over the blocks that there are."""
        while not self._new.empty():  # nobody else takes them out
            self._begin(self._new.get())
        left = _PARTS_AT_A_TIME
        for number, offer in list(self._open.items()):
            num_sent = offer.num_sent
            if offer.is_left:
                self._core.abort(Abort(number, None, FinishReason.ABORT, monotonic()))
                del self._open[number]
            elif not left:
                self.wake()
                return
            elif self._hand_over(offer):
                del self._open[number]
            left -= offer.num_sent > num_sent

    def items(self, items: list[tuple[int, Item]]) -> list[tuple[int, Item]]:
        """Take in what became of prompts, and return what is for clients."""
        if not self._open:
            return items
        for number, item in items:
            offer = self._open.get(number)
            if offer is None:
                continue
            if isinstance(item, TokenDelta):
                offer.is_computed = True
                self.wake()  # the rest of its blocks
            else:
                del self._open[number]
                _end(offer, str(item))
        return [each for each in items if each[0] >= 0]

    def close(self) -> None:
        """Listen no longer. Decode engines that wait compute their prompts themselves."""
        self._closed.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for offer in self._open.values():
            _end(offer, "it stops")

    def _begin(self, offer: _Offer) -> None:
        if self._core.is_asleep:
            _end(offer, "it sleeps")
            return
        wanted, number = offer.wanted, next(self._numbers)
        request = GenerationRequest(
            f"kv-transfer-{-number}",
            tuple(wanted.tokens),
            _ONE_TOKEN,
            priority=Priority(wanted.priority),
            cache_salt=wanted.salt,
            stream=False,
            adapter=offer.adapter,
        )
        self._open[number] = offer
        self._core.submit(Submit(number, request, monotonic(), tuple(offer.hashes)))

    def _hand_over(self, offer: _Offer) -> bool:
        """Copy out a part, if there are blocks and room; return whether it was the last.

        Who sends it wakes the loop, which copies the next one behind a step.
        """
        if offer.parts.qsize() >= _PARTS_AHEAD:
            return False
        first, most = offer.num_sent + 1, part_rows(offer.wanted.block_bytes)
        blocks = self._core.scheduler.cache.find(offer.hashes[first : first + most])
        if blocks:
            offer.parts.put((self._core.read_blocks(blocks), len(blocks)))
            offer.num_sent += len(blocks)
            self._core.transfer_counts["kv_transfer_blocks", ("sent",)] += len(blocks)
            if offer.num_sent < len(offer.hashes) - 1:
                return False
        elif not offer.is_computed:
            return False
        _end(offer, None)
        return True

    def _listen(self) -> None:
        while True:
            try:
                sock, address = self._socket.accept()
            except OSError as error:  # perhaps there are too many open files for a while
                if self._closed.wait(_AGAIN_SECONDS):
                    self._socket.close()
                    return
                self._complain("a decode engine", error)
                continue
            if not self._free.acquire(blocking=False):
                self._complain(address[0], f"{_MOST_CONNECTIONS} connections are open already")
                sock.close()
                continue
            try:
                threading.Thread(
                    target=self._serve, args=(sock, address[0]), name="kv-offer", daemon=True
                ).start()
            except RuntimeError as error:  # the system has no thread left
                self._complain(address[0], error)
                sock.close()
                self._free.release()

    def _complain(self, peer: str, reason: object) -> None:
        if self._complaints.is_due(str(reason)):
            logger.warning("KV blocks for %s: %s", peer, reason)

    def _serve(self, sock: socket.socket, peer: str) -> None:
        offer = None
        try:
            channel = Channel(sock)
            channel.be_greeted(self._secret)
            try:
                wanted = channel.asked()
                offer = self._offer(wanted)
            except TransferError as error:
                channel.refuse(str(error))
                raise
            self._new.put(offer)
            self.wake()
            channel.grant(wanted.block_bytes)
            self._send(channel, offer)
        except (OSError, TransferError) as error:
            self._complain(peer, error)
        except Exception:
            logger.exception("KV blocks for %s", peer)
        finally:
            sock.close()
            self._free.release()
            if offer is not None:
                offer.is_left = True
                self.wake()

    def _send(self, channel: Channel, offer: _Offer) -> None:
        while True:
            try:
                part = offer.parts.get(timeout=WAITING_SECONDS)
            except queue.Empty:
                if self._closed.is_set():
                    raise TransferError("it stops") from None
                channel.say_waiting()
                continue
            if part is None:
                channel.say_end()
                return
            if isinstance(part, str):
                channel.refuse(part)
                raise TransferError(part)
            self.wake()  # there is room for another one
            channel.send_blocks(*part)

    def _offer(self, wanted: Wanted) -> _Offer:
        """Return what to compute. Raises TransferError for what this engine cannot."""
        core = self._core
        if wanted.fingerprint not in core.fingerprints:
            raise TransferError("it serves another model, in other types, or without that adapter")
        if wanted.block_bytes != core.runner.block_bytes:
            raise TransferError("its blocks have another size")
        num_tokens = len(wanted.tokens)
        if not 0 < num_tokens < core.limits.max_model_len:
            raise TransferError(f"{num_tokens} tokens do not fit its context")
        num_blocks = num_tokens // BLOCK_SIZE
        if num_tokens % BLOCK_SIZE or not 0 <= wanted.num_known < num_blocks:
            raise TransferError("the tokens do not fill the blocks that are asked for")
        if max(wanted.tokens) >= core.runner.vocab_size or wanted.priority not in set(Priority):
            raise TransferError("a token or the priority does not exist")
        hashes = [root_hash(wanted.fingerprint, wanted.salt)]
        extend_block_hashes(hashes, wanted.tokens, num_blocks)
        return _Offer(wanted, core.fingerprints.index(wanted.fingerprint), hashes, wanted.num_known)


def _end(offer: _Offer, reason: str | None) -> None:
    # It has room for one more than ``_hand_over`` puts in.
    with suppress(queue.Full):
        offer.parts.put_nowait(reason)
