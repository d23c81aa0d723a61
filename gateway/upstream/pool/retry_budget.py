"""What bounds further calls: the calls of one request, and the retry budget of all requests."""

from gateway.upstream.tries import MOST_CALLS

A_REQUEST = 0.2
MOST = 10.0


class Forwarding:
    """One client's request on its way to the upstreams. Its calls are counted by the driver."""

    calls_left = MOST_CALLS
    is_looking = False
    """Whether it is looked up, counts so in the table of flights, and has joined no call yet."""


class Budget:
    """The retry budget of all requests: each adds to it, up to a bound, and a retry takes 1.

    While most calls fail, retries double load and cost without success. So retries are a share of
    the requests, plus a burst after a calm time, as in gRPC's retry throttling.
    """

    def __init__(self) -> None:
        self._left = MOST

    def earn(self) -> bool:
        """Note a request; tell whether the budget has a retry now."""
        self._left = min(MOST, self._left + A_REQUEST)
        return self.has_retry

    @property
    def has_retry(self) -> bool:
        """Tell whether the budget has a retry."""
        return self._left >= 1.0

    def spend(self) -> bool:
        """Take one retry, if there is one."""
        if not self.has_retry:
            return False
        self._left -= 1.0
        return True

    def give_back(self) -> None:
        """Take back a retry that was paid for and not sent."""
        self._left = min(MOST, self._left + 1.0)
