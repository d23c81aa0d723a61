"""Tries grammars in another process before this one compiles them.

A compilation in a thread cannot be broken off, and what it does to memory and stack hits the whole
engine; a child of ``grammar_process`` can be ended. Its answer is that the grammar is quick, and
then compiling it again here is cheaper than passing it on, or what came of it.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Protocol

from backend.engine.wire import frame
from backend.grammar.jobs import KINDS, Job, Refused, Tried, receive
from backend.grammar.library import Vocabulary
from backend.scheduler.request import Grammar

MODULE = "backend.grammar.process"

_REAP_SECONDS = 0.1
_SEND_SECONDS = 30.0
"""A process that takes nothing for so long is given up."""


class NoTrialsError(Exception):
    """The process cannot be started, or does not stay."""


class Trial(Protocol):
    """One grammar in another process."""

    def result(self) -> Tried | Refused | None:
        """Wait for its end; None: it was ended, by its limits or by ``cancel``.

        Raises NoTrialsError.
        """
        ...

    def cancel(self) -> None:
        """End it, from any thread."""
        ...


class Trials(Protocol):
    """Where grammars are tried."""

    def start(self) -> None:
        """Get ready for the first trial, which does so otherwise."""
        ...

    def begin(self, job: Job) -> Trial:
        """Begin one, from any thread. Raises NoTrialsError."""
        ...

    def close(self) -> None:
        """End all there are."""
        ...


class ProcessTrials:
    """A process that is started for the first trial, and again when it died."""

    def __init__(self, vocabulary: Callable[[], Vocabulary], most_bytes: int) -> None:
        self._vocabulary = vocabulary
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def start(self) -> None:
        """See Trials."""
        with self._lock:
            self._running()

    def begin(self, job: Job) -> Trial:
        """See Trials."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = self._send(theirs, job.grammar)
                ours.settimeout(_SEND_SECONDS)
                ours.sendall(frame(job))
                ours.settimeout(None)
            except OSError as error:
                ours.close()
                raise NoTrialsError(str(error)) from error
        return _ProcessTrial(ours, process)

    def close(self) -> None:
        """See Trials: the process ends, and who waits for what it tries gets NoTrialsError."""
        with self._lock:
            self._end()

    def _send(self, theirs: socket.socket, grammar: Grammar) -> subprocess.Popen[bytes]:
        kind = bytes([KINDS.index(grammar.kind)])
        with self._lock:
            process, sock = self._running()
            socket.send_fds(sock, [kind], [theirs.fileno()])
            return process

    def _running(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None or self._socket is None:
            self._process, self._socket = self._new()
        return self._process, self._socket

    def _new(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        vocabulary = self._vocabulary()
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(  # noqa: S603  # our own module
                [sys.executable, "-P", "-m", MODULE, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        try:
            ours.settimeout(_SEND_SECONDS)
            ours.sendall(frame((vocabulary, self._most_bytes)))
        except OSError:
            ours.close()
            _kill(process)
            raise
        return process, ours

    def _end(self) -> None:
        process, sock = self._process, self._socket
        self._process = self._socket = None
        if sock is not None:
            sock.close()
        if process is not None:
            _kill(process)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """End a process and the children it has forked, which are of its session."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class _ProcessTrial:
    def __init__(self, sock: socket.socket, process: subprocess.Popen[bytes]) -> None:
        self._socket = sock
        self._process = process

    def result(self) -> Tried | Refused | None:
        """See Trial."""
        with self._socket as sock:
            try:
                answer = receive(sock)
            except (EOFError, OSError):
                answer = None
        if isinstance(answer, Tried | Refused):
            return answer
        if self._is_over():
            raise NoTrialsError("the process that tries grammars died")
        return None

    def _is_over(self) -> bool:
        # What ends a process closes its sockets a moment before it can be waited for.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_REAP_SECONDS)
            return True
        return False

    def cancel(self) -> None:
        """See Trial."""
        # Closing it would not wake up who reads it.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
