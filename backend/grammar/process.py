"""The process in which grammars are tried: each in a child that the kernel ends when it is due.

Started by ``grammar_trials`` as ``python -m backend.grammar.process FD``; FD is one end of
a socket pair. It loads the library once and then only forks: it has one thread, computes nothing,
and so has nothing that a fork could find half done. A child reads its job from a socket of its own
and answers there; it ends with its answer, with its time or its memory, or when whoever asked has
closed the other end. The process ends with the other end of its own socket.
"""

import contextlib
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from backend.engine.wire import frame
from backend.grammar.jobs import KINDS, Job, Refused, Tried, receive

if TYPE_CHECKING:
    from backend.grammar.library import GrammarLibrary

_MOST_DATA = 512 * 2**20
"""Memory that a child may take beyond what it begins with."""
_MOST_STACK = 4 * 2**20
"""Half of what threads have: what was tried in it does not overflow theirs."""
_NICE, _NICEST = 5, 19
"""Of children whose time is short, and of the others."""
_MOST_SERIALISED = 128 * 2**20


def main(argv: Sequence[str]) -> int:
    """Serve the socket whose descriptor is ``argv[0]`` until it is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries children by itself
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:  # noqa: PTH123  # no file
        score.write("1000")  # children should be killed before the engine is
    sock = socket.socket(fileno=int(argv[0]))
    vocabulary, most_bytes = receive(sock)
    # Seconds; whoever sends the vocabulary should not wait for them.
    import xgrammar  # noqa: F401, PLC0415

    from backend.grammar.library import GrammarLibrary  # noqa: PLC0415

    library = GrammarLibrary(vocabulary, most_bytes)
    while True:
        kind, descriptors, _, _ = socket.recv_fds(sock, 1, 1)
        if not kind:
            return 0
        library.prepare(KINDS[kind[0]])
        job = socket.socket(fileno=descriptors[0])
        if os.fork() == 0:
            sock.close()
            _run(library, job)
        job.close()


def _run(library: "GrammarLibrary", sock: socket.socket) -> None:
    """Do one job and end the process, whatever happens."""
    try:
        job: Job = receive(sock)
        _limit(job)
        said = _silence()
        threading.Thread(target=_end_with, args=(sock,), daemon=True).start()
        sock.sendall(frame(_try(library, job, said)))
    finally:
        os._exit(0)


def _silence() -> int:
    """Let nothing of a client's schema into the log; return where it can be read instead."""
    said, stderr = os.pipe()
    os.set_blocking(stderr, False)
    os.dup2(stderr, 2)
    return said


def _limit(job: Job) -> None:
    with contextlib.suppress(OSError):
        os.nice(_NICEST if job.cpu_seconds is None else _NICE)
    signal.setitimer(signal.ITIMER_REAL, job.seconds)
    if job.cpu_seconds is not None:
        signal.setitimer(signal.ITIMER_PROF, job.cpu_seconds)
    for what, soft in (
        (resource.RLIMIT_STACK, _MOST_STACK),
        (resource.RLIMIT_DATA, _data_bytes() + _MOST_DATA),
        (resource.RLIMIT_CORE, 0),
    ):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(what, (soft, resource.getrlimit(what)[1]))


def _data_bytes() -> int:
    with contextlib.suppress(OSError), open("/proc/self/statm") as sizes:  # noqa: PTH123  # no file
        return int(sizes.read().split()[5]) * resource.getpagesize()
    return 2**32


def _end_with(sock: socket.socket) -> None:
    poller = select.poll()
    poller.register(sock, 0)  # that the other end is closed is told whether asked for or not
    poller.poll()
    os._exit(1)


def _try(library: "GrammarLibrary", job: Job, said: int) -> Tried | Refused:
    from backend.grammar.matcher import GrammarError  # noqa: PLC0415  # imported by now

    began = time.process_time()
    try:
        compiled = library.compile(job.grammar)
    except GrammarError as error:
        return Refused(str(error))
    except Exception:  # noqa: BLE001  # a trace could show the client's schema
        return Refused("it could not be compiled")
    # The library's warnings repeat the grammar, and would be in the engine's log next.
    warns = bool(select.select([said], [], [], 0)[0])
    if time.process_time() - began < job.quick and not warns:
        return Tried(None)
    serialised = compiled.serialize_json()
    if len(serialised) > _MOST_SERIALISED:
        return Refused("compiled it is too large; make it simpler")
    return Tried(serialised)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
