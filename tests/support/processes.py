"""Our commands as real processes: started, waited for by what they print, and always ended."""

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

PATIENT = {
    "HF_HUB_OFFLINE": "1",
    "REFRAIN_DRAIN_DELAY": "0",
    "REFRAIN_LOG_FORMAT": "text",
    "REFRAIN_SEMANTIC_TIMEOUT": "30",
    "REFRAIN_VERIFIER_TIMEOUT": "30",
}
"""On a busy machine a lookup takes its time, and would be a miss. Tests read the log as text."""


class Process:
    """A command with its output collected line by line."""

    def __init__(
        self, *argv: str, cwd: Path | None = None, within: Sequence[str] = (), **environment: str
    ) -> None:
        """``within`` is a command that runs Python with ``argv``, in its own process."""
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self.popen = subprocess.Popen(
            [*within, sys.executable, *argv],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=cwd,
            env={**os.environ, **PATIENT, **environment},
            start_new_session=True,
        )
        self._collector = threading.Thread(target=self._collect, daemon=True)
        self._collector.start()

    def _collect(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self._queue.put(line.rstrip("\n"))
        self.popen.stdout.close()
        self._queue.put(None)

    def wait_for_line(self, text: str, seconds: float = 120) -> str:
        """Return the first line from here on that holds ``text``; fail when none comes in time."""
        while True:
            try:
                line = self._queue.get(timeout=seconds)
            except queue.Empty:
                raise AssertionError(f"no {text!r} within {seconds} s: {self.lines}") from None
            if line is None:
                self._queue.put(None)
                raise AssertionError(f"ended without {text!r}: {self.lines}")
            self.lines.append(line)
            if text in line:
                return line

    def stop(self, number: signal.Signals = signal.SIGTERM, seconds: float = 120) -> int:
        """Send a signal, wait, and return the exit code."""
        if self.popen.poll() is None:
            self.popen.send_signal(number)
        code = self.popen.wait(seconds)
        self._collector.join(seconds)  # children that hold the pipe end with their parent
        self.lines += list(iter(self._queue.get, None))
        self._queue.put(None)  # for a second stop
        return code

    def children(self) -> list[int]:
        """Return the process ids of the running children."""
        path = Path(f"/proc/{self.popen.pid}/task/{self.popen.pid}/children")
        return [int(pid) for pid in path.read_text().split()]


def child_running(process: Process, module: str) -> int:
    """Return the id of the child that runs ``python -m module``."""
    for pid in process.children():
        if module in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
            return pid
    raise AssertionError(f"no child runs {module}")
