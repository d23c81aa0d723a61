"""What is to run, worked out before anything runs: settings are read, and faults found.

    python -m gateway.cli.process.plan < flags as JSON > plan as JSON

For a reload, ``in_force`` is among the flags: the settings of the running workers. A fault is then
written in place of the plan, and the supervisor logs it.

A separate process, since all that reads settings and policies takes memory: it ends, while the
supervisor stays.
"""

import hashlib
import importlib.util
import json
import logging
import os
import re
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from gateway.cli.process.child_process import PYTHON, STOP_SECONDS
from gateway.cli.process.launch import Plan
from gateway.cli.terminal import CommandError, FailedError, configure_logging, say, unreadable
from gateway.server.keys.auth import KeyRingError, read_key_ring
from gateway.server.open.prices import priced, read_price_file
from gateway.server.open.secrets import log_proxies, secret_faults, warn_of_shared_credentials
from gateway.settings import (
    SERVERS,
    Settings,
    SettingsError,
    load_settings,
    origins,
    place_of,
    tls_files,
    unknown_variables,
)
from gateway.telemetry.prices import PricesError
from gateway.upstream.pool.watch.discovery import DiscoveryError, read_addresses
from gateway.upstream.settings import DiscoveryFile
from policies.format.load import parse_policy
from policies.format.yaml_document import PolicyError, policy_text

log = logging.getLogger(__name__)

DEMO_MODEL = "refrain-demo"
_GLOB = re.compile(r"[*?\[]")
_MOST_SHOWN = 8
"""Models that a line names."""

RESTART = (
    *("host", "port", "data_dir", "workers", "store", "log_format"),
    *("embeddings_model", "embeddings_device", "encoders", "vectors", "vectors_timeout"),
)
"""Settings that a reload cannot change: of the socket, the data and the processes behind."""


def main() -> int:
    """Read flags, write the plan; return the exit code of the command."""
    # A path of the command line may have bytes that are no UTF-8, which orjson refuses.
    flags = json.loads(sys.stdin.buffer.read())
    in_force = flags.pop("in_force", None)
    try:
        plan = make_plan(flags, is_demo=flags.pop("is_demo"), in_force=in_force)
    except CommandError as error:
        if in_force is None:
            say(str(error))
        else:
            sys.stdout.write(str(error))
        return error.code
    sys.stdout.buffer.write(orjson.dumps(asdict(plan)))
    return 0


def make_plan(flags: Mapping[str, Any], *, is_demo: bool, in_force: str | None = None) -> Plan:
    """Return what is to run. ``flags`` come from the command line. Raises CommandError.

    ``in_force`` are the settings of the running workers as JSON, if there are any.
    """
    settings = read_settings(flags, warns=in_force is None)
    configure_logging(settings.log_level, settings.log_format)
    faults = find_faults(settings, settings_file(flags), needs_upstream=not is_demo)
    if in_force is not None:
        faults += _need_restart(settings, orjson.loads(in_force), flags)
    if faults:
        raise CommandError("\n".join(faults))
    if is_demo and importlib.util.find_spec("torch") is None:
        what = "the bundled engine needs torch"
        raise FailedError(f"{what}: pip install 'refrain-gateway[cpu]', or [gpu]")
    upstreams, own_keys = settings.all_upstreams, settings.gateway_keys is not None
    if is_demo and upstreams:
        log.warning("the demo serves its own engine: upstream %s is not used", upstreams[0].url)
    warn_of_shared_credentials(upstreams, os.environ, own_keys=own_keys)
    for line in () if is_demo else unpriced_budgets(settings):
        log.warning("%s", line)
    log_proxies(upstreams, os.environ)
    _make(settings.data_dir)
    engine = None
    if is_demo:
        settings, engine = _demo_engine(settings)
    return Plan(
        host=settings.host,
        port=settings.port,
        data_dir=str(settings.data_dir),
        config=None if (file := settings_file(flags)) is None else str(file),
        log_level=settings.log_level,
        log_format=settings.log_format,
        workers=settings.workers,
        worker_settings=settings.model_dump_json(),
        worker_stop_seconds=settings.drain_delay + settings.drain_timeout + STOP_SECONDS,
        upstreams=[upstream.url for upstream in settings.all_upstreams],
        engine=engine,
        model=DEMO_MODEL,
        embeddings=_embeddings(settings),
        # Not on its command line, which is public: a URL may tell more than it should.
        embeddings_environment={
            "REFRAIN_VECTORS": settings.vectors,
            "REFRAIN_VECTORS_TIMEOUT": str(settings.vectors_timeout),
        },
    )


def _need_restart(
    settings: Settings, in_force: Mapping[str, Any], flags: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what a reload cannot change; no value is shown, since it may hold a password."""
    places = origins(setting_flags(flags), os.environ, settings_file(flags))
    new = settings.model_dump(mode="json")
    for key in RESTART:
        if new[key] != in_force[key]:
            place = f"{places[key]}: " if key in places else ""
            yield f"{place}{key}: a change needs a restart of the gateway"


def read_settings(given: Mapping[str, Any], *, warns: bool = True) -> Settings:
    """Return the settings in force; ``given`` may have other flags, too. Raises CommandError."""
    for problem in unknown_variables(os.environ) if warns else ():
        say(f"warning: {problem}")
    try:
        return load_settings(setting_flags(given), os.environ, settings_file(given))
    except SettingsError as error:
        raise CommandError(str(error)) from None


def setting_flags(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that are settings."""
    return {
        name: value
        for name, value in given.items()
        if name in Settings.model_fields and value is not None
    }


def settings_file(given: Mapping[str, Any]) -> Path | None:
    """Return the file of settings: the one of ``--config``, or refrain.yaml if it is there."""
    config = given.get("config")
    if config is None and Path("refrain.yaml").is_file():
        config = "refrain.yaml"
    return None if config is None else Path(config)


def _demo_engine(settings: Settings) -> tuple[Settings, list[str]]:
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
    argv += ["--log-format", settings.log_format]
    return settings.model_copy(update=update), argv


def find_faults(
    settings: Settings, file: Path | None = None, *, needs_upstream: bool = True
) -> list[str]:
    """Return what would stop every worker: of the files that settings name, and of the secrets.

    ``file`` is the file of settings, in which a fault has its line.
    """
    faults = _odd_paths(settings)
    if faults:
        return faults  # no message could name such a file
    upstreams = settings.all_upstreams
    if needs_upstream and not upstreams:
        hint = "give --upstream URL, REFRAIN_UPSTREAM, or upstream: in refrain.yaml"
        faults.append(f"no upstream: {hint}")
    if settings.data_dir.exists() and not settings.data_dir.is_dir():
        what = f"the data directory {settings.data_dir}"
        faults.append(f"{what} is a file; give a folder with --data-dir")
    own_keys = settings.gateway_keys is not None
    faults += [
        place_of(fault.path, file) + fault.text
        for fault in secret_faults(upstreams, os.environ, own_keys=own_keys)
    ]
    for key, path, check in _named_files(settings):
        try:
            check(path.read_bytes(), str(path))
        except OSError as error:
            faults.append(f"{key}: {unreadable(path, error)}")
        except (PolicyError, KeyRingError, PricesError, DiscoveryError) as error:
            faults += str(error).splitlines()
    faults += _missing_extras(settings)
    for option, path in tls_files(settings.store).items():
        if not os.access(path, os.R_OK):
            faults.append(f"store: {option}: {path} cannot be read")
    if settings.decision_log is not None:
        faults += _check_writable(settings.decision_log)
    return faults


def unpriced_budgets(settings: Settings, listed: Iterable[str] = ()) -> Iterator[str]:
    """Yield a line for each holder with a budget in dollars who may name models without a price.

    Such requests are refused. ``listed`` are models that upstreams list. The files are valid.
    """
    path, upstreams = settings.gateway_keys, settings.all_upstreams
    if path is None:
        return
    prices = priced(settings)
    declared = {name for one in upstreams for name in (*one.models, *one.rename)}
    ring = read_key_ring(path.read_bytes(), str(path))
    keys = [key for found in ring.by_prefix.values() for _, key in found if key.limits.needs_price]
    for holder in dict.fromkeys(key.name for key in keys):
        unpriced: dict[str, None] = {}
        for key in (key for key in keys if key.name == holder):
            names = {name for name in declared | {*listed} if key.may_use(name)} | {*key.models}
            unpriced |= {
                name: None
                for name in sorted(names)
                if not _GLOB.search(name) and not prices.knows(name)
            }
        if unpriced:
            shown = ", ".join([*unpriced][:_MOST_SHOWN]) + (
                ", …" if len(unpriced) > _MOST_SHOWN else ""
            )
            yield (
                f"{path}: {holder} has a budget in dollars, and no price is known of {shown}: "
                "requests for them are refused; add rows to the file of the setting prices, or "
                "give the upstream the preset of its engine"
            )


def _odd_paths(settings: Settings) -> list[str]:
    """Name the paths that are no text: settings go from process to process as JSON."""
    return [
        f"{key}: expected a path in UTF-8, got {str(path)!a}"
        for key, path in settings
        if isinstance(path, Path) and str(path).encode(errors="ignore") != os.fsencode(path)
    ]


def _named_files(settings: Settings) -> Iterator[tuple[str, Path, Callable[[bytes, str], object]]]:
    """Yield the key of each file that settings name, the file and what reads it."""
    checks: tuple[tuple[str, Path | None, Callable[[bytes, str], object]], ...] = (
        (
            "policy",
            settings.policy,
            lambda data, source: parse_policy(policy_text(data, source), source),
        ),
        ("gateway_keys", settings.gateway_keys, read_key_ring),
        ("denied_keys", settings.denied_keys, partial(read_key_ring, denied=True)),
        ("prices", settings.prices, read_price_file),
    )
    for key, path, check in checks:
        if path is not None:
            yield key, path, check
    for one in settings.all_upstreams:
        if isinstance(one.discover, DiscoveryFile):
            port = urlsplit(one.url).port
            key = f"upstream {one.label}: discover"
            yield key, one.discover.file, partial(read_addresses, port=port)


def _missing_extras(settings: Settings) -> Iterator[str]:
    for key, servers in SERVERS.items():
        scheme = urlsplit(getattr(settings, key)).scheme
        library, extra = servers.get(scheme, ("", ""))
        if library and importlib.util.find_spec(library) is None:
            install = f"pip install 'refrain-gateway[{extra}]'"
            yield f"{key}: {scheme}://… needs the extra {extra}: {install}"


def _check_writable(log: Path) -> Iterator[str]:
    if log.is_dir():
        yield f"decision_log: {log} is a folder; give a file"
    elif not log.parent.is_dir():
        yield f"decision_log: {log.parent} is no folder; make it, or name another"
    elif not os.access(log if log.exists() else log.parent, os.W_OK):
        yield f"decision_log: {log} cannot be written"


def _make(data_dir: Path) -> None:
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = error.strerror or error
        raise FailedError(
            f"the data directory {data_dir} cannot be made: {why}; give another with --data-dir"
        ) from None


def missing_libraries() -> list[str]:
    """Return the libraries that semantic lookup needs and that are not installed."""
    needed = ("faiss", "numpy", "onnx", "onnxruntime", "safetensors", "tokenizers")
    return [name for name in needed if not importlib.util.find_spec(name)]


def _embeddings(settings: Settings) -> list[str] | None:
    if missing := missing_libraries():
        what = f"{' and '.join(missing)} not installed"
        log.warning("semantic lookup is off: %s; pip install 'refrain-gateway[semantic]'", what)
        return None
    argv = [*PYTHON, "-m", "embeddings", "--data-dir", str(settings.data_dir)]
    argv += ["--device", settings.embeddings_device]
    argv += ["--encoders", str(settings.encoders or "auto")]
    argv += ["--log-level", settings.log_level, "--log-format", settings.log_format]
    if settings.embeddings_model is not None:
        argv += ["--model", settings.embeddings_model]
    return argv


if __name__ == "__main__":
    sys.exit(main())
