"""The judge model: asked about what is unsure and nothing else, and believed where it is plain."""

import orjson
import pytest
from aiohttp import web
from semantic_rig import learning

from scripted_upstream import completion


def judging(verdict, *answers, status=200):
    """Answer with one text after the other, and with the verdict where the judge is asked."""
    left = list(answers)

    async def answer(_request, body):
        text = verdict if body["model"] == "judge" else left.pop(0)
        return web.json_response(completion(text), status=status if text is verdict else 200)

    return answer


UNSURE = ("It has 3 parts.", "It has a few parts.")


@pytest.mark.parametrize(
    ("verdict", "outcome", "why"),
    [
        ('{"same": true}', "equal", "judge"),
        ('{"same": false}', "different", "judge"),
        ('{"same": 1}', "unsure", "numbers"),
        ("true", "unsure", "numbers"),
        ("They are the same.", "unsure", "numbers"),
    ],
)
async def test_what_is_unsure_is_asked_about(upstream, tmp_path, verdict, outcome, why):
    upstream.answer = judging(verdict, *UNSURE)
    async with learning(tmp_path, upstream.url, "shadow: on", judge="judge") as rig:
        await rig.ask("how many")
        await rig.ask("how many please")
        await rig.comparisons.idle()
        [line] = rig.lines()
    assert (line["outcome"], line["why"]) == (outcome, why)
    asked = upstream.bodies[-1]
    assert (asked["model"], asked["temperature"]) == ("judge", 0)
    assert orjson.loads(asked["messages"][1]["content"]) == {
        "question": "how many please",
        "first": UNSURE[0],
        "second": UNSURE[1],
    }


async def test_what_is_told_already_is_not_asked_about(upstream, tmp_path):
    upstream.answer = judging("", "It is 3.", "It is 3!")
    async with learning(tmp_path, upstream.url, "shadow: on", judge="judge") as rig:
        await rig.ask("how many")
        await rig.ask("how many please")
        await rig.comparisons.idle()
    assert upstream.calls == 2


async def test_a_judge_that_fails_leaves_it_unsure(upstream, tmp_path):
    upstream.answer = judging('{"same": true}', *UNSURE, status=500)
    async with learning(tmp_path, upstream.url, "shadow: on", judge="judge") as rig:
        await rig.ask("how many")
        await rig.ask("how many please")
        await rig.comparisons.idle()
        [line] = rig.lines()
    assert line["outcome"] == "unsure"


async def test_answers_of_any_length_are_not_sent(upstream, tmp_path):
    long = "so it is and " * 1000
    upstream.answer = judging('{"same": true}', f"{long} 3", f"{long} 4")
    async with learning(tmp_path, upstream.url, "shadow: on", judge="judge") as rig:
        await rig.ask("how many")
        await rig.ask("how many please")
        await rig.comparisons.idle()
    assert upstream.calls == 2
