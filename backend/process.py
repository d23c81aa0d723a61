"""What our processes share: how they log."""

import logging

from backend.log_queue import log_to_stderr
from backend.request_id import IdFormatter


def configure_logging() -> None:
    """Write log lines for people to stderr."""
    layout = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    log_to_stderr(IdFormatter(layout, datefmt="%H:%M:%S"))
    # It quotes what it cannot parse: header lines, which may have keys in them. Faults of ours are
    # logged by who answers for them.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
