"""Exact hits per second of one gateway worker on one core, beside two floors.

The gateway is the real one, started by its command, with the store on disk and its memory tier. The
bare handler parses, hashes, looks up in a dict and replies with as many bytes. nginx, where it is
installed, answers a cached POST. Each server has core 0 while it is loaded, and wrk has core 1.
Rounds alternate; a figure is the median of the rounds' ratios.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path

import orjson
from load import TRACE_HEADERS, post, run_load, run_wrk
from servers import await_url, free_port, pin, start

PATH = "/v1/chat/completions"
CORES = sorted(os.sched_getaffinity(0))
POLICY = """
version: 1
default: {exact: on, semantic: off, freshness: 1h, scope: tenant, pii: bypass}
"""
NGINX = """
user %(user)s; daemon off; worker_processes 1; pid %(folder)s/pid; error_log stderr crit;
events {}
http {
  access_log off; client_body_in_single_buffer on; client_body_buffer_size 1m;
  client_body_temp_path %(folder)s/body; proxy_temp_path %(folder)s/proxy;
  fastcgi_temp_path %(folder)s/a; uwsgi_temp_path %(folder)s/b; scgi_temp_path %(folder)s/c;
  proxy_cache_path %(folder)s/cache keys_zone=answers:10m;
  keepalive_requests 100000000;
  server {
    listen 127.0.0.1:%(port)d;
    location / {
      proxy_pass http://127.0.0.1:%(upstream)d;
      proxy_cache answers; proxy_cache_methods POST; proxy_cache_valid 200 1h;
      proxy_cache_key "$request_uri|$http_authorization|$request_body";
    }
  }
}
"""


@dataclass(frozen=True, slots=True)
class Case:
    """Requests to all servers: ``vary`` as in ``run_wrk``."""

    name: str
    body: bytes
    connections: int
    vary: str = ""


def question(words: int = 9, *, stream: bool = False) -> bytes:
    """Return the body of a chat request whose question has about so many words."""
    return orjson.dumps(
        {
            "model": "bench",
            "messages": [
                {"role": "system", "content": "You are a helpful assistant."},
                {"role": "user", "content": "How do I reset my password on a new phone? " * words},
            ],
            "temperature": 0.7,
            "stream": stream,
        }
    )


def cases(connections: int) -> list[Case]:
    """Return what is measured."""
    return [
        Case("plain", question(1), connections),
        Case("trace headers that vary", question(1), connections, TRACE_HEADERS),
        Case("alone", question(1), 1),
        Case("streamed, alone", question(1, stream=True), 1),
        Case("prompt of 20 KB, alone", question(465), 1),
        Case("prompt of 200 KB, alone", question(4650), 1),
    ]


def start_nginx(stack: ExitStack, folder: Path, upstream: int) -> int:
    """Start nginx on core 0 and return its port."""
    port = free_port()
    config = folder / "nginx.conf"
    config.write_text(
        NGINX % {"folder": folder, "port": port, "upstream": upstream, "user": getuser()}
    )
    process = subprocess.Popen(["nginx", "-e", "stderr", "-c", config, "-p", folder])
    pin(process.pid, 0)
    stack.callback(process.wait, 20)
    stack.callback(process.terminate)
    await_url(f"http://127.0.0.1:{port}/")
    return port


def measure(rounds: int, seconds: float, connections: int) -> dict[str, dict[str, list[float]]]:
    """Return the rates of each server in each case, and its median latencies in seconds."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        policy = folder / "policy.yaml"
        policy.write_text(POLICY)
        ports = {"bare": free_port(), "gateway": free_port()}
        upstream = free_port()
        start(stack, ["fake_upstream.py", str(upstream)], 1)
        url = f"http://127.0.0.1:{upstream}"
        options = ["--port", str(ports["gateway"]), "--data-dir", str(folder / "data")]
        options += ["--policy", str(policy), "--log-level", "warning"]
        start(stack, ["-m", "gateway.cli", "serve", "--upstream", f"{url}/v1", *options], 0)
        await_url(f"http://127.0.0.1:{ports['gateway']}/readyz")
        first = run_load(ports["gateway"], post(PATH, question(1)), connections=1, seconds=0.3)
        head, _, answer = first.last_reply.partition(b"\r\n\r\n")
        if b"refrain; hit" not in head:
            raise SystemExit(f"the gateway does not hit: {head.decode()}")
        start(stack, ["bare_handler.py", str(ports["bare"]), str(len(answer))], 0)
        await_url(f"http://127.0.0.1:{ports['bare']}/")
        if shutil.which("nginx"):
            ports["nginx"] = start_nginx(stack, folder, upstream)
        results: dict[str, dict[str, list[float]]] = {}
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            for case in cases(connections):
                for name, port in ports.items():
                    got = run_wrk(
                        port,
                        PATH,
                        case.body,
                        core=CORES[-1],
                        connections=case.connections,
                        seconds=seconds,
                        vary=case.vary,
                    )
                    of = results.setdefault(case.name, {})
                    of.setdefault(name, []).append(got.rate)
                    of.setdefault(f"{name} p50", []).append(got.p50)
        return results


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of load for each figure")
    parser.add_argument("--connections", type=int, default=32)
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed: apt-get install wrk")
    results = measure(options.rounds, options.seconds, options.connections)
    print(f"{'hits a second, one core':28}{'gateway':>10}{'bare':>10}{'nginx':>10}", end="")
    print(f"{'/ bare':>8}{'worst':>8}{'/ nginx':>9}{'p50 us':>8}{'bare':>8}")
    figures: dict[str, float] = {}
    for name, of in results.items():
        bare = [mine / floor for mine, floor in zip(of["gateway"], of["bare"], strict=True)]
        floors = of.get("nginx", [float("nan")])
        nginx = statistics.median(of["gateway"]) / statistics.median(floors)
        rates = [statistics.median(of.get(one, [float("nan")])) for one in ("gateway", "bare")]
        p50 = [1e6 * statistics.median(of[f"{one} p50"]) for one in ("gateway", "bare")]
        print(
            f"{name:28}{rates[0]:>10.0f}{rates[1]:>10.0f}{statistics.median(floors):>10.0f}"
            f"{statistics.median(bare):>8.2f}{min(bare):>8.2f}{nginx:>9.2f}{p50[0]:>8.0f}{p50[1]:>8.0f}"
        )
        key = name.replace(",", "").replace(" ", "_")
        figures |= {key: statistics.median(bare), f"{key}_worst": min(bare), f"{key}_nginx": nginx}
        figures[f"{key}_p50_us"] = p50[0]
    print(json.dumps({"benchmark": "exact_hits", **{k: round(v, 3) for k, v in figures.items()}}))


if __name__ == "__main__":
    main()
