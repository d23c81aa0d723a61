"""Refrain beside floors and peers in one run: exact hits, misses, and both alone.

Floors: a bare aiohttp handler and proxy, nginx with a cached POST and with ``proxy_pass``. Peers:
the proxy of LiteLLM with its cache in memory, and the server of GPTCache with its exact cache, each
installed from PyPI into an environment of its own below ``--venvs``. What does not install or does
not answer is left out, and the reason is printed. Each server is one worker on core 0 and is loaded
alone; wrk and the upstream have the last core. Rounds alternate; figures are medians.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import urllib.request
import venv
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from load import NEW_QUESTIONS, Client, WrkResult, post, question, run_wrk
from servers import (
    CLIENT_CORE,
    EXACT_ONLY,
    await_url,
    free_port,
    start_bare,
    start_gateway,
    start_nginx,
    start_program,
    start_upstream,
)

INSTALL_SECONDS = 900
START_SECONDS = 120
PACKAGES = {
    "LiteLLM": ["litellm[proxy]"],
    "GPTCache": ["gptcache", "openai<1", "fastapi", "uvicorn", "tiktoken"],
}
LITELLM = """
model_list:
  - model_name: bench
    litellm_params: {model: openai/bench, api_base: "%s/v1", api_key: none}
litellm_settings:
  cache: true
  cache_params: {type: local}
  telemetry: false
"""
GPTCACHE = """
import os, sys
import uvicorn
from gptcache import Cache, Config
from gptcache.manager import manager_factory
from gptcache.processor.pre import last_content
from gptcache_server import server

os.chdir(sys.argv[2])
server.openai_cache = Cache()
server.openai_cache.init(
    pre_embedding_func=last_content,
    data_manager=manager_factory("map", data_dir=sys.argv[2]),
    config=Config(enable_token_counter=False),  # it fetches a vocabulary from the network
)
uvicorn.run(server.app, host="127.0.0.1", port=int(sys.argv[1]), access_log=False)
"""
"""Its command line cannot choose the exact cache: there it always loads a model."""
Ports = dict[str, int]


def installed(name: str, venvs: Path) -> Path:
    """Return the folder of a peer's programs; install it if it is not there.

    Raises SystemExit with the reason if it does not install.
    """
    folder = venvs / name.lower()
    if not (folder / "installed").is_file():
        print(f"installing {name} into {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        try:
            ran = subprocess.run(
                [*pip, *PACKAGES[name]],
                check=False,
                capture_output=True,
                timeout=INSTALL_SECONDS,
                text=True,
            )
        except subprocess.TimeoutExpired:
            raise SystemExit(f"not installed within {INSTALL_SECONDS} s") from None
        if ran.returncode:
            raise SystemExit((ran.stderr.strip().splitlines() or ["pip failed"])[-1])
        (folder / "installed").touch()
    return folder / "bin"


def start_litellm(stack: ExitStack, programs: Path, folder: Path, url: str) -> int:
    """Start the proxy of LiteLLM and return its port."""
    port = free_port()
    config = folder / "config.yaml"
    config.write_text(LITELLM % url)
    argv = [str(programs / "litellm"), "--config", str(config), "--host", "127.0.0.1"]
    argv += ["--port", str(port), "--num_workers", "1"]
    environment = {"PYTHONPATH": "", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    environment["PATH"] = f"{programs}:{os.environ['PATH']}"
    environment["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"  # on loopback
    process = start_program(stack, argv, 0, environment=environment, log=folder / "log")
    await_url(f"http://127.0.0.1:{port}/health/liveliness", START_SECONDS, process=process)
    return port


def start_gptcache(stack: ExitStack, programs: Path, folder: Path, url: str) -> int:
    """Start the server of GPTCache and return its port."""
    port = free_port()
    argv = [str(programs / "python"), "-c", GPTCACHE, str(port), str(folder)]
    environment = {"PYTHONPATH": "", "OPENAI_API_BASE": f"{url}/v1"}
    process = start_program(stack, argv, 0, environment=environment, log=folder / "log")
    await_url(f"http://127.0.0.1:{port}/", START_SECONDS, process=process)
    return port


PEERS: dict[str, Callable[[ExitStack, Path, Path, str], int]] = {
    "LiteLLM": start_litellm,
    "GPTCache": start_gptcache,
}


def check_hit(port: int, upstream: int) -> int:
    """Ask the same twice and return the size of the answer.

    Raises SystemExit if a request fails, or if the upstream is called for the second.
    """
    with Client(port) as client:
        replies = []
        for _ in range(2):
            with urllib.request.urlopen(f"http://127.0.0.1:{upstream}/calls") as reply:
                calls = int(reply.read())
            replies.append(client.ask(post(question())))
    if replies[-1].status != 200:
        raise SystemExit(f"a request was answered {replies[-1].status}")
    with urllib.request.urlopen(f"http://127.0.0.1:{upstream}/calls") as reply:
        if int(reply.read()) != calls:
            raise SystemExit("the second request was no hit")
    return len(replies[-1].body)


def start_all(stack: ExitStack, venvs: Path, upstream: int) -> tuple[Ports, Ports, dict[str, str]]:
    """Start every server; return who is asked for hits, who for misses, and who is left out."""
    url, left_out = f"http://127.0.0.1:{upstream}", {}
    refrain = start_gateway(stack, upstream, policy=EXACT_ONLY).port
    size = str(check_hit(refrain, upstream))
    hits = {"Refrain": refrain}
    hits["bare handler"] = start_bare(stack, "bare_handler.py", size, "parse").port
    misses = {
        "Refrain": refrain,
        "bare proxy": start_bare(stack, "bare_proxy.py", url).port,
    }
    if shutil.which("nginx"):
        cached, forwards = start_nginx(stack, upstream)
        check_hit(cached.port, upstream)
        hits["nginx, cached POST"], misses["nginx, proxy_pass"] = cached.port, forwards.port
    else:
        left_out["nginx"] = "not installed: apt-get install nginx"
    for name, start in PEERS.items():
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            port = start(stack, installed(name, venvs), folder, url)
            check_hit(port, upstream)
            hits[name] = misses[name] = port
        except (SystemExit, OSError) as error:
            log = folder / "log"
            lines = log.read_text().strip().splitlines() if log.is_file() else []
            left_out[name] = " | ".join([str(error), *lines[-2:]])
    return hits, misses, left_out


def measure(
    venvs: Path, rounds: int, seconds: float
) -> tuple[dict[tuple[str, str], list[WrkResult]], dict[str, str]]:
    """Return the results by server and case, and why servers were left out."""
    with ExitStack() as stack:
        upstream = start_upstream(stack)
        hits, misses, left_out = start_all(stack, venvs, upstream)
        misses["upstream"] = upstream
        loads = [(f"hits {count}", hits, count, "") for count in (32, 1)]
        loads += [(f"misses {count}", misses, count, NEW_QUESTIONS) for count in (16, 1)]
        results: dict[tuple[str, str], list[WrkResult]] = {}
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            for case, ports, connections, vary in loads:
                for name, port in ports.items():
                    try:
                        got = run_wrk(
                            port,
                            question(),
                            core=CLIENT_CORE,
                            connections=connections,
                            seconds=seconds,
                            vary=vary,
                        )
                    except SystemExit as error:
                        left_out[f"{name}, {case}"] = str(error)
                    else:
                        results.setdefault((name, case), []).append(got)
        return results, left_out


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of load for each figure")
    parser.add_argument(
        "--venvs", type=Path, help="where peers are installed, and found again (default: temporary)"
    )
    options = parser.parse_args()
    with ExitStack() as stack:
        venvs = options.venvs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        results, left_out = measure(venvs.absolute(), options.rounds, options.seconds)
    names = list(dict.fromkeys(name for name, _ in results if name != "upstream"))
    floor = statistics.median(each.p50 for each in results["upstream", "misses 1"])
    told: dict[str, dict[str, float]] = {}
    print(f"{'one worker on one core':24}{'hits/s, 32':>12}{'p50 ms':>9}{'alone us':>10}", end="")
    print(f"{'misses/s, 16':>14}{'p50 ms':>9}{'alone, adds us':>16}")
    for name in names:
        row = told[name] = {}
        for case, of in (("hits 32", "hits"), ("misses 16", "misses")):
            if found := results.get((name, case)):
                row[f"{of}_per_second"] = statistics.median(each.rate for each in found)
                row[f"{of}_p50_ms"] = 1e3 * statistics.median(each.p50 for each in found)
        if found := results.get((name, "hits 1")):
            row["hit_alone_us"] = 1e6 * statistics.median(each.p50 for each in found)
        if found := results.get((name, "misses 1")):
            middle = statistics.median(each.p50 for each in found)
            row["miss_alone_adds_us"] = 1e6 * (middle - floor)
        widths = {"hits_per_second": 12, "hits_p50_ms": 9, "hit_alone_us": 10}
        widths |= {"misses_per_second": 14, "misses_p50_ms": 9, "miss_alone_adds_us": 16}
        cells = [
            f"{row[key]:>{width}.{2 if key.endswith('_ms') else 0}f}" if key in row else " " * width
            for key, width in widths.items()
        ]
        print(f"{name:24}{''.join(cells)}")
    for name, reason in left_out.items():
        print(f"left out: {name}: {reason}")
    rounded = {n: {key: round(value, 3) for key, value in of.items()} for n, of in told.items()}
    print(json.dumps({"benchmark": "peers", "left_out": left_out, **rounded}))


if __name__ == "__main__":
    main()
