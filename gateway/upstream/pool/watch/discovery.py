"""Where the replicas of an upstream are: in DNS, or in a file.

Laws:
- A source has a whole list or a problem. With a problem the last good list stays, and an empty
  list is a problem.
- Each look-up is bounded in time, and each list in number.
"""

import asyncio
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Final, NamedTuple, Protocol

log = logging.getLogger(__name__)
_EVENT = {"fields": {"event": "upstream"}}

MOST_REPLICAS = 256
LOOKUP_SECONDS = 5.0
SHORTEST_TTL = 1.0
LONGEST_TTL = 60.0
RETRY_SECONDS = 5.0
"""After a look-up without an answer."""
FILE_SECONDS = 0.5

_HOST: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,252}[A-Za-z0-9_])?")
_LIKE_IPV4: Final = re.compile(r"[0-9.]+")


class DiscoveryError(ValueError):
    """No list of replicas; the message says why, and what to do."""


class Address(NamedTuple):
    """Where one replica is. ``rank`` counts from the preferred ones, ``weight`` is its share."""

    host: str
    port: int
    rank: int = 0
    weight: float = 1.0

    @property
    def text(self) -> str:
        """Host and port as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Addresses = tuple[Address, ...]


class Source(Protocol):
    """The place of a list of replicas."""

    @property
    def problem(self) -> str | None:
        """The reason why the last good list is still in force, or None."""

    async def look(self) -> tuple[Addresses, float]:
        """Return the last good list, and the seconds after which to look again."""


class Watched(Protocol):
    """A file of addresses, which is read again by ``reload``."""

    active: Addresses

    @property
    def problem(self) -> str | None:
        """The reason why the file on disk is not in force, or None."""

    def reload(self) -> bool:
        """Read the file; return whether it has changed."""


@dataclass(eq=False)
class FileSource:
    """A list in a watched file."""

    file: Watched

    @property
    def problem(self) -> str | None:
        return self.file.problem

    async def look(self) -> tuple[Addresses, float]:
        await asyncio.to_thread(self.file.reload)
        return self.file.active, FILE_SECONDS


def read_addresses(data: bytes, source: str, port: int | None = None) -> Addresses:
    """Return the addresses of a file, one a line. Raises DiscoveryError for the first wrong line.

    ``port`` is for lines without one. A ``#`` begins a comment.
    """
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise DiscoveryError(f"{source}: expected text in UTF-8") from None
    found = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        try:
            found += [_address(text, port)] if text else []
        except ValueError as error:
            raise DiscoveryError(f"{source}:{number}: {error}") from None
    return _checked(found, source)


def _address(text: str, port: int | None) -> Address:
    """Return the address in a line, of which no message quotes anything: it may hold a key."""
    expected = "expected one address such as 10.0.0.1:8000"
    if "/" in text:
        raise ValueError(f"{expected}, without http:// and path: they are in the upstream's url")
    is_bracketed = re.fullmatch(r"\[([^\[\]]+)\](?::(.*))?", text)
    host, number = is_bracketed.groups() if is_bracketed else (text, None)
    if not is_bracketed:
        host, colon, after = text.partition(":")
        number = after if colon else None
    if is_bracketed or _LIKE_IPV4.fullmatch(host):
        try:
            ip_address(host)
        except ValueError:
            raise ValueError(f"{expected}, or [fd00::1]:8000") from None
    elif not _HOST.fullmatch(host):
        raise ValueError(expected)
    if number is None:
        if port is None:
            raise ValueError(f"{expected}: it needs a port, since the upstream's url has none")
        return Address(host, port)
    if not (number.isascii() and number.isdecimal() and 0 < int(number[:6]) < 65_536):
        raise ValueError(f"{expected}, with a port from 1 to 65535")
    return Address(host, int(number))


def _checked(found: Sequence[Address], source: str) -> Addresses:
    """Return each address once, in order. Raises DiscoveryError for none, and for too many."""
    once = {(one.host, one.port): one for one in reversed(found)}
    if not once:
        raise DiscoveryError(f"{source}: expected at least one address")
    if len(once) > MOST_REPLICAS:
        raise DiscoveryError(f"{source}: expected at most {MOST_REPLICAS} addresses")
    return tuple(sorted(once.values()))


@dataclass(eq=False)
class DnsSource:
    """The addresses of a host name, or its SRV records if there is no ``port``.

    ``server`` is the name server to use as IP address and port; None for the system's.
    """

    label: str
    host: str
    port: int | None
    server: tuple[str, int] | None = None
    problem: str | None = None
    _active: Addresses = field(default=(), init=False)

    async def look(self) -> tuple[Addresses, float]:
        before = self.problem
        try:
            self._active, ttl = await (self._services() if self.port is None else self._hosts())
        except DiscoveryError as error:
            self.problem = str(error)
            if self.problem != before:
                kept = f"keeping the last {len(self._active)} replicas" if self._active else "none"
                text = "upstream %s: no list of replicas (%s): %s"
                log.warning(text, self.label, kept, error, extra=_EVENT)
            return self._active, RETRY_SECONDS
        self.problem = None
        if before is not None:
            log.info("upstream %s: its list of replicas is there again", self.label, extra=_EVENT)
        return self._active, min(max(ttl, SHORTEST_TTL), LONGEST_TTL)

    async def _hosts(self) -> tuple[Addresses, float]:
        port = self.port or 0
        # A replica with addresses of both kinds would count twice.
        answer = await self._query("A") or await self._query("AAAA")
        found = [Address(record.address, port) for record in answer or ()]
        return _checked(found, f"the addresses (A, AAAA) of {self.host}"), _ttl(answer)

    async def _services(self) -> tuple[Addresses, float]:
        answer = await self._query("SRV")
        records = [
            (record.target.to_text(omit_final_dot=True), record)
            for record in answer or ()
            if record.port and record.target.to_text() != "."  # which says: no such service
        ]
        source = f"the SRV records of {self.host}"
        for host, _ in records:
            if not _HOST.fullmatch(host):
                expected = "expected a host name such as gpu-1.internal"
                raise DiscoveryError(f"{source}: the target {host[:80]!r} is none; {expected}")
        ranks = sorted({record.priority for _, record in records})
        total = sum(record.weight for _, record in records)
        mean = total / max(1, len(records))
        found = [
            Address(
                host,
                record.port,
                ranks.index(record.priority),
                # Of RFC 2782: weight 0 is for no preference, or for next to nothing.
                max(record.weight / mean, 0.01) if total else 1.0,
            )
            for host, record in records
        ]
        return _checked(found, source), _ttl(answer)

    async def _query(self, kind: str) -> Any:
        """Return an answer, None if the name has no such record. Raises DiscoveryError."""
        # The library takes 8 MB: only a gateway that discovers upstreams loads it.
        from dns import asyncresolver, exception, resolver  # noqa: PLC0415

        try:
            asking = asyncresolver.Resolver(configure=self.server is None)
            if self.server is not None:
                asking.nameservers, asking.port = [self.server[0]], self.server[1]
            answer = await asking.resolve(
                self.host, kind, search=True, raise_on_no_answer=False, lifetime=LOOKUP_SECONDS
            )
        except resolver.NXDOMAIN:
            raise DiscoveryError(
                f"the name {self.host} does not exist; is it spelt correctly?"
            ) from None
        except exception.Timeout:
            raise DiscoveryError(
                f"no name server has answered for {self.host} within {LOOKUP_SECONDS:.0f} s"
            ) from None
        except (exception.DNSException, OSError, ValueError) as error:
            raise DiscoveryError(
                f"no name server has a valid answer for {self.host} ({type(error).__name__})"
            ) from None
        return answer if answer.rrset else None


def _ttl(answer: Any) -> float:
    """Return the shortest TTL on the way to the records."""
    return float(answer.chaining_result.minimum_ttl)
