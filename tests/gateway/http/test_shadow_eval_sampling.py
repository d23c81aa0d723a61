"""Served hits that are also asked upstream: compared behind the client's back, and what follows."""

import asyncio
from dataclasses import replace

import pytest
from aiohttp import web
from semantic_rig import learning

from gateway.server.prepare import Outbox
from scripted_upstream import completion


def says(text):
    async def answer(_request, _body):
        return web.json_response(completion(text))

    return answer


async def background_done(rig):
    """Wait for the calls that no client waits for, and what comes of their answers."""
    calls = rig.pipeline.coalescer.calls
    while calls:
        await asyncio.wait(list(calls))
    await rig.comparisons.idle()


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_sampled_hit_is_served_and_compared(upstream, tmp_path, streamed):
    async with learning(tmp_path, upstream.url, "sample: 100%") as rig:
        upstream.answer = says("It is 3.")
        await rig.ask("how many")
        cache, body = await rig.ask("how many please", stream=streamed)
        assert 'detail="semantic;' in cache
        assert b"It is 3." in body or streamed
        await background_done(rig)
        [line] = rig.lines()
        assert (line["kind"], line["outcome"]) == ("served", "equal")
        sample = [seen for seen in rig.finished if seen.outcome == "sample"]
    assert [seen.call.stored for seen in sample] == [True]
    assert upstream.calls == 2


async def test_a_wrong_hit_is_quarantined_and_never_served_so_again(upstream, tmp_path):
    async with learning(tmp_path, upstream.url, "sample: 100%") as rig:
        upstream.answer = says("It is 3.")
        await rig.ask("how many")
        [key] = rig.index.keys
        upstream.answer = says("It is 4.")
        assert 'detail="semantic;' in (await rig.ask("how many please"))[0]
        await background_done(rig)
        assert rig.counted == [("default", "served", "different")]
        assert rig.quarantine.holds(key)
        assert key not in rig.index.keys
        rig.index.keys = dict.fromkeys([key], *rig.index.keys.values())
        assert "fwd=miss" in (await rig.ask("how many then"))[0]


async def test_nothing_is_sampled_where_the_policy_says_so(upstream, tmp_path):
    async with learning(tmp_path, upstream.url, "sample: 0%") as rig:
        await rig.ask("how many")
        for number in range(20):
            assert "semantic" in (await rig.ask(f"how many please {'x' * number}"))[0]
        await background_done(rig)
    assert upstream.calls == 1


async def test_an_upstream_that_fails_in_the_background_costs_nothing(upstream, tmp_path):
    async def broken(_request, _body):
        return web.json_response({"error": {}}, status=500)

    async with learning(tmp_path, upstream.url, "sample: 100%") as rig:
        await rig.ask("how many")
        upstream.answer = broken
        assert "semantic" in (await rig.ask("how many please"))[0]
        await background_done(rig)
        assert rig.counted == []
        assert len(rig.index.keys) == 1


async def test_a_hit_waits_for_no_sample_and_closing_ends_it(upstream, tmp_path):
    async with learning(tmp_path, upstream.url, "sample: 100%") as rig:
        await rig.ask("how many")
        upstream.arrived.clear()

        async def never(_request, _body):
            await asyncio.Event().wait()

        upstream.answer = never
        assert "semantic" in (await rig.ask("how many please"))[0]
        async with asyncio.timeout(60):
            await upstream.arrived.wait()
        await rig.pipeline.close()
        async with asyncio.timeout(60):
            await upstream.cancelled.wait()
    assert rig.counted == []


async def test_a_hit_waits_for_no_preparation_of_its_sample(upstream, tmp_path, monkeypatch):
    prepared, exchange = [], Outbox.exchange
    may_go_on = asyncio.Event()

    async def slow(outbox, *args):
        prepared.append(args)
        await may_go_on.wait()
        return await exchange(outbox, *args)

    async with learning(tmp_path, upstream.url, "sample: 100%") as rig:
        await rig.ask("how many")
        monkeypatch.setattr(Outbox, "exchange", slow)
        async with asyncio.timeout(60):
            replies = await asyncio.gather(*(rig.ask("how many please") for _ in range(5)))
        assert all('detail="semantic;' in cache for cache, _ in replies)
        assert (len(prepared), upstream.calls) == (1, 1)
        may_go_on.set()
        await background_done(rig)
    assert upstream.calls == 2


async def test_answers_without_vectors_are_unsure(upstream, tmp_path):
    async with learning(tmp_path, upstream.url, "sample: 100%") as rig:
        upstream.answer = says("It is so.")
        await rig.ask("how many")
        upstream.answer = says("That is how it is.")
        rig.encoder.failing = True
        await rig.ask("how many please")
        await background_done(rig)
        [line] = rig.lines()
    assert (line["outcome"], line["why"]) == ("unsure", "no-vectors")


async def test_a_comparison_that_fails_is_counted_and_the_next_is_made(upstream, tmp_path):
    async with learning(tmp_path, upstream.url, "sample: 100%") as rig:
        upstream.answer = says("It is so.")
        await rig.ask("how many")
        upstream.answer = says("So it is.")
        rig.encoder.broken = True
        await rig.ask("how many please")
        await background_done(rig)
        rig.encoder.broken = False
        await rig.ask("how many thanks")
        await background_done(rig)
        assert [outcome for _, _, outcome in rig.counted] == ["fault", "equal"]


async def test_a_journal_that_cannot_be_written_still_quarantines_and_still_counts(
    upstream, tmp_path, caplog
):
    async with learning(tmp_path, upstream.url, "sample: 100%") as rig:
        upstream.answer = says("It is 3.")
        await rig.ask("how many")
        [key] = rig.index.keys

        async def answer(_request, _body):
            rig.journal.path.mkdir()
            return web.json_response(completion("It is 4."))

        upstream.answer = answer
        await rig.ask("how many please")
        await background_done(rig)
        assert rig.quarantine.holds(key)
        assert rig.counted == [("default", "served", "different")]
        assert "a comparison cannot be written down" in caplog.text
        assert rig.journal.ledger.report()["default"]["different"] == 1


async def test_too_many_wrong_hits_switch_the_rule_off_until_it_is_reset(
    upstream, tmp_path, caplog
):
    async with learning(tmp_path, upstream.url, "sample: 100%") as rig:
        for number in range(2):
            upstream.answer = says("It is 3.")
            await rig.ask("how many", seed=number)
            upstream.answer = says("It is 4.")
            assert "semantic" in (await rig.ask("how many please", seed=number))[0]
            await background_done(rig)
        assert "rule default: semantic hits are off: 2 of the latest 2" in caplog.text
        await rig.ask("how many", seed=9)
        cache, _ = await rig.ask("how many please", seed=9)
        assert cache == "refrain; fwd=miss; stored; detail=semantic-off"
        assert [line["kind"] for line in rig.lines()] == ["served", "served", "off"]
    # Another process, or the same after a restart, reads it in the journal.
    async with learning(tmp_path, upstream.url, "sample: 100%") as again:
        await again.ask("how many")
        assert "semantic-off" in (await again.ask("how many please"))[0]
        await again.journal.append({"time": 1.0, "kind": "reset", "rule": "default"})
        assert "semantic;" in (await again.ask("how many then"))[0]


async def test_another_budget_makes_a_rule_count_anew(upstream, tmp_path):
    async with learning(tmp_path, upstream.url, "sample: 100%") as rig:
        off = {"kind": "off", "rule": "default", "basis": "0/0.005/0.5", "budget": 0.005}
        await rig.journal.append(off)
        await rig.ask("how many")
        assert "semantic-off" in (await rig.ask("how many please"))[0]
    async with learning(tmp_path, upstream.url, "max_wrong_hits: 2%") as rig:
        await rig.ask("how many")
        assert "semantic;" in (await rig.ask("how many please"))[0]


async def test_a_share_of_the_hits_is_sampled(upstream, tmp_path):
    async with learning(tmp_path, upstream.url, "sample: 5%") as rig:
        await rig.ask("how many")
        draws = iter((0.05, 0.9, 0.049, 0.0))
        rig.pipeline = replace(rig.pipeline, draw=lambda: next(draws))
        for number in range(4):
            assert "semantic" in (await rig.ask(f"how many please {'x' * number}"))[0]
        await background_done(rig)
    assert upstream.calls == 1 + 2
