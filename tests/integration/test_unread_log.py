"""A log that nobody reads stops nothing: lines are dropped and counted."""

import fcntl
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from processes import PATIENT

SMALLEST_PIPE = 4096
BAD = b"{"


def test_requests_are_answered_while_nobody_reads_stderr(tmp_path: Path):
    argv = ("-m", "gateway.cli", "serve", "--upstream", "http://127.0.0.1:9/v1", "--port", "0")
    ours, theirs = os.pipe()
    process = subprocess.Popen(
        [sys.executable, *argv, "--data-dir", str(tmp_path), "--log-level", "debug"],
        stderr=theirs,
        env={**os.environ, **PATIENT},
    )
    os.close(theirs)
    log = os.fdopen(ours, "rb")
    try:
        lines = iter(log.readline, b"")
        ready = next(line for line in lines if b"ready: base URL" in line)
        base = ready.rpartition(b" ")[2].decode().strip()
        fcntl.fcntl(log, fcntl.F_SETPIPE_SZ, SMALLEST_PIPE)
        # One line of the log each, and more than the queue holds.
        with urllib.request.urlopen(base.removesuffix("/v1") + "/healthz", timeout=30) as alive:
            assert alive.status == 200
        for _ in range(200):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"{base}/chat/completions", BAD, timeout=30)
            refused.value.close()
            assert refused.value.code == 400
    finally:
        process.terminate()
        rest = log.read()
        assert process.wait(60) == 0
        log.close()
    assert rest.count(b"outcome=invalid") == 200
