"""Who may ask: rings of keys, known by their digests, and the credentials of a request.

Law: what is compared is SHA-256 digests, in constant time; no key is kept. With a ring of gateway
keys every credential of a request must be one of them, and all of one holder: nothing else gets
past, hits included. A credential on the ring of denied keys never gets past.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.core.errors import ClientError
from gateway.core.types import Reason

CREDENTIALS = ("authorization", "api-key", "x-api-key")
"""Headers in which clients send a key, in lower case."""

MOST_KEYS = 100_000

_NAME = re.compile(r"[^\s#!]{1,64}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_PREFIX_BYTES = 8


class KeyRingError(ValueError):
    """The text is no list of keys; a line for each problem, with file and line."""


class UnauthorizedError(ClientError):
    """The request bears no key that may be used here."""

    reason = Reason.UNAUTHORIZED

    def __init__(self, message: str) -> None:
        super().__init__(401, message, code="invalid_api_key")


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Digests of keys and the names of their holders; several keys may have one holder."""

    by_prefix: Mapping[bytes, tuple[tuple[bytes, str], ...]]
    """What finds the few to compare with. It tells nobody a digest: who can choose a digest's
    first bytes at will can invert SHA-256."""

    def holder(self, key: str) -> str | None:
        """Return whose key it is, None when it is nobody's."""
        digest = hashlib.sha256(key.encode(errors="surrogateescape")).digest()
        found = None
        for known, name in self.by_prefix.get(digest[:_PREFIX_BYTES], ()):
            if hmac.compare_digest(known, digest):
                found = name
        return found


NOBODY = KeyRing({})


def read_key_ring(data: bytes, source: str) -> KeyRing:
    """Read a file's ``NAME SHA256`` a line; ``#`` begins a comment. Raises KeyRingError."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise KeyRingError(f"{source}: expected text in UTF-8") from None
    problems: list[str] = []
    found: dict[bytes, tuple[tuple[bytes, str], ...]] = {}
    count = 0
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        match words:
            case [name, digest] if _NAME.fullmatch(name) and _DIGEST.fullmatch(digest):
                known = bytes.fromhex(digest)
                same = found.get(known[:_PREFIX_BYTES], ())
                if any(known == other for other, _ in same):
                    problems.append(f"{source}:{number}: this digest is there already")
                found[known[:_PREFIX_BYTES]] = (*same, (known, name))
                count += 1
            case _:
                # Not quoted: somebody may have put a key here instead of its digest.
                problems.append(
                    f"{source}:{number}: expected NAME and the SHA-256 of a key (64 hex digits)"
                )
    if count > MOST_KEYS:
        problems.append(f"{source}: {count} keys, at most {MOST_KEYS}")
    if problems:
        raise KeyRingError("\n".join(problems))
    return KeyRing(found)


def bearer(value: str) -> str:
    """Return the key in the value of a credential header."""
    return (value[7:] if value[:7].lower() == "bearer " else value).strip()


def bears_credential(fields: Iterable[tuple[str, str]]) -> bool:
    """Tell whether a request's header lines have a key among them."""
    return any(value and name.lower() in CREDENTIALS for name, value in fields)


def admit(headers: Mapping[str, str], keys: KeyRing | None, denied: KeyRing) -> str | None:
    """Return the holder of the request's gateway key; None where no gateway keys are in use.

    ``headers`` have lower-case names. Raises UnauthorizedError.
    """
    given = [bearer(value) for name in CREDENTIALS if (value := headers.get(name))]
    if any(denied.holder(key) is not None for key in given):
        raise UnauthorizedError("This API key is denied here.")
    if keys is None:
        return None
    if not given:
        raise UnauthorizedError(
            "You did not provide an API key. Provide one in an Authorization header "
            "(Authorization: Bearer YOUR_KEY)."
        )
    holders = {keys.holder(key) for key in given}
    [holder] = holders if len(holders) == 1 else [None]
    if holder is None:
        raise UnauthorizedError("Incorrect API key provided.")
    return holder
