"""A pytest plugin: a real embeddings service with a small random verifier, calibrated on demand."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_verifier import write_tiny_verifier

from embeddings.verify.calibration import calibrated, written_calibration
from embeddings.verify.files import read_verifier
from gateway.semantic.calibrations import OWN_FILE


@pytest.fixture(scope="module")
def verifying_service() -> Iterator[tuple[Path, str]]:
    """Yield the service's socket, and the digest of its verifier."""
    with tempfile.TemporaryDirectory(prefix="refrain-") as folder:
        socket = Path(folder) / "e.sock"
        verifier = write_tiny_verifier(Path(folder) / "verifier")
        argv = ["-m", "embeddings", "--socket", str(socket), "--data-dir", folder]
        process = subprocess.Popen([sys.executable, *argv, "--verifier", str(verifier)])
        while not socket.exists():
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.05)
        yield socket, read_verifier(verifier).digest
        process.kill()
        process.wait()


@pytest.fixture
def lenient_data(verifying_service: tuple[Path, str], tmp_path: Path) -> Path:
    """Make a data directory whose calibration takes any score at 20 %, and none at 0.1 %."""
    folder = tmp_path / "data"
    folder.mkdir()
    points = [(0.0, False)] * 100
    (folder / OWN_FILE).write_bytes(
        written_calibration(calibrated(points, verifier=verifying_service[1]))
    )
    return folder
