"""Environments of other projects' clients: installed once from the registries, kept for later runs.

They lie outside of the project's own environment, in the user's cache folder, below a name made of
their pins. New pins make a new environment; the folder may be deleted at any time.
"""

import asyncio
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

CLIENTS = Path(__file__).parents[1] / "conformance" / "clients"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "refrain-test-clients"
INSTALL_SECONDS = 180
RUN_SECONDS = 90
# Where no registry answers, a test run is not to wait for long.
PIP = ("install", "--quiet", "--no-compile", "--retries", "1", "--timeout", "20")
NPM = ("ci", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1")
NPM_TIMES = ("--fetch-timeout=60000", "--fetch-retry-mintimeout=1000")
RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))


class NotInstallableError(Exception):
    """A client's environment could not be made; the text says why."""


def python_environment(requirements: str) -> Path:
    """Return the Python of an environment that holds what a file in ``python/`` pins."""
    pins = CLIENTS / "python" / requirements

    def install(folder: Path) -> None:
        venv.create(folder, symlinks=True)
        python = str(folder / "bin" / "python")
        _execute([sys.executable, "-m", "pip", "--python", python, *PIP, "-r", str(pins)])

    return _environment(pins.stem, pins, install) / "bin" / "python"


def node_environment(name: str) -> Path:
    """Return a folder that holds the scripts of a folder of clients and their ``node_modules``."""
    lock = CLIENTS / name / "package-lock.json"

    def install(folder: Path) -> None:
        folder.mkdir()
        for package in (lock, lock.with_name("package.json")):
            shutil.copy(package, folder)
        _execute(["npm", *NPM, *NPM_TIMES], cwd=folder)

    return _environment(name, lock, install)


async def run_client(command: list[str], home: Path, **environment: str) -> bytes:
    """Run a client, which reaches nothing but this machine, and return what it printed."""
    clean = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "HTTPS_PROXY": "http://127.0.0.1:9",  # the discard port: nobody listens
        "HTTP_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "127.0.0.1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        **environment,
    }
    pipes = {"stdin": asyncio.subprocess.DEVNULL, "stdout": asyncio.subprocess.PIPE}
    pipes["stderr"] = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=home, env=clean, **pipes)
    try:
        said, complained = await asyncio.wait_for(process.communicate(), RUN_SECONDS)
    except TimeoutError:
        process.kill()
        _, complained = await process.communicate()
        raise AssertionError(f"took more than {RUN_SECONDS} s: {complained.decode()}") from None
    assert process.returncode == 0, complained.decode() + said.decode()
    return said


def _environment(name: str, pins: Path, install: Callable[[Path], None]) -> Path:
    """Return the environment of these pins; make it if no process has made it before."""
    made_of = f"{sys.version_info[:2]} {platform.platform()}".encode() + pins.read_bytes()
    folder = CACHE / f"{name}-{hashlib.sha256(made_of).hexdigest()[:12]}"
    complete, failed = folder / ".complete", folder.with_suffix(".failed")
    try:
        CACHE.mkdir(parents=True, exist_ok=True)
        # The processes of one test run wait for the first of them, which may also fail for all.
        with FileLock(folder.with_suffix(".lock"), timeout=INSTALL_SECONDS + 20):
            if complete.exists():
                return folder
            if failed.exists() and failed.read_text().startswith(RUN):
                raise NotInstallableError(failed.read_text().removeprefix(RUN).strip())
            shutil.rmtree(folder, ignore_errors=True)
            try:
                install(folder)
            except NotInstallableError as error:
                failed.write_text(f"{RUN} {error}")
                raise
            complete.touch()
            return folder
    except (OSError, Timeout) as error:
        raise NotInstallableError(str(error)) from error


def _execute(command: list[str], *, cwd: Path | None = None) -> None:
    """Run an installer; its last words are the reason if it fails."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            check=False,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=INSTALL_SECONDS,
        )
    except FileNotFoundError:
        raise NotInstallableError(f"{name} is not on this machine") from None
    except subprocess.TimeoutExpired:
        raise NotInstallableError(f"{name} took more than {INSTALL_SECONDS} s") from None
    if done.returncode:
        lines = [line.strip() for line in done.stdout.splitlines() if "error" in line.lower()]
        raise NotInstallableError("; ".join(lines[:2]) or f"{name}: status {done.returncode}")
