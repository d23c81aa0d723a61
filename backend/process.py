"""What our processes share: how they log."""

import logging
import sys


def configure_logging() -> None:
    """Write log lines for people to stderr."""
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
    )
    # It quotes what it cannot parse: header lines, which may have keys in them. Faults of ours are
    # logged by who answers for them.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
