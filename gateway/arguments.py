"""What several commands take on their command lines."""

import argparse
from urllib.parse import urlsplit


def gateway_url(text: str) -> str:
    """Return the address of a running gateway; argparse tells what is wrong with another text."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise argparse.ArgumentTypeError(
            f"expected a URL such as http://127.0.0.1:8080, got {text!r}"
        )
    return text
