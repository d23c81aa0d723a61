"""Starts the servers of a benchmark, each on a core, waits until they answer, and watches them.

The servers that a benchmark compares share core 0, for only one of them is loaded at a time. The
client and the upstream have the last core.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path

_HERE = Path(__file__).resolve().parent
CORES = sorted(os.sched_getaffinity(0))
CLIENT_CORE = CORES[-1]
EXACT_ONLY = """
version: 1
default: {exact: on, semantic: off, freshness: 1h, scope: tenant, pii: bypass}
"""
"""A policy without semantic lookup."""
_NGINX = """
user %(user)s; daemon off; worker_processes 1; pid %(folder)s/pid; error_log stderr crit;
events {}
http {
  access_log off; client_body_in_single_buffer on; client_body_buffer_size 1m;
  client_body_temp_path %(folder)s/body; proxy_temp_path %(folder)s/proxy;
  fastcgi_temp_path %(folder)s/a; uwsgi_temp_path %(folder)s/b; scgi_temp_path %(folder)s/c;
  proxy_cache_path %(folder)s/cache keys_zone=answers:10m;
  keepalive_requests 100000000;
  upstream model { server 127.0.0.1:%(upstream)d; keepalive 256; }
  server {
    listen 127.0.0.1:%(port)d;
    proxy_http_version 1.1; proxy_set_header Connection "";
    location / {
      proxy_pass http://model;
      proxy_cache answers; proxy_cache_methods POST; proxy_cache_valid 200 1h;
      proxy_cache_key "$request_uri|$http_authorization|$request_body";
    }
  }
  server {
    listen 127.0.0.1:%(forwards)d;
    proxy_http_version 1.1; proxy_set_header Connection "";
    location / { proxy_pass http://model; }
  }
}
"""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that was started: its port, and the process that leads its processes."""

    port: int
    process: int


def free_port() -> int:
    """Return a port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def pin(process: int, core: int) -> None:
    """Bind a process, 0 for this one, to one of the cores we have."""
    os.sched_setaffinity(process, {CORES[core % len(CORES)]})


def start(stack: ExitStack, argv: Sequence[str], core: int | None) -> int:
    """Start ``python argv...``, on a core if one is given; return its process id.

    If the stack is left, the process ends.
    """
    return start_program(stack, [sys.executable, *argv], core)


def start_program(
    stack: ExitStack,
    argv: Sequence[str],
    core: int | None,
    *,
    environment: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> int:
    """Start a program as ``start`` does; ``log`` gets what it prints."""
    out = stack.enter_context(log.open("wb")) if log else None
    process = subprocess.Popen(
        argv,
        stdout=out or subprocess.DEVNULL,
        stderr=out,
        cwd=_HERE,
        env={**os.environ, **(environment or {})},
    )
    if core is not None:
        pin(process.pid, core)  # before it starts children, which inherit it

    def stop() -> None:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)

    stack.callback(stop)
    return process.pid


def start_upstream(stack: ExitStack, core: int | None = -1) -> int:
    """Start the scripted upstream and return its port."""
    port = free_port()
    start(stack, ["programs/upstream.py", str(port)], core)
    await_url(f"http://127.0.0.1:{port}/calls")
    return port


def start_engine(stack: ExitStack, model: Path, *options: str, port: int = 0) -> Server:
    """Start the bundled engine by its command and wait until it is ready."""
    port = port or free_port()
    argv = ["-m", "gateway.cli", "backend", "--model", str(model), "--port", str(port), *options]
    process = start(stack, argv, None)
    await_url(f"http://127.0.0.1:{port}/readyz", process=process)
    return Server(port, process)


def start_gateway(
    stack: ExitStack,
    upstream: int | None,
    *,
    core: int | None = 0,
    policy: str | None = None,
    settings: Mapping[str, object] | None = None,
    data_dir: Path | None = None,
) -> Server:
    """Start the real gateway by its command, in front of a port; wait until it is ready.

    ``policy`` is the text of a policy file, ``settings`` are those of ``refrain.yaml``. If there is
    no port, they name the upstreams. The data directory is a new one if none is given.
    """
    port = free_port()
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    chosen = {"log_level": "error"}
    if upstream is not None:
        chosen["upstream"] = f"http://127.0.0.1:{upstream}/v1"
    config = folder / "refrain.yaml"
    config.write_text(json.dumps({**chosen, **(settings or {})}))
    argv = ["-m", "gateway.cli", "serve", "--port", str(port), "--config", str(config)]
    argv += ["--data-dir", str(data_dir or folder / "data")]
    if policy is not None:
        (folder / "policy.yaml").write_text(policy)
        argv += ["--policy", str(folder / "policy.yaml")]
    process = start(stack, argv, core)
    await_url(f"http://127.0.0.1:{port}/readyz", process=process)
    return Server(port, process)


def start_bare(stack: ExitStack, script: str, *arguments: str) -> Server:
    """Start one of the floors on core 0 and wait until it answers."""
    port = free_port()
    process = start(stack, [f"programs/{script}", str(port), *arguments], 0)
    await_url(f"http://127.0.0.1:{port}/")
    return Server(port, process)


def start_nginx(stack: ExitStack, upstream: int) -> tuple[Server, Server]:
    """Start nginx on core 0; return the server that caches POST and the one that only forwards."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    ports = {"port": free_port(), "forwards": free_port(), "upstream": upstream}
    config = folder / "nginx.conf"
    config.write_text(_NGINX % {"folder": folder, "user": getuser(), **ports})
    folder.chmod(0o755)  # its worker may have another user
    argv = ["nginx", "-e", "stderr", "-c", str(config), "-p", str(folder)]
    process = start_program(stack, argv, 0)
    await_url(f"http://127.0.0.1:{ports['port']}/")
    return Server(ports["port"], process), Server(ports["forwards"], process)


def await_url(url: str, patience: float = 60, *, process: int = 0) -> None:
    """Wait until the server answers with anything but 502 and 503.

    Raises SystemExit after ``patience`` seconds, or if ``process`` has ended.
    """
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if process and _has_ended(process):
            raise SystemExit(f"the server for {url} ended")
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except urllib.error.HTTPError as error:
            if error.code not in (502, 503):
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise SystemExit(f"{url} did not answer within {patience:g} s")


def _has_ended(process: int) -> bool:
    """Tell whether a child is a zombie: nobody has waited for it yet."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def processes(leader: int) -> list[int]:
    """Return a process and all its descendants."""
    try:
        children = Path(f"/proc/{leader}/task/{leader}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [leader, *(each for child in children for each in processes(int(child)))]


def role(process: int) -> str:
    """Return what a process of the gateway does: supervisor, worker or embeddings."""
    command = Path(f"/proc/{process}/cmdline").read_text().split("\0")
    named = {"gateway.cli.process.worker": "worker", "embeddings": "embeddings"}
    return next((kind for part in command for name, kind in named.items() if name in part), "other")


def processor_seconds(leader: int) -> float:
    """Return the processor time of a process and its descendants so far."""
    ticks = 0
    for process in processes(leader):
        stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(stat[11]) + int(stat[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_mib(process: int) -> float:
    """Return a process's resident memory in MiB."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
