"""Exit 0 when a URL answers 2xx within the time-out, else 1 with one line on stderr.

For images without curl. Proxies in the environment, which Docker may inject into every container,
are passed over: a probe of loopback through a proxy says nothing.
"""
# ruff: noqa: INP001 - a script, not part of a package

import http.client
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence

_TIMEOUT_SECONDS = 3.0


def main(argv: Sequence[str]) -> int:
    """Probe ``argv[0]``; 2 on bad usage."""
    if len(argv) != 1:
        sys.stderr.write("usage: healthcheck.py URL\n")
        return 2
    (url,) = argv
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(url, timeout=_TIMEOUT_SECONDS).close()
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        sys.stderr.write(f"{url}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
