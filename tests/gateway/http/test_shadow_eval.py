"""Shadow mode and near misses over a real upstream: nothing is served, everything is compared."""

import asyncio

import pytest
from aiohttp import web
from semantic_rig import learning

from gateway.cache.quality import comparisons
from gateway.semantic.ports import Features, Verification
from scripted_upstream import completion


def says(*texts):
    """Answer with one text after the other, the last one for ever."""
    left = list(texts)

    async def answer(_request, _body):
        return web.json_response(completion(left.pop(0) if len(left) > 1 else left[0]))

    return answer


async def test_what_would_have_been_served_is_compared_and_not_served(upstream, tmp_path):
    upstream.answer = says("It is 3.", "It is 3!")
    async with learning(tmp_path, upstream.url, "shadow: on") as rig:
        await rig.ask("how many")
        cache, body = await rig.ask("how many please")
        await rig.comparisons.idle()
        assert cache == "refrain; fwd=miss; stored; detail=shadow"
        assert b"3!" in body
        [line] = rig.lines()
    assert (line["kind"], line["outcome"], line["rule"]) == ("shadow", "equal", "default")
    assert rig.counted == [("default", "shadow", "equal")]
    assert not {"question", "fresh_answer"} & line.keys()


async def test_a_streamed_answer_is_compared_when_it_is_complete(upstream, tmp_path):
    async with learning(tmp_path, upstream.url, "shadow: on") as rig:
        await rig.ask("how many")
        await rig.ask("how many please", stream=True)
        await rig.comparisons.idle()
        [line] = rig.lines()
    assert line["kind"] == "shadow"


async def test_an_answer_that_is_declined_is_no_comparison(upstream, tmp_path):
    async with learning(tmp_path, upstream.url, "shadow: on") as rig:
        await rig.ask("how many")

        async def cut(_request, _body):
            return web.json_response(completion("It", finish_reason="length"))

        upstream.answer = cut
        await rig.ask("how many please")
        await rig.comparisons.idle()
        assert rig.counted == []
    assert not rig.journal.path.exists()


async def test_those_who_ask_together_make_one_comparison(upstream, tmp_path):
    async with learning(tmp_path, upstream.url, "shadow: on") as rig:
        await rig.ask("how many")
        await asyncio.gather(*(rig.ask("how many please") for _ in range(20)))
        await rig.comparisons.idle()
        assert len(rig.lines()) == 1
    assert upstream.calls == 2


async def test_in_shadow_a_wrong_one_stays_in_the_index(upstream, tmp_path):
    upstream.answer = says("It is 3.", "It is 4.")
    async with learning(tmp_path, upstream.url, "shadow: on") as rig:
        await rig.ask("how many")
        await rig.ask("how many please")
        await rig.comparisons.idle()
        assert rig.counted == [("default", "shadow", "different")]
        assert len(rig.index.keys) == 2


async def test_a_near_miss_answered_the_same_is_served_from_then_on(upstream, tmp_path):
    upstream.answer = says("It is 3.")
    async with learning(tmp_path, upstream.url, "promote: on") as rig:
        await rig.ask("how many")
        [first] = rig.index.keys
        rig.verifier.score = 0.3
        assert "fwd=miss" in (await rig.ask("how many please"))[0]
        await rig.comparisons.idle()
        [line] = rig.lines()
        assert (line["kind"], line["outcome"], line["promoted"]) == ("near-miss", "equal", True)
        assert "how many" not in str(line)
        # Its own entry is gone, or the same question comes in another case.
        await rig.store.delete(bytes.fromhex(line["key"]))
        cache, _ = await rig.ask("How  many PLEASE")
        assert 'detail="semantic; similarity=' in cache
        assert (line["entry"], upstream.calls) == (first.hex(), 2)
        # Nobody said anything about this one.
        assert "fwd=miss" in (await rig.ask("how few please"))[0]


async def test_an_alias_ends_when_either_answer_is_called_wrong(upstream, tmp_path):
    upstream.answer = says("It is 3.")
    async with learning(tmp_path, upstream.url, "promote: on") as rig:
        await rig.ask("how many")
        rig.verifier.score = 0.3
        await rig.ask("how many please")
        await rig.comparisons.idle()
        [line] = rig.lines()
        await rig.quarantine.add(bytes.fromhex(line["key"]))
        await rig.store.delete(bytes.fromhex(line["key"]))
        assert "fwd=miss" in (await rig.ask("how many please"))[0]


async def test_a_guard_still_refuses_an_alias(upstream, tmp_path):
    upstream.answer = says("It is 3.")
    async with learning(tmp_path, upstream.url, "promote: on") as rig:
        await rig.ask("how many")
        rig.verifier.score = 0.3
        await rig.ask("how many please")
        await rig.comparisons.idle()
        [line] = rig.lines()
        await rig.store.delete(bytes.fromhex(line["key"]))
        rig.verifier.said = "number"
        assert rig.verifier.threshold(0.01) is not None
        assert Verification(0.3, "number").result(0.5, alias=True) == "number"
        assert "fwd=miss" in (await rig.ask("how many please"))[0]


@pytest.mark.parametrize("features", [None, Features(0.9, 1.0, 15, 0.75)])
async def test_a_comparison_names_what_is_known_of_the_questions(upstream, tmp_path, features):
    async with learning(tmp_path, upstream.url, "shadow: on") as rig:
        rig.verifier.features = features
        await rig.ask("how many")
        await rig.ask("how many please")
        await rig.comparisons.idle()
        [line] = rig.lines()
        known = (line["characters"], line["overlap"])
        assert known == ((None, None) if features is None else (15, 0.75))
        assert rig.comparisons.journal.ledger.report()["default"]["comparisons"] == 1


@pytest.mark.parametrize(
    ("settings", "shadow"),
    [("promote: on", False), ("shadow: on", True), ("shadow: on, promote: on", True)],
)
async def test_a_near_miss_says_whether_shadow_mode_compared_it(
    upstream, tmp_path, settings, shadow
):
    upstream.answer = says("It is 3.")
    async with learning(tmp_path, upstream.url, settings) as rig:
        await rig.ask("how many")
        rig.verifier.score = 0.3
        await rig.ask("how many please")
        await rig.comparisons.idle()
        [line] = rig.lines()
        assert (line["kind"], line["shadow"]) == ("near-miss", shadow)


async def test_a_comparison_names_the_verifier_whose_score_it_is(upstream, tmp_path):
    async with learning(tmp_path, upstream.url, "shadow: on") as rig:
        await rig.ask("how many")
        rig.verifier.name = "then"

        async def later(_request, _body):
            rig.verifier.name = "now"
            return web.json_response(completion("It is 3."))

        upstream.answer = later
        await rig.ask("how many please")
        await rig.comparisons.idle()
        [line] = rig.lines()
    assert line["verifier"] == "then"


async def test_an_alias_ends_when_the_entry_is_answered_anew(upstream, tmp_path):
    upstream.answer = says("It is 3.")
    async with learning(tmp_path, upstream.url, "promote: on") as rig:
        await rig.ask("how many")
        [first] = rig.index.keys
        rig.verifier.score = 0.3
        await rig.ask("how many please")
        await rig.comparisons.idle()
        [line] = rig.lines()
        await rig.store.delete(bytes.fromhex(line["key"]))
        await rig.store.delete(first)
        upstream.answer = says("It is 4.")
        await rig.ask("how many")
        assert "fwd=miss" in (await rig.ask("how many please"))[0]


async def test_hits_of_all_verifiers_count_towards_the_rate_of_their_rule(upstream, tmp_path):
    upstream.answer = says("It is 3.")
    async with learning(tmp_path, upstream.url, "shadow: on") as rig:
        await rig.ask("how many")
        rig.verifier.needed = {"rules": 1.0, "model": 0.7}
        for number, name in enumerate(["rules", "model", "rules", "model"]):
            rig.verifier.name = name
            await rig.ask(f"how many please {'x' * number}")
            await rig.comparisons.idle()
        assert len(rig.lines()) == 4
        assert rig.journal.report()["rules"]["default"]["comparisons"] == 4


async def test_answers_that_are_too_large_to_wait_are_not_compared(upstream, tmp_path, monkeypatch):
    monkeypatch.setattr(comparisons, "MAX_BYTES", 1000)
    upstream.answer = says("x" * 1000)
    async with learning(tmp_path, upstream.url, "shadow: on") as rig:
        await rig.ask("how many")
        await rig.ask("how many please")
        await rig.comparisons.idle()
        assert rig.counted == [("default", "shadow", "dropped")]
