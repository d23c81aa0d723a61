"""How often what may have been processed is sent a second time, over all requests.

Law: while most calls fail, second tries double the load and the cost without helping anybody: they
are a share of the requests, and a few more after a calm time. As gRPC's retry throttling.
"""

A_REQUEST = 0.2
MOST = 10.0


class Budget:
    """Grows with each request, up to a bound; a second try takes 1."""

    def __init__(self) -> None:
        self._left = MOST

    def earn(self) -> None:
        """Note a request."""
        self._left = min(MOST, self._left + A_REQUEST)

    def spend(self) -> bool:
        """Take one second try, if there is one."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
