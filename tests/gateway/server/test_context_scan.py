"""What is sent beside the key is looked at wherever an answer may come to be stored."""

import orjson
import pytest
from example_requests import chat, entry_of, plan_of, user

from gateway.cache.lookup import Forward, Hit, Refused
from gateway.cache.pii_scan import Scans
from gateway.protocol.http.cache_status import Forwarded, ForwardStatus, HitStatus, Reason
from gateway.protocol.request import read_request
from gateway.server.context import scan_names
from policies.decision import Endpoint, PiiAction

CHAT = Endpoint.CHAT
MISS = ForwardStatus(Forwarded.MISS)


class Scanner:
    """Finds one word, or fails."""

    identity = "words"

    def __init__(self, word: str = "PERSONAL") -> None:
        self.word = word
        self.texts: list[str] = []

    def is_clean(self, _text: str) -> bool:
        return False

    def scan(self, text: str) -> str | None:
        self.texts.append(text)
        if self.word == "fails":
            raise ValueError(text)
        return "word" if self.word in text else None


async def ends_of(ends, body, scanner):
    scans = Scans()
    try:
        request = read_request(CHAT, orjson.dumps(body), headers={})
        return await scan_names(request, ends, scans, scanner)
    finally:
        scans.close()


async def end_of(end, body, scanner):
    [end] = await ends_of([end], body, scanner)
    return end


BODY = chat(user("hi"), user="PERSONAL")


async def test_a_miss_is_not_stored_where_the_names_are_personal():
    plan = plan_of(BODY)
    fallback = Hit(entry_of(plan), HitStatus(Reason.EXACT, 5), 1)
    end = await end_of(Forward(MISS, plan, fallback), BODY, Scanner())
    assert end == Forward(ForwardStatus(Forwarded.BYPASS, Reason.PII), None, fallback)


async def test_a_stale_hit_is_served_and_not_refreshed_where_the_names_are_personal():
    plan = plan_of(BODY)
    hit = Hit(entry_of(plan), HitStatus(Reason.EXACT, -5), 1, revalidate=plan)
    end = await end_of(hit, BODY, Scanner())
    assert isinstance(end, Hit)
    assert end.entry == hit.entry
    assert end.revalidate is None


async def test_with_a_scope_of_his_own_the_end_user_keeps_his_answers():
    plan = plan_of(BODY, pii=PiiAction.USER)
    assert plan.personal is not None
    end = await end_of(Forward(MISS, plan), BODY, Scanner())
    assert end == Forward(MISS, plan.personal)
    hit = Hit(entry_of(plan), HitStatus(Reason.EXACT, -5), 1, revalidate=plan)
    end = await end_of(hit, BODY, Scanner())
    assert end.revalidate is plan.personal


async def test_names_that_cannot_be_scanned_are_not_taken_for_clean():
    plan = plan_of(BODY, pii=PiiAction.USER)
    end = await end_of(Forward(MISS, plan), BODY, Scanner("fails"))
    assert end == Forward(ForwardStatus(Forwarded.BYPASS, Reason.SCAN_FAULT), None)


@pytest.mark.parametrize("body", [chat(user("PERSONAL")), chat(user("hi"), user="ann")])
async def test_other_requests_go_their_way(body):
    end = Forward(MISS, plan_of(body))
    assert await end_of(end, body, Scanner()) is end


async def test_nothing_is_scanned_where_nothing_may_be_stored():
    plan, scanner = plan_of(BODY), Scanner()
    allowed = plan_of(BODY, pii=PiiAction.ALLOW)
    for end in (
        Hit(entry_of(plan), HitStatus(Reason.EXACT, 5), 1),
        Forward(ForwardStatus(Forwarded.BYPASS, Reason.PII), None),
        Forward(MISS, allowed),
        Refused(),
    ):
        assert await end_of(end, BODY, scanner) is end
    assert scanner.texts == []


async def test_the_names_of_a_batch_are_scanned_once():
    plan, scanner = plan_of(BODY), Scanner()
    hit = Hit(entry_of(plan), HitStatus(Reason.EXACT, 5), 1)
    ends = await ends_of([hit, *[Forward(MISS, plan)] * 9], BODY, scanner)
    assert ends == [hit, *[Forward(ForwardStatus(Forwarded.BYPASS, Reason.PII), None)] * 9]
    assert len(scanner.texts) == 1
