"""Sessions of the operator's page: a signed cookie with an end, and the bound on failed logins.

Laws. The server keeps no session: the cookie has its end and a signature whose key is made of the
operator's token. So every worker accepts it, a restart does not end it, and another token does.
A page elsewhere can neither read a session's CSRF token nor make it.
"""

import hmac
from collections import deque

from cachetools import LRUCache

COOKIE = "refrain_session"
CSRF_HEADER = "x-refrain-csrf"
SESSION_SECONDS = 8 * 3600

MOST_FAILURES = 10
"""Failed logins of one client within ``FAILURE_SECONDS``."""
FAILURE_SECONDS = 300.0
_MOST_CLIENTS = 1024


class Sessions:
    """Makes and checks the cookies of one token."""

    def __init__(self, token: str) -> None:
        secret = token.encode(errors="surrogateescape")
        self._key = hmac.digest(secret, b"refrain: session of the operator's page", "sha256")

    def begin(self, nonce: str, now: float) -> str:
        """Return a new cookie; ``nonce`` is random, and has no dot."""
        text = f"{int(now + SESSION_SECONDS)}.{nonce}"
        return f"{text}.{self._sign('cookie', text)}"

    def is_valid(self, cookie: str, now: float) -> bool:
        """Tell whether the cookie was made here, and has not ended."""
        text, _, signature = cookie.rpartition(".")
        if not _equal(signature, self._sign("cookie", text)):
            return False
        return now < int(text.partition(".")[0])

    def csrf(self, cookie: str) -> str:
        return self._sign("csrf", cookie)

    def has_csrf(self, cookie: str, given: str) -> bool:
        return _equal(given, self.csrf(cookie))

    def _sign(self, purpose: str, text: str) -> str:
        data = f"{purpose}:{text}".encode(errors="surrogateescape")
        return hmac.digest(self._key, data, "sha256").hex()


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(
        one.encode(errors="surrogateescape"), other.encode(errors="surrogateescape")
    )


class Failures:
    """The latest failed logins of each client, for so many clients."""

    def __init__(self) -> None:
        self._times: LRUCache[str | None, deque[float]] = LRUCache(_MOST_CLIENTS)

    def wait(self, client: str | None, now: float) -> float:
        times = self._times.get(client)
        if times is None or len(times) < MOST_FAILURES:
            return 0.0
        return max(0.0, times[0] + FAILURE_SECONDS - now)

    def note(self, client: str | None, now: float) -> None:
        times = self._times.get(client) or deque(maxlen=MOST_FAILURES)
        times.append(now)
        self._times[client] = times
