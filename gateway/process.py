"""What our processes share: log format, and that a child stops when told or left alone."""

import asyncio
import logging
import os
import signal
import sys

PARENT_PIPE = "REFRAIN_PARENT_PIPE"
"""Set to 1 where stdin is a pipe that the parent holds: its end means that the parent is gone."""


WORKER_SETTINGS = "REFRAIN_WORKER_SETTINGS"
"""Carries a worker's settings as JSON: unlike a command line, an environment is private."""


def configure_logging(level: str) -> None:
    """Write log lines for people to stderr."""
    logging.basicConfig(
        level=level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
    )


def stop_event() -> asyncio.Event:
    """Return an event that is set by SIGTERM, SIGINT or the parent's end."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if os.environ.get(PARENT_PIPE) == "1":
        descriptor = sys.stdin.fileno()

        def readable() -> None:
            if not os.read(descriptor, 4096):
                loop.remove_reader(descriptor)
                stop.set()

        loop.add_reader(descriptor, readable)
    return stop
