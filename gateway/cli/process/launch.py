"""Starts the processes of an installation, and reloads them: the supervisor's own, small part.

Law: nothing is imported here that reads settings or policies; see ``plan``.
"""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from gateway.cli.process.child_process import PYTHON, Child
from gateway.cli.process.supervisor import INSTANCE, WORKER_SETTINGS, ReloadError, Supervisor
from gateway.cli.terminal import FailedError, configure_logging
from gateway.telemetry.events import event_log

log = logging.getLogger(__name__)
_EVENT = {"fields": {"event": "gateway"}}

_SOCKET = "embeddings.sock"
_READY_SECONDS = 3.0
_LOOK_SECONDS = 0.1
_PLAN_SECONDS = 60.0
_TERMINAL = "/dev/tty"
"""A person at a terminal can open it."""

_PLAN = (*PYTHON, "-m", "gateway.cli.process.plan")

_READY = """
Refrain is ready.  base_url: {url}/v1   model: {model}

  curl -i {url}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}",
         "messages": [{{"role": "user", "content": "How do I reset my password?"}}]}}'

Ask twice and look at the Cache-Status header.
{page}Metrics: {url}/metrics   Stop: Ctrl-C
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to run, as ``plan`` has worked it out."""

    host: str
    port: int
    data_dir: str
    config: str | None
    """The file of settings that was read; None if there was none."""
    log_level: str
    log_format: str
    workers: int
    worker_settings: str
    """The settings of a worker as JSON."""
    worker_stop_seconds: float
    upstreams: list[str]
    """Their URLs."""
    engine: list[str] | None
    """The command line of a demo's engine."""
    model: str
    """Its model."""
    embeddings: list[str] | None
    """The command line of the embeddings service, without its socket; None if not installed."""
    embeddings_environment: dict[str, str]


def run_gateway(**flags: Any) -> int:
    """Run gateway and embeddings in front of the upstreams; return the exit code."""
    return _run(flags, is_demo=False)


def run_demo(**flags: Any) -> int:
    """Run gateway, embeddings and the bundled engine with its model; return the exit code."""
    return _run(flags, is_demo=True)


def _run(given: Mapping[str, Any], *, is_demo: bool) -> int:
    # A demo's engine gets another port in each plan.
    reloads = not is_demo and not _ends_with_terminal()
    if reloads:
        # A signal before the supervisor listens for it: the settings are read anyway.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    flags = {name: value for name, value in given.items() if value is not None}
    asked = {**flags, "is_demo": is_demo}
    planned = subprocess.run(  # noqa: S603 - our own module
        _PLAN, input=_encode(asked), stdout=subprocess.PIPE, start_new_session=True, check=False
    )
    if planned.returncode:
        return max(planned.returncode, 1)
    plan = Plan(**json.loads(planned.stdout))
    configure_logging(plan.log_level, plan.log_format)
    with (
        _lock_data_dir(Path(plan.data_dir)),
        listen(plan.host, plan.port) as sock,
        # Not in the data directory: a unix socket's path may be no longer than 107 bytes.
        tempfile.TemporaryDirectory(prefix="refrain-", ignore_cleanup_errors=True) as folder,
    ):
        return _serve(plan, sock, Path(folder), asked if reloads else None)


def _ends_with_terminal() -> bool:
    """Tell whether SIGHUP says that the terminal is gone: a service has none, nohup ignores it."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return False
    try:
        os.close(os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _encode(asked: Mapping[str, Any]) -> bytes:
    return json.dumps(asked, default=str).encode()


def _serve(
    plan: Plan, sock: socket.socket, runtime: Path, asked: Mapping[str, Any] | None = None
) -> int:
    """Run the plan. ``asked`` is what made it; without it, the settings cannot be reloaded."""
    host = f"[{plan.host}]" if ":" in plan.host else plan.host
    url = f"http://{host}:{sock.getsockname()[1]}"
    children = []
    if plan.engine is not None:
        children.append(Child("engine", plan.engine))
    else:
        log.info("listening on %s, upstream %s", url, ", ".join(plan.upstreams))
    if plan.embeddings is not None:
        argv = [*plan.embeddings, "--socket", str(runtime / _SOCKET)]
        children.append(Child("embeddings", argv, plan.embeddings_environment, vital=False))
    name = os.environ.get(INSTANCE) or secrets.token_hex(6)
    started = time.time()
    children += _workers(plan, sock, runtime, name, started)

    file = plan.config

    async def reload() -> list[Child]:
        nonlocal file
        # A file that was read once is never taken for absent, which would mean all defaults.
        more = {"in_force": plan.worker_settings} | ({} if file is None else {"config": file})
        new = await _plan_again({**(asked or {}), **more})
        file = new.config
        log.info("reload: upstream %s", ", ".join(new.upstreams))
        here = replace(new, embeddings=plan.embeddings)
        return _workers(here, sock, runtime, name, started)

    stopped, address = threading.Event(), sock.getsockname()

    def watch() -> None:
        while not _is_ready(address):
            if stopped.wait(_LOOK_SECONDS):
                return
        log.info("ready: base URL %s/v1", url, extra=_EVENT)
        has_page = json.loads(plan.worker_settings).get("ui")
        if plan.engine is not None:
            page = f"Page: {url}/ui   " if has_page else ""
            print(_READY.format(url=url, model=plan.model, page=page), flush=True)
        elif has_page:
            log.info("the operator's page: %s/ui", url)

    threading.Thread(target=watch, daemon=True).start()
    # A worker that will not start must not block others: it is refused as soon as all stop.
    with event_log(Path(plan.data_dir)):
        log.info("the gateway starts", extra=_EVENT)
        code = asyncio.run(_supervise(children, sock.close, None if asked is None else reload))
        log.info("the gateway has stopped", extra=_EVENT)
    stopped.set()
    return code


async def _supervise(
    children: list[Child],
    stopping: Callable[[], None],
    reload: Callable[[], Awaitable[list[Child]]] | None,
) -> int:
    return await Supervisor(children, stopping=stopping, reload=reload).run()


async def _plan_again(asked: Mapping[str, Any]) -> Plan:
    """Return the plan by the settings as they are now. Raises ReloadError."""
    planning = await asyncio.create_subprocess_exec(
        *_PLAN,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(_PLAN_SECONDS):
            planned, _ = await planning.communicate(_encode(asked))
    except TimeoutError:
        raise ReloadError(f"the settings were not read in {_PLAN_SECONDS:.0f} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            planning.kill()
    if planning.returncode:
        faults = planned.decode(errors="replace").splitlines()
        raise ReloadError("; ".join(faults) or "the settings could not be read")
    return Plan(**json.loads(planned))


def _is_ready(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address[:2], timeout=_READY_SECONDS) as asking:
            asking.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
            return asking.recv(64).partition(b" ")[2].startswith(b"200 ")
    except OSError:
        return False


@contextlib.contextmanager
def _lock_data_dir(data_dir: Path) -> Iterator[None]:
    """Keep the data directory for this installation. Raises CommandError where another has it.

    The lock ends with this process, however it ends; its file holds the pid of who had it last.
    """
    path = data_dir / "lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise FailedError(f"{path}: {error.strerror or error}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = _last_holder(descriptor)
            raise FailedError(
                f"the data directory {data_dir} is in use by another gateway (pid {pid}); "
                "stop it, or give another with --data-dir"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        os.close(descriptor)


def lock_holder(data_dir: Path) -> str | None:
    """Return the pid of the gateway that has the data directory, None if none has it."""
    try:
        descriptor = os.open(data_dir / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _last_holder(descriptor)
    finally:
        os.close(descriptor)
    return None


def _last_holder(descriptor: int) -> str:
    return os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises FailedError."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as opened:
            sock = opened.enter_context(socket.socket(family, kind))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            # Listening here, not in the worker: a port in use is known now, and no client is
            # refused while the workers start.
            sock.listen(2048)
            opened.pop_all()
            return sock
    except OSError as error:
        why = error.strerror or error
        raise FailedError(f"cannot listen on {host}:{port}: {why}") from None


def forget_gauges(metrics: Path, worker: str) -> None:
    """Remove the gauges of a worker that has ended: its calls are over."""
    for file in metrics.glob(f"gauge_live*_{worker}.db"):
        file.unlink(missing_ok=True)


def _workers(
    plan: Plan, sock: socket.socket, runtime: Path, name: str, started: float
) -> list[Child]:
    """Return the workers of the installation with this name, which was started then."""
    argv = [*PYTHON, "-m", "gateway.cli.process.worker", "--socket-fd", str(sock.fileno())]
    # A single worker shares the store, too, while another one takes its place.
    argv += ["--started", str(started), "--changes", str(runtime / "changes")]
    if plan.embeddings is not None:
        argv += ["--semantic-socket", str(runtime / _SOCKET)]
    is_demo = plan.engine is not None
    if is_demo:
        argv += ["--engine-required"]
    environment = {WORKER_SETTINGS: plan.worker_settings, INSTANCE: name}
    metrics = runtime / "metrics"
    if plan.workers > 1:
        metrics.mkdir(exist_ok=True)
        environment["PROMETHEUS_MULTIPROC_DIR"] = str(metrics)
    child = Child(
        "gateway-1",
        argv if is_demo else [*argv, "--greet-upstreams"],
        environment,
        (sock.fileno(),),
        front=True,
        ended=partial(forget_gauges, metrics),
        stop_seconds=plan.worker_stop_seconds,
    )
    others = range(2, plan.workers + 1)
    return [child, *(replace(child, name=f"gateway-{number}", argv=argv) for number in others)]
