"""What encryption adds to an entry's way to the store and back, beside the bare cipher (the floor).

Plain is encoding and decoding as without encryption; sealed the same and AES-256-GCM under a key of
the entry's own; the floor is AES-256-GCM alone under one key that was set up before. Microseconds
of CPU, the best of many short rounds; the scope's data key is known, as it is but once in some
seconds.

    python benchmarks/sealing.py
"""

import json
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gateway.cache.stores.encrypted import SealedHead, seal, unseal
from gateway.cache.stores.entry_codec import decode_entry, encode_entry

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from gateway.cache.stores.conformance import example_entry

SIZES = (256, 1024, 4096, 16384, 65536, 1 << 20)
ROUNDS = 60
ROUND_BYTES = 256 << 10
HEAD = SealedHead(b"m" * 8, b"t" * 16)
KEY = secrets.token_bytes(32)


def microseconds(work: Callable[[], object], calls: int) -> float:
    """Return the least time of one call in several rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time()
        for _ in range(calls):
            work()
        best = min(best, (time.thread_time() - began) / calls)
    return best * 1e6


def measure(size: int) -> dict[str, float]:
    """Return the figures for an answer of so many bytes."""
    entry = example_entry(secrets.token_bytes(32), secrets.token_bytes(size))
    encoded = encode_entry(entry)
    sealed = seal(HEAD, KEY, entry.key, encoded)
    cipher, nonce = AESGCM(KEY), secrets.token_bytes(12)
    bare = cipher.encrypt(nonce, encoded, b"")
    calls = max(2, min(200, ROUND_BYTES // size))
    return {
        "encode": microseconds(lambda: encode_entry(entry), calls),
        "encode_seal": microseconds(lambda: seal(HEAD, KEY, entry.key, encode_entry(entry)), calls),
        "decode": microseconds(lambda: decode_entry(encoded), calls),
        "open_decode": microseconds(lambda: decode_entry(unseal(KEY, entry.key, sealed)), calls),
        "floor_decrypt": microseconds(lambda: cipher.decrypt(nonce, bare, b""), calls),
    }


def main() -> None:
    """Print a table and one line of JSON."""
    figures = {size: measure(size) for size in SIZES}
    columns = list(next(iter(figures.values())))
    print("bytes".rjust(8), *(name.rjust(14) for name in columns))
    for size, row in figures.items():
        print(str(size).rjust(8), *(f"{row[name]:14.1f}" for name in columns))
    small, large = figures[SIZES[0]], figures[SIZES[-1]]
    per_kb = (large["open_decode"] - small["open_decode"]) / ((SIZES[-1] - SIZES[0]) / 1024)
    added = {size: row["open_decode"] - row["decode"] for size, row in figures.items()}
    print(
        json.dumps(
            {
                "benchmark": "sealing",
                "added_us_to_open": {str(size): round(us, 1) for size, us in added.items()},
                "open_us_per_kb": round(per_kb, 2),
                "ratio_to_floor_4096": round(added[4096] / figures[4096]["floor_decrypt"], 2),
            }
        )
    )


if __name__ == "__main__":
    main()
