"""A terminal for commands that show how far they are."""

import os
import sys
from contextlib import contextmanager

import pytest
from pseudo_terminal import pseudo_terminal

from gateway.cli import progress


class AtOnce:
    """A timer that is due when it starts."""

    def __init__(self, _seconds, function):
        self.start = function

    def cancel(self):
        pass

    join = cancel


@pytest.fixture
def terminal(monkeypatch):
    """Make standard error a terminal for a while; progress is shown at once."""
    monkeypatch.setattr(progress, "Timer", AtOnce)
    monkeypatch.setenv("TERM", "xterm")

    @contextmanager
    def terminal(columns):
        with (
            pseudo_terminal(columns) as screen,
            os.fdopen(os.dup(screen.slave), "w") as stderr,
            monkeypatch.context() as patched,
        ):
            patched.setattr(sys, "stderr", stderr)
            yield screen
            # All else is read by then: it goes the same way.
            print("end of output", file=stderr, flush=True)
            screen.wait_for("end of output")

    return terminal
