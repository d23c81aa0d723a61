"""Qdrant as tests use it: its embedded mode behind its REST interface, in a process of its own."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

from owned_process import OwnProcess
from ports import lasting_port

_SCRIPT = Path(__file__).with_name("qdrant_rest.py")


class RunningQdrant(OwnProcess):
    """A server of our own, see ``qdrant_rest.py``; what it stores outlives ``kill``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = lasting_port()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, on the same port as before, and wait until it listens."""
        self._process = subprocess.Popen(
            [sys.executable, str(_SCRIPT), str(self.folder), str(self.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == f"{self.port}\n"

    def fault(self, **fault: object) -> None:
        """Make it answer with faults; none of them mends it."""
        request = urllib.request.Request(
            f"{self.url}/fault", json.dumps(fault).encode(), method="PUT"
        )
        with urllib.request.urlopen(request, timeout=10):
            pass
