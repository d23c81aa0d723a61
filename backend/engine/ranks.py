"""The processes of an engine's other ranks, and rank 0's way to tell them what it computes.

Rank 0 is the engine's process. Between it and each other rank there is a socket pair, on which
pickles go one way: options, a port to meet at, then calls. The other way there is one message at
most: why a rank failed. Laws: a rank ends at once when rank 0 does, however that ended; rank 0 ends
at once when a rank does, and says why before. So a collective operation whose partner is gone keeps
nobody waiting.
"""

import logging
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from backend.executor.shared_memory import Shared
from backend.settings import EngineOptions

if TYPE_CHECKING:
    import torch

    from backend.executor.parallel import Call, Group

logger = logging.getLogger(__name__)

MODULE = "backend.engine.worker"
_REASON_SECONDS = 1.0
"""For a rank's reason, or its exit code, to arrive after its socket closed."""
_NOTICE_SECONDS = 0.5
"""After an error of rank 0: was it because another rank is gone?"""


class Ranks:
    """All ranks but the first, as rank 0 sees them."""

    def __init__(self, options: EngineOptions, farewell: Callable[[str], None]) -> None:
        """Start the processes. ``farewell`` tells the server why the engine ends."""
        self.size = options.tensor_parallel_size
        self._farewell = farewell
        self._shared = Shared.make(self.size)
        self._ending = threading.Lock()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._sockets: dict[int, socket.socket] = {}
        for rank in range(1, self.size):
            ours, theirs = socket.socketpair()
            with theirs:
                self._processes[rank] = subprocess.Popen(  # noqa: S603  # our own module
                    [sys.executable, "-P", "-m", MODULE, str(theirs.fileno()), "rank"],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), *(self._shared.descriptors if self._shared else ())),
                )
            self._sockets[rank] = ours
            ours.sendall(pickle.dumps((options, rank, self._shared)))
        self._watcher = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._watcher.start()

    def join(self, device: "torch.device") -> "Group":
        """Let all ranks meet at a port of this host that nobody else can have."""
        from backend.executor.parallel import LOOPBACK, Group  # noqa: PLC0415  # needs torch

        listener = socket.create_server((LOOPBACK, 0))
        port = listener.getsockname()[1]
        self._send(port)
        return Group(0, self.size, port, device, shared=self._shared, listening=listener.detach())

    def tell(self, call: "Call") -> None:
        """Send a call of the runner to the others. Raises OSError when one is gone."""
        self._send(call)

    def end(self, error: Exception) -> NoReturn:
        """End this process, and with it all ranks, because of an error on this one."""
        logger.error("rank 0 of %d failed", self.size, exc_info=error)
        # Where another is gone, the watcher ends this process: its reason is the true one.
        self._watcher.join(_NOTICE_SECONDS)
        self._end(f"rank 0 of {self.size} failed: {type(error).__name__}: {error}")

    def _send(self, message: object) -> None:
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        for each in self._sockets.values():
            each.sendall(data)

    def _watch(self) -> None:
        poller = select.poll()
        rank_of = {each.fileno(): rank for rank, each in self._sockets.items()}
        for descriptor in rank_of:
            poller.register(descriptor, select.POLLIN)
        ((descriptor, _), *_) = poller.poll()
        rank, fate = rank_of[descriptor], "is gone"
        try:
            fate = self._fate(rank)
        finally:
            self._end(f"rank {rank} of {self.size} {fate}")

    def _fate(self, rank: int) -> str:
        """Return what a rank says of its end, else how it ended."""
        with suppress(OSError, EOFError, pickle.UnpicklingError):
            self._sockets[rank].settimeout(_REASON_SECONDS)
            with self._sockets[rank].makefile("rb") as stream:
                return f"failed: {pickle.load(stream)}"  # noqa: S301  # of a process of ours
        try:
            code = self._processes[rank].wait(_REASON_SECONDS)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended ({code})"

    def _end(self, reason: str) -> NoReturn:
        with self._ending:  # for ever: one reason is enough
            logger.error("the engine ends, because %s", reason)
            with suppress(Exception):
                self._farewell(reason)
            sys.stderr.flush()
            os._exit(1)


def messages(stream: BinaryIO) -> Iterator[Any]:
    """Yield what rank 0 sends, on another rank, until it is gone."""
    with suppress(EOFError):
        while True:
            yield pickle.load(stream)  # noqa: S301  # of our own parent


def send_reason(sock: socket.socket, reason: str) -> None:
    """Tell rank 0 why this rank fails."""
    with suppress(OSError):
        sock.sendall(pickle.dumps(reason))
