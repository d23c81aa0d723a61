"""What would be rewritten and added to a request that is asked about, as a diff of its bytes.

Law: this is the one part of an explanation that quotes a prompt: that of the request asked about,
to whoever sent it along.
"""

import asyncio
from itertools import islice
from typing import Any

from gateway.prompts.hints.hints import Hinted, hinted, hints_for
from gateway.prompts.rewrite.rewrite import Rewritten, rewrite
from gateway.server.admin.byte_diff import hunks
from gateway.server.admin.explain_request import Inquiry, written
from policies.decide import Decision

MOST_HUNKS = 100


async def explained_rewrite(
    inquiry: Inquiry, body: dict[str, Any], decision: Decision, owner: bytes
) -> dict[str, Any]:
    """Return what the rewrite plan and the hints do, JSON objects.

    What others shared is not known here. ``owner`` is what tells tenants apart.
    """
    return await asyncio.to_thread(_explained, inquiry, body, decision, owner)


def _explained(
    inquiry: Inquiry, body: dict[str, Any], decision: Decision, owner: bytes
) -> dict[str, Any]:
    raw = written(inquiry)
    result = rewrite(inquiry.endpoint, body, raw, decision.prefix)
    told = {"rewrite": _told(raw, result)}
    settings, rule = decision.hints, decision.rule
    if hints_for(inquiry.endpoint, settings):
        sent = result.raw
        hints = hinted(inquiry.endpoint, result.body, sent, settings, rule=rule, owner=owner)
        told["hints"] = _told(sent, hints)
    return told


def _told(raw: bytes, result: Rewritten | Hinted) -> dict[str, Any]:
    found = list(islice(hunks(raw, result.edits), MOST_HUNKS + 1))
    return {
        "changes": [change.value for change in result.changes],
        "declined": [
            {"rewrite": each.rewrite.value, "why": each.why.value} for each in result.declined
        ],
        "diff": [
            {
                "at": hunk.at,
                "before": _text(hunk.before),
                "went": _text(hunk.went),
                "came": _text(hunk.came),
                "behind": _text(hunk.behind),
            }
            for hunk in found[:MOST_HUNKS]
        ],
        "more": len(found) > MOST_HUNKS,
    }


def _text(part: bytes) -> str:
    return part.decode(errors="replace")
