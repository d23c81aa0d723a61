"""Defects that users of other gateways reported: none is ours, and each check can fail.

Not here, because what they concern does not exist yet: an unbounded prefix trie (production-stack
#687) and prompts whose timestamps spoil a provider's prefix cache (opencode-agent-memory #24).
"""

import asyncio

import peer_defects
import pytest
from peer_defects import BOUND, DEFECTS, Bench, Defect


@pytest.fixture
def bench(start_gateway, upstream, tmp_path, monkeypatch):
    def patch(owner, name, value):
        monkeypatch.setattr(owner, name, value)

    return Bench(start_gateway, upstream, tmp_path, patch)


@pytest.fixture(params=DEFECTS, ids=lambda defect: f"{defect.name} ({defect.seen_in})")
def defect(request) -> Defect:
    return request.param


async def test_it_is_not_ours(bench, defect):
    async with asyncio.timeout(BOUND * 2):
        await defect.check(bench)


async def test_without_its_defence_the_check_fails(bench, defect, monkeypatch):
    # Some fail by waiting for it.
    monkeypatch.setattr(peer_defects, "BOUND", BOUND / 8)
    defect.sabotage(bench)
    with pytest.raises((AssertionError, TimeoutError)):
        async with asyncio.timeout(BOUND):
            await defect.check(bench)
