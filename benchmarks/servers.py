"""Starts the servers of a benchmark, each on the core it is given, and waits until they answer."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_CORES = sorted(os.sched_getaffinity(0))


def free_port() -> int:
    """Return a port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def pin(process: int, core: int) -> None:
    """Bind a process, 0 for this one, to one of the cores we have."""
    os.sched_setaffinity(process, {_CORES[core % len(_CORES)]})


def start(stack: ExitStack, argv: Sequence[str], core: int) -> int:
    """Start ``python argv...`` on a core, return its process id; leaving the stack ends it."""
    process = subprocess.Popen([sys.executable, *argv], stdout=subprocess.DEVNULL, cwd=_HERE)
    pin(process.pid, core)  # before it starts children, which inherit it

    def stop() -> None:
        process.terminate()
        process.wait(20)

    stack.callback(stop)
    return process.pid


def await_url(url: str) -> None:
    """Wait until the server answers with anything but 502 and 503."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except urllib.error.HTTPError as error:
            if error.code not in (502, 503):
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"{url} did not answer within 60 s")
