"""A real name server on 127.0.0.1, whose records are the test's."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset


class DnsServer(asyncio.DatagramProtocol):
    """Answers by UDP: ``records`` has TTL and values by name and kind."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], tuple[int, list[str]]] = {}
        self.silent = self.failing = False
        self.queries = 0
        self.asked = asyncio.Event()
        self.address = ""

    def set(self, name: str, kind: str, *values: str, ttl: int = 1) -> None:
        """Replace the records of a name; without values it has none of this kind."""
        self.records[name, kind] = (ttl, list(values))

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:
        self._transport = transport
        self.address = f"127.0.0.1:{transport.get_extra_info('sockname')[1]}"

    def datagram_received(self, data: bytes, sender: tuple[str, int]) -> None:
        self.queries += 1
        self.asked.set()
        if self.silent:
            return
        query = dns.message.from_wire(data)
        reply = dns.message.make_response(query)
        [question] = query.question
        name, kind = question.name, dns.rdatatype.to_text(question.rdtype)
        text = name.to_text(omit_final_dot=True)
        if self.failing:
            reply.set_rcode(dns.rcode.SERVFAIL)
        elif not any(known == text for known, _ in self.records):
            reply.set_rcode(dns.rcode.NXDOMAIN)
        while (text, "CNAME") in self.records:
            ttl, [target] = self.records[text, "CNAME"]
            reply.answer.append(dns.rrset.from_text(name, ttl, "IN", "CNAME", f"{target}."))
            name, text = dns.name.from_text(target), target
        ttl, values = self.records.get((text, kind), (0, []))
        if values and not self.failing:
            reply.answer.append(dns.rrset.from_text(name, ttl, "IN", kind, *values))
        self._transport.sendto(reply.to_wire(), sender)


@asynccontextmanager
async def dns_server() -> AsyncIterator[DnsServer]:
    """Serve on a free port."""
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(DnsServer, ("127.0.0.1", 0))
    try:
        yield server
    finally:
        transport.close()
