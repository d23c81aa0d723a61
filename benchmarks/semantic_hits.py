"""A semantic hit and a semantic miss over HTTP, beside the models' own times and an exact hit.

The gateway is the real one, started by its command with the default policy, encoder and verifier.
Questions of some fifteen words are new at first: a miss, which is encoded, forwarded and stored.
Then each is asked once in another form. All come over one connection. In turn with that, in this
process, the same text is encoded and the same pair verified with the same models, and the upstream
is asked: what a miss takes beyond encoder and upstream, and a hit beyond both models, is ours.
Exact hits show what HTTP takes. Without a trained verifier the rules stand in for it, here too.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import islice

import orjson
from load import Client, Reply, percentile, post
from servers import start_gateway, start_upstream
from traffic import kind_of, questions

from embeddings.encoder.encoder import EncoderSettings, load_encoder
from embeddings.encoder.model_files import DEFAULT_MODEL, VERIFIER_DIRECTORY
from embeddings.verify.guards import guard
from embeddings.verify.verifier import load_verifier
from embeddings.verify.vocabulary import common_words

TARGET_MS = 1.5
Pair = tuple[str, str]


def ask(client: Client, text: str) -> Reply:
    """Ask a question."""
    body = {"model": "bench", "messages": [{"role": "user", "content": text}]}
    return client.ask(post(orjson.dumps(body)))


def verifier() -> tuple[str, Callable[[Pair], object]]:
    """Return the name of what verifies, and the same work in this process."""
    model = load_verifier(VERIFIER_DIRECTORY, 1)

    def verify(pair: Pair) -> object:
        return guard(*pair, common_words()) or model.score([pair])

    return f"guards and {model.name}", verify


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(count: int) -> tuple[dict[str, list[float]], str]:
    """Return the seconds of each kind of work, and the verifier's name."""
    pairs = list(islice(questions(), count))
    encoder = load_encoder(EncoderSettings(DEFAULT_MODEL, "cpu", threads=1))
    name, verify = verifier()
    took: dict[str, list[float]] = {name: [] for name in LABELS}
    with ExitStack() as stack:
        upstream = start_upstream(stack, core=None)
        gateway = start_gateway(stack, upstream, core=None)
        ours = stack.enter_context(Client(gateway.port))
        floor = stack.enter_context(Client(upstream))
        for stored, _ in pairs:
            took["encoder"].append(timed(partial(encoder.encode, [stored])))
            took["upstream"].append(ask(floor, stored).seconds)
            reply = ask(ours, stored)
            if kind_of(reply) == "miss":
                took["miss"].append(reply.seconds)
        for stored, asked in pairs:
            took["encoder"].append(timed(partial(encoder.encode, [asked])))
            took["verifier"].append(timed(partial(verify, (asked, stored))))
            reply = ask(ours, asked)
            if kind_of(reply) == "semantic":
                took["hit"].append(reply.seconds)
            took["exact"].append(ask(ours, stored).seconds)
    for kind in ("miss", "hit"):
        if missing := count - len(took[kind]):
            print(f"{missing} of {count} were no {LABELS[kind]} and do not count", file=sys.stderr)
        if not took[kind]:
            raise SystemExit(f"no {LABELS[kind]}: is a calibrated verifier there?")
    return took, name


LABELS = {
    "miss": "miss with a semantic lookup",
    "hit": "semantic hit",
    "exact": "exact hit",
    "upstream": "  upstream alone",
    "encoder": "  encoder, in this process",
    "verifier": "  verifier, in this process",
}


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hits", type=int, default=300)
    options = parser.parse_args()
    took, name = measure(options.hits)
    print(f"{len(took['hit'])} semantic hits; verifier: {name}; load {os.getloadavg()[0]:.1f}")
    print(f"{'one connection':34}{'p50 ms':>10}{'p95 ms':>10}")
    p50: dict[str, float] = {}
    figures: dict[str, float] = {}
    for kind, label in LABELS.items():
        p50[kind] = 1e3 * statistics.median(took[kind])
        p95 = 1e3 * percentile(took[kind], 0.95)
        print(f"{label:34}{p50[kind]:>10.2f}{p95:>10.2f}")
        figures |= {f"{kind}_p50_ms": p50[kind], f"{kind}_p95_ms": p95}
    figures["miss_beyond_ms"] = p50["miss"] - p50["encoder"] - p50["upstream"]
    figures["hit_beyond_ms"] = p50["hit"] - p50["encoder"] - p50["verifier"]
    print(f"miss beyond encoder and upstream: {figures['miss_beyond_ms']:.2f} ms (aim {TARGET_MS})")
    print(f"hit beyond encoder and verifier: {figures['hit_beyond_ms']:.2f} ms (aim {TARGET_MS})")
    told = {key: round(value, 3) for key, value in figures.items()}
    print(json.dumps({"benchmark": "semantic_hits", "verifier": name, **told}))


if __name__ == "__main__":
    main()
