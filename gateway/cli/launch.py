"""Which processes make up an installation, and how each is started."""

import argparse
import asyncio
import contextlib
import fcntl
import hashlib
import importlib.util
import logging
import os
import socket
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from gateway.cli.supervisor import PYTHON, STOP_SECONDS, WORKER_SETTINGS, Child, Supervisor
from gateway.cli.terminal import CommandError, FailedError, configure_logging, say, unreadable
from gateway.server.auth import KeyRingError, read_key_ring
from gateway.server.secrets import SecretSettingError, check_secrets, warn_of_shared_credentials
from gateway.settings import Settings, SettingsError, load_settings, tls_files, unknown_variables
from gateway.upstream.http_client import VARIABLE, instance
from policies.format.load import parse_policy
from policies.format.yaml_document import PolicyError, policy_text

log = logging.getLogger(__name__)

DEMO_MODEL = "refrain-demo"
_SOCKET = "embeddings.sock"

_READY = """
Refrain is ready.  base_url: {url}/v1   model: {model}

  curl -i {url}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}",
         "messages": [{{"role": "user", "content": "How do I reset my password?"}}]}}'

Ask twice and look at the Cache-Status header. Metrics: {url}/metrics   Stop: Ctrl-C
"""


_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""This machine is reached directly, whatever proxy the environment names."""


def run_gateway(options: argparse.Namespace) -> int:
    """Run gateway and embeddings in front of the upstreams; return the exit code."""
    settings = _settings(options)
    if not settings.all_upstreams:
        hint = "give --upstream URL, REFRAIN_UPSTREAM, or upstream: in refrain.yaml"
        raise CommandError(f"no upstream: {hint}")
    configure_logging(settings.log_level)
    return _run(settings)


def run_demo(options: argparse.Namespace) -> int:
    """Run gateway, embeddings and the bundled engine with its model; return the exit code."""
    settings = _settings(options)
    configure_logging(settings.log_level)
    if importlib.util.find_spec("torch") is None:
        raise FailedError("the bundled engine needs torch: install refrain[cpu] or refrain[gpu]")
    if upstreams := settings.all_upstreams:
        log.warning("the demo serves its own engine: upstream %s is not used", upstreams[0].url)
    return _run(settings, is_demo=True)


def _settings(options: argparse.Namespace) -> Settings:
    config = options.config
    if config is None and Path("refrain.yaml").is_file():
        config = Path("refrain.yaml")
    for problem in unknown_variables(os.environ):
        say(f"warning: {problem}")
    flags = {name: value for name, value in vars(options).items() if name in Settings.model_fields}
    flags = {name: value for name, value in flags.items() if value is not None}
    try:
        return load_settings(flags, os.environ, config)
    except SettingsError as error:
        raise CommandError(str(error)) from None


def _run(settings: Settings, *, is_demo: bool = False) -> int:
    _check(settings)
    with (
        _lock_data_dir(settings.data_dir),
        _listen(settings.host, settings.port) as sock,
        # Not in the data directory: a unix socket's path may be no longer than 107 bytes.
        tempfile.TemporaryDirectory(prefix="refrain-", ignore_cleanup_errors=True) as folder,
    ):
        runtime = Path(folder)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        url = f"http://{host}:{sock.getsockname()[1]}"
        children: list[Child] = []
        if is_demo:
            settings, engine = _demo_engine(settings)
            children.append(engine)
        else:
            urls = ", ".join(upstream.url for upstream in settings.all_upstreams)
            log.info("listening on %s, upstream %s", url, urls)
        embeddings = _embeddings(settings, runtime)
        children += embeddings
        children += _workers(settings, sock, runtime, semantic=bool(embeddings), is_demo=is_demo)
        stopped = threading.Event()

        def watch() -> None:
            while not _is_ready(url):
                if stopped.wait(0.1):
                    return
            if is_demo:
                print(_READY.format(url=url, model=DEMO_MODEL), flush=True)
            else:
                log.info("ready: base URL %s/v1", url)

        threading.Thread(target=watch, daemon=True).start()
        # A worker that will not start must not block others: it is refused as soon as all stop.
        code = asyncio.run(Supervisor(children, stopping=sock.close).run())
        stopped.set()
        return code


def _demo_engine(settings: Settings) -> tuple[Settings, Child]:
    """Return the settings of a demo, and the engine that they name."""
    model = Path(str(files("backend") / "demo" / "model"))
    weights = model / "model.safetensors"
    try:
        digest = hashlib.sha256(weights.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise FailedError(f"{weights}: {error.strerror or error}") from None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    update = {
        "upstream": (f"http://127.0.0.1:{port}/v1",),
        "upstreams": (),
        # A demo has no load balancer.
        "drain_delay": 0.0,
        # The port changes at each start; the answers depend on the weights.
        "upstream_name": f"{DEMO_MODEL}/{digest}",
    }
    argv = [*PYTHON, "-m", "backend", "--model", str(model), "--served-model-name", DEMO_MODEL]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--drain-delay", "0"]
    return settings.model_copy(update=update), Child("engine", argv)


def _is_ready(url: str) -> bool:
    try:
        with _DIRECT.open(f"{url}/readyz", timeout=3) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _check(settings: Settings) -> None:
    """Check once, before any process starts, for faults that would stop every worker."""
    _make(settings.data_dir)
    own_keys = settings.gateway_keys is not None
    upstreams = settings.all_upstreams
    try:
        check_secrets(upstreams, os.environ, own_keys=own_keys)
    except SecretSettingError as error:
        raise CommandError(str(error)) from None
    warn_of_shared_credentials(upstreams, os.environ, own_keys=own_keys)
    checks = (
        (settings.policy, lambda data, source: parse_policy(policy_text(data, source), source)),
        (settings.gateway_keys, read_key_ring),
        (settings.denied_keys, read_key_ring),
    )
    for path, check in checks:
        if path is None:
            continue
        try:
            check(path.read_bytes(), str(path))
        except OSError as error:
            raise unreadable(path, error) from None
        except (PolicyError, KeyRingError) as error:
            raise CommandError(str(error)) from None
    for option, path in tls_files(settings.store).items():
        if not os.access(path, os.R_OK):
            raise CommandError(f"store: {option}: {path} cannot be read")
    if settings.decision_log is not None:
        _check_writable(settings.decision_log)


def _check_writable(log: Path) -> None:
    if log.is_dir():
        raise CommandError(f"decision_log: {log} is a folder; give a file")
    if not log.parent.is_dir():
        raise CommandError(f"decision_log: {log.parent} is no folder; make it, or name another")
    if not os.access(log if log.exists() else log.parent, os.W_OK):
        raise CommandError(f"decision_log: {log} cannot be written")


def _make(data_dir: Path) -> None:
    what = f"the data directory {data_dir}"
    if data_dir.exists() and not data_dir.is_dir():
        raise CommandError(f"{what} is a file; give a folder with --data-dir")
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FailedError(
            f"{what} cannot be made: {error.strerror or error}; give another with --data-dir"
        ) from None


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
            pid = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise FailedError(
                f"the data directory {data_dir} is in use by another gateway (pid {pid}); "
                "stop it, or give another with --data-dir"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        os.close(descriptor)


def _listen(host: str, port: int) -> socket.socket:
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


def _embeddings(settings: Settings, runtime: Path) -> list[Child]:
    needed = ("faiss", "onnx", "onnxruntime", "sentence_transformers")
    missing = [name for name in needed if not importlib.util.find_spec(name)]
    if missing:
        log.warning("semantic lookup is off: %s not installed", " and ".join(missing))
        return []
    argv = [*PYTHON, "-m", "embeddings", "--socket", str(runtime / _SOCKET)]
    argv += ["--data-dir", str(settings.data_dir), "--device", settings.embeddings_device]
    if settings.embeddings_model is not None:
        argv += ["--model", settings.embeddings_model]
    # Not on its command line, which is public: a URL may tell more than it should.
    environment = {
        "REFRAIN_VECTORS": settings.vectors,
        "REFRAIN_VECTORS_TIMEOUT": str(settings.vectors_timeout),
    }
    return [Child("embeddings", argv, environment, vital=False)]


def _workers(
    settings: Settings, sock: socket.socket, runtime: Path, *, semantic: bool, is_demo: bool
) -> list[Child]:
    argv = [*PYTHON, "-m", "gateway.cli.worker", "--socket-fd", str(sock.fileno())]
    if semantic:
        argv += ["--semantic-socket", str(runtime / _SOCKET)]
    if is_demo:
        argv += ["--engine-required"]
    environment = {WORKER_SETTINGS: settings.model_dump_json(), VARIABLE: instance()}
    if settings.workers > 1:
        metrics = runtime / "metrics"
        metrics.mkdir()
        environment["PROMETHEUS_MULTIPROC_DIR"] = str(metrics)
    child = Child(
        "gateway-1",
        argv if is_demo else [*argv, "--greet-upstreams"],
        environment,
        (sock.fileno(),),
        front=True,
        stop_seconds=settings.drain_delay + settings.drain_timeout + STOP_SECONDS,
    )
    others = range(2, settings.workers + 1)
    return [child, *(replace(child, name=f"gateway-{number}", argv=argv) for number in others)]
