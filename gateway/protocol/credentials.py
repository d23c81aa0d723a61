"""Who may ask: rings of keys, known by their digests, and the credentials of a request.

Law: what is compared is SHA-256 digests, in constant time; no key is kept. With a ring of gateway
keys every credential of a request must be one of them, and all of one holder: nothing else gets
past, hits included. A credential on the ring of denied keys never gets past.
"""

from collections.abc import Iterable

CREDENTIALS = ("authorization", "api-key", "x-api-key")
"""Headers in which clients send a key, in lower case."""


def bearer(value: str) -> str:
    """Return the key in the value of a credential header."""
    return (value[7:] if value[:7].lower() == "bearer " else value).strip()


def bears_credential(fields: Iterable[tuple[str, str]]) -> bool:
    """Tell whether a request's header lines have a key among them."""
    return any(value and name.lower() in CREDENTIALS for name, value in fields)
