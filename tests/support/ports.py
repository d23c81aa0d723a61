"""Ports of the loopback interface that the system gives to nobody else meanwhile."""

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def closed_port() -> Iterator[int]:
    """Hold a port that refuses: bound, and not listened on."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def lasting_port() -> int:
    """Return a port that is free, also for a server that comes back to it after a while.

    Below those that the system picks (32768 and up), and so low that a node of a cluster can have
    the one 10,000 above as well.
    """
    while True:
        port = 11_000 + secrets.randbelow(11_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
