"""The PII scan of a request: its prompt, and what it sends beside that (``user``, ``metadata``).

Law: what stands beside the prompt is each request's own, whatever it shares with others. Requests
of one key may share a lookup and an upstream call, but not these fields.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from gateway.cache.lookup import End, kept_plan, set_apart
from gateway.cache.pii_scan import ScanFailedError, Scans
from gateway.cache.plan import Plan
from gateway.cache.ports import Scanner
from gateway.protocol.conversation import is_readable, names_text, prompt_text
from gateway.protocol.endpoint import Endpoint
from gateway.protocol.endpoints.table import SPECS
from gateway.protocol.reasons import Reason
from gateway.server.prepare import INLINE_BYTES
from gateway.server.request import Asked


async def scan_prompt(asked: Asked, plan: Plan, scans: Scans) -> str | None:
    """Return the kind of the first finding in what makes the key. Raises ScanFailedError.

    Of an item of a batch that is the item; the other fields are scanned once for all items.
    """
    if not is_readable(plan.partition.endpoint, plan.body):
        return "unreadable"

    async def found(body: dict[str, Any], query: str, size: int) -> str | None:
        read = partial(prompt_text, plan.partition.endpoint, body, query)
        text = await asyncio.to_thread(read) if size > INLINE_BYTES else read()
        return await scans.scan(asked.active.scanner, text, plan.partition.scope)

    body, query, size = plan.body, plan.partition.query, len(asked.inbound.raw)
    if asked.beside is None:
        return await found(body, query, size)
    if not asked.beside:
        rest = {name: value for name, value in body.items() if name != "input"}
        asked.beside.append(await found(rest, query, size))
    if asked.beside[0] is not None:
        return asked.beside[0]
    return await found({"input": body["input"]}, "", len(body["input"]))


def plan_to_scan(ends: Sequence[End], endpoint: Endpoint, body: dict[str, Any]) -> Plan | None:
    """Return a plan for which these fields must be scanned, None where nothing would be stored.

    No coroutine: most requests are hits or have none of these fields.
    """
    if SPECS[endpoint].neutral.isdisjoint(body):
        return None
    plan = next((plan for end in ends if (plan := kept_plan(end)) is not None), None)
    return plan if plan is not None and plan.scans else None


async def without_names(
    ends: Sequence[End], body: dict[str, Any], plan: Plan, scans: Scans, scanner: Scanner
) -> list[End]:
    """Return the ends of a request's lookups, set apart where these fields hold personal data.

    The fields are scanned once, for however many items.
    """
    try:
        text = names_text(plan.partition.endpoint, body)
        found = await scans.scan(scanner, text, plan.partition.scope)
    except ScanFailedError:
        return [set_apart(end, Reason.SCAN_FAULT, personal=False) for end in ends]
    if found is None:
        return list(ends)
    return [set_apart(end, Reason.PII, personal=True) for end in ends]
