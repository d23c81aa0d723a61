"""A semantic hit over HTTP, end to end, beside the models' own times and an exact hit.

The gateway is the real one, started by its command with the default policy, encoder and verifier.
Stored are questions of some fifteen words; each is asked once in another form, over one
connection. In turn with that, in this process, the same text is encoded and the same pair verified
with the same models: what a hit takes beyond these two is ours. Exact hits show what HTTP takes.
Without a trained verifier the rules stand in for it, in both places.
"""

import argparse
import itertools
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import orjson
from load import post
from servers import await_url, free_port

from embeddings.encoder import EncoderSettings, load_encoder
from embeddings.model_files import DEFAULT_MODEL, VERIFIER_DIRECTORY, ModelError
from embeddings.verifier import load_verifier
from embeddings.verify.agreement import agree
from embeddings.verify.guards import guard

HERE = Path(__file__).resolve().parent
VERBS = ("change", "cancel", "find", "repair", "improve", "describe", "compare", "move", "sell")
THINGS = ("invoice", "phone", "account", "garden", "recipe", "bicycle", "printer", "contract")
PLACES = ("kitchen", "office", "workshop", "library", "school", "garage")
TARGET_MS = 1.5
Pair = tuple[str, str]


def questions(count: int) -> list[Pair]:
    """Return pairs of (stored, asked), no two questions alike."""
    made = [
        f"{verb} the {thing} that I keep in the {place} near my {other}"
        for verb, thing, place, other in itertools.product(VERBS, THINGS, PLACES, THINGS)
        if thing != other
    ]
    chosen = random.Random(1).sample(made, count)
    return [(f"How do I {rest}?", f"How can I {rest}?") for rest in chosen]


class Client:
    """One connection, one request at a time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, text: str) -> tuple[float, bytes]:
        """Return the seconds until the whole reply was here, and its head."""
        body = {"model": "bench", "messages": [{"role": "user", "content": text}]}
        request = post("/v1/chat/completions", orjson.dumps(body))
        began = time.perf_counter()
        self._socket.sendall(request)
        received = b""
        while True:
            received += self._socket.recv(65536)
            head, found, rest = received.partition(b"\r\n\r\n")
            if found:
                length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
                if len(rest) >= int(length):
                    return time.perf_counter() - began, head


def verifier() -> tuple[str, Callable[[Pair], object]]:
    """Return the name of what verifies, and the same work in this process."""
    try:
        model = load_verifier(VERIFIER_DIRECTORY, 1)
    except ModelError:
        return "rules, no model", lambda pair: agree(*pair)

    def verify(pair: Pair) -> object:
        return guard(*pair) or model.score([pair])

    return f"guards and {model.name}", verify


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(count: int) -> tuple[dict[str, list[float]], str]:
    """Return the seconds of each kind of work, and the verifier's name."""
    pairs = questions(count)
    encoder = load_encoder(EncoderSettings(DEFAULT_MODEL, "cpu", threads=1))
    name, verify = verifier()
    took: dict[str, list[float]] = {"hit": [], "encoder": [], "verifier": [], "exact": []}
    missed = 0
    with gateway() as port:
        client = Client(port)
        for stored, _ in pairs:
            client.ask(stored)
        for stored, asked in pairs:
            took["encoder"].append(timed(partial(encoder.encode, [asked])))
            took["verifier"].append(timed(partial(verify, (asked, stored))))
            seconds, head = client.ask(asked)
            if b"semantic" in head:
                took["hit"].append(seconds)
            else:
                missed += 1
            took["exact"].append(client.ask(stored)[0])
    if missed:
        print(f"{missed} of {count} were no semantic hits and do not count", file=sys.stderr)
    if not took["hit"]:
        raise SystemExit("no semantic hit: is a calibrated verifier there?")
    return took, name


@contextmanager
def gateway() -> Iterator[int]:
    """Start a gateway and its upstream; the context is its port."""
    port, upstream = free_port(), free_port()
    with ExitStack() as stack:
        data = stack.enter_context(tempfile.TemporaryDirectory())
        options = ["--port", str(port), "--data-dir", data, "--log-level", "warning"]
        url = f"http://127.0.0.1:{upstream}/v1"
        for argv in (
            ["fake_upstream.py", str(upstream)],
            ["-m", "gateway.cli", "serve", "--upstream", url, *options],
        ):
            process = subprocess.Popen([sys.executable, *argv], stdout=subprocess.DEVNULL, cwd=HERE)
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
        await_url(f"http://127.0.0.1:{port}/readyz")
        yield port


def rows(took: dict[str, list[float]]) -> Iterator[tuple[str, str, float, float]]:
    labels = {
        "hit": "semantic hit over HTTP",
        "encoder": "  encoder, in this process",
        "verifier": "  verifier, in this process",
        "exact": "exact hit over HTTP",
    }
    for name, label in labels.items():
        ordered = sorted(took[name])
        p95 = ordered[int(len(ordered) * 0.95)]
        yield name, label, 1e3 * statistics.median(ordered), 1e3 * p95


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hits", type=int, default=300)
    options = parser.parse_args()
    took, name = measure(options.hits)
    print(f"{len(took['hit'])} semantic hits; verifier: {name}; load {os.getloadavg()[0]:.1f}")
    print(f"{'':34}{'p50 ms':>10}{'p95 ms':>10}")
    figures: dict[str, float] = {}
    for kind, label, p50, p95 in rows(took):
        print(f"{label:34}{p50:>10.2f}{p95:>10.2f}")
        figures |= {f"{kind}_p50_ms": round(p50, 3), f"{kind}_p95_ms": round(p95, 3)}
    beyond = figures["hit_p50_ms"] - figures["encoder_p50_ms"] - figures["verifier_p50_ms"]
    print(f"beyond encoder and verifier: {beyond:.2f} ms (target {TARGET_MS})")
    figures |= {"beyond_ms": round(beyond, 3), "hits": len(took["hit"])}
    print(json.dumps({"benchmark": "semantic_hits", "verifier": name, **figures}))


if __name__ == "__main__":
    main()
