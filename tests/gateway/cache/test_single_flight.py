"""Who asks the same at the same time waits for one run."""

import asyncio

import pytest

from gateway.cache.single_flight import SingleFlight


class Question:
    """A run that waits for the test."""

    def __init__(self) -> None:
        self.runs = 0
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def run(self) -> str:
        self.runs += 1
        return await asyncio.shield(self.answer)


async def asked(together: SingleFlight[str], about: str, question: Question) -> "asyncio.Task[str]":
    task = asyncio.create_task(together.ask(about, question.run))
    await asyncio.sleep(0)
    return task


async def test_a_failure_reaches_all_and_ends_with_them():
    together, question = SingleFlight[str](), Question()
    tasks = [await asked(together, "a", question) for _ in range(3)]
    question.answer.set_exception(ValueError("no"))
    for task in tasks:
        with pytest.raises(ValueError, match="no"):
            await task
    again = Question()
    again.answer.set_result("yes")
    assert await together.ask("a", again.run) == "yes"


async def test_a_failure_that_nobody_waits_for_is_not_reported():
    together, question = SingleFlight[str](), Question()
    task = await asked(together, "a", question)
    task.cancel()
    await asyncio.wait([task])
    question.answer.set_exception(ValueError("no"))
    await asyncio.sleep(0)
    again = await asked(together, "a", question)
    with pytest.raises(ValueError, match="no"):
        await again
