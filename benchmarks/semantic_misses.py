"""Misses with semantic lookup under load and alone, and the memory of the embeddings process.

A new question goes to a gateway with semantic lookup, to one without it, and, in this process, to
the same encoder with as many threads. Alone, the lookup's own cost is what the first adds to the
other two (medians). Under load the ceiling is the encoder with a batch for each turn of all
connections. Gateways, embeddings process and encoder have core 0, wrk and the upstream the other.
"""

import argparse
import json
import os
import statistics
import time
from contextlib import ExitStack
from itertools import islice

from load import Client, question, run_wrk
from semantic_hits import ask
from servers import (
    CLIENT_CORE,
    EXACT_ONLY,
    pin,
    processes,
    resident_mib,
    role,
    start_gateway,
    start_upstream,
)
from traffic import questions

from embeddings.encoder.encoder import Encoder, EncoderSettings, load_encoder
from embeddings.encoder.model_files import DEFAULT_MODEL

TARGET_MS = 1.5
TARGET_MIB = 190  # 200 MB
_QUESTIONS_OF_A_ROUND = 3000
ASK_NEXT = """
local texts, number, text = {%s}, 0, wrk.body
function request()
  number = number + 1
  return wrk.format(nil, nil, nil, (text:gsub("How do I reset[^?]*[?]", texts[number], 1)))
end
"""
Times = dict[str, list[float]]


def encode_timed(encoder: Encoder, texts: list[str]) -> float:
    """Encode texts on core 0 and return the seconds."""
    pin(0, 0)
    began = time.perf_counter()
    encoder.encode(texts)
    took = time.perf_counter() - began
    pin(0, -1)
    return took


def measure(rounds: int, alone: int, seconds: float, connections: int) -> Times:
    """Return seconds of requests and encodings, rates a second, and MiB."""
    encoder = load_encoder(EncoderSettings(DEFAULT_MODEL, "cpu", threads=1))
    found: Times = {name: [] for name in ("off", "on", "encoder", "rate", "ceiling", "mib")}
    with ExitStack() as stack:
        upstream = start_upstream(stack)
        policies = {"off": EXACT_ONLY, "on": EXACT_ONLY.replace("semantic: off", "semantic: on")}
        started = {
            name: start_gateway(stack, upstream, policy=policy) for name, policy in policies.items()
        }
        clients = {
            name: stack.enter_context(Client(server.port)) for name, server in started.items()
        }
        (embeddings,) = (p for p in processes(started["on"].process) if role(p) == "embeddings")
        found["mib"].append(resident_mib(embeddings))
        pin(0, -1)
        for number in range(rounds):
            new = (stored for stored, _ in questions(number + 1))
            for text in islice(new, alone):
                for name, client in clients.items():
                    found[name].append(ask(client, text).seconds)
                found["encoder"].append(encode_timed(encoder, [text]))
            took = [encode_timed(encoder, list(islice(new, connections))) for _ in range(20)]
            found["ceiling"].append(connections / statistics.median(took))
            texts = ", ".join(map(json.dumps, islice(new, _QUESTIONS_OF_A_ROUND)))
            loaded = run_wrk(
                started["on"].port,
                question(),
                connections=connections,
                seconds=seconds,
                core=CLIENT_CORE,
                vary=ASK_NEXT % texts,
            )
            found["rate"].append(loaded.rate)
        found["mib"].append(resident_mib(embeddings))
    return found


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--alone", type=int, default=60, help="questions of a round")
    parser.add_argument("--seconds", type=float, default=2.0, help="of load for each figure")
    parser.add_argument("--connections", type=int, default=16)
    options = parser.parse_args()
    found = measure(options.rounds, options.alone, options.seconds, options.connections)
    off, on, encoder = (1e3 * statistics.median(found[name]) for name in ("off", "on", "encoder"))
    rate, ceiling = statistics.median(found["rate"]), statistics.median(found["ceiling"])
    started, ended = found["mib"]
    print(f"alone, p50 ms: with lookup {on:.2f}, without {off:.2f}, encoder {encoder:.2f}")
    print(f"lookup beyond the encoder: {on - off - encoder:.2f} ms (aim {TARGET_MS})")
    print(f"{options.connections} connections: {rate:.0f} misses/s; encoder: {ceiling:.0f}/s")
    print(f"embeddings process: {started:.0f} MiB, {ended:.0f} after it (aim {TARGET_MIB})")
    figures = {"on_ms": on, "off_ms": off, "encoder_ms": encoder, "beyond_ms": on - off - encoder}
    figures |= {"per_second": rate, "encoder_per_second": ceiling, "ratio": rate / ceiling}
    figures |= {"resident_mib": started, "resident_after_mib": ended, "load": os.getloadavg()[0]}
    rounded = {name: round(value, 3) for name, value in figures.items()}
    print(json.dumps({"benchmark": "semantic_misses", **rounded}))


if __name__ == "__main__":
    main()
