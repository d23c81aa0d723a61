"""What is said to the process that tries grammars, and what it answers."""

import pickle
import socket
from dataclasses import dataclass
from typing import Any

from backend.engine.wire import LENGTH
from backend.scheduler.request import Grammar, GrammarKind

KINDS = tuple(GrammarKind)
"""A kind is said by its place here."""


@dataclass(frozen=True, slots=True)
class Job:
    """Compile ``grammar`` in ``seconds`` at most, of which ``cpu_seconds`` of computing, if said.

    What took less than ``quick`` seconds of computing is not sent back: that would take longer than
    to compile it again.
    """

    grammar: Grammar
    seconds: float
    cpu_seconds: float | None
    quick: float


@dataclass(frozen=True, slots=True)
class Tried:
    """It can be compiled; ``serialised`` is what came of it, None where it was quick and silent."""

    serialised: str | None


@dataclass(frozen=True, slots=True)
class Refused:
    """It cannot be compiled, and why."""

    reason: str


def receive(sock: socket.socket) -> Any:
    """Wait for the next message and read no byte beyond it. Raises EOFError when none comes."""
    header = sock.recv(LENGTH.size, socket.MSG_WAITALL)
    if len(header) < LENGTH.size:
        raise EOFError
    (size,) = LENGTH.unpack(header)
    body = sock.recv(size, socket.MSG_WAITALL)
    if len(body) < size:
        raise EOFError
    return pickle.loads(body)  # noqa: S301  # of a process that we started, or that started us
