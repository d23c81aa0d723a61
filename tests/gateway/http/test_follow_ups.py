"""A complete follow-up gets the answer to a first turn, and no answer of another conversation."""

import pytest
from semantic_rig import learning

COMPLETE, SAME = "Where was Frida Kahlo born?", "In which town was Frida Kahlo born?"
HIT = 'detail="semantic; similarity='


def after(opening, question, *, system=()):
    turns = [("user", opening), ("assistant", "Yes."), ("user", question)]
    messages = [*(("system", text) for text in system), *turns]
    return {"messages": [{"role": role, "content": text} for role, text in messages]}


async def test_a_complete_follow_up_gets_the_answer_to_a_first_turn(upstream, tmp_path):
    async with learning(tmp_path, upstream.url, "follow_ups: on") as rig:
        await rig.ask(COMPLETE)
        for question in (COMPLETE, SAME):
            cache, _ = await rig.ask("", **after("Who painted it?", question))
            assert HIT in cache
    assert upstream.calls == 1


@pytest.mark.parametrize(
    "asked",
    [
        after("You are a pirate.", COMPLETE),
        after("Who painted it?", "When did the band tour?"),
        after("Who painted it?", COMPLETE, system=["Be brief."]),
        {**after("Who painted it?", COMPLETE), "temperature": 1},
        {**after("Who painted it?", COMPLETE), "model": "other"},
    ],
)
async def test_a_doubt_or_another_difference_is_a_miss(upstream, tmp_path, asked):
    async with learning(tmp_path, upstream.url, "follow_ups: on") as rig:
        await rig.ask(COMPLETE)
        assert "fwd=miss" in (await rig.ask("", **asked))[0]


async def test_no_answer_leaves_its_conversation(upstream, tmp_path):
    async with learning(tmp_path, upstream.url, "follow_ups: on") as rig:
        await rig.ask("", **after("Who painted it?", COMPLETE))
        assert "fwd=miss" in (await rig.ask("", **after("Who built it?", COMPLETE)))[0]
        assert "fwd=miss" in (await rig.ask(COMPLETE))[0]
        assert HIT in (await rig.ask("", **after("Who painted it?", SAME)))[0]


async def test_without_the_setting_only_equal_conversations_share(upstream, tmp_path):
    async with learning(tmp_path, upstream.url, "promote: off") as rig:
        await rig.ask(COMPLETE)
        assert "fwd=miss" in (await rig.ask("", **after("Who painted it?", COMPLETE)))[0]
