"""Pauses that end when the test says so: time, for what waits between its tries."""

import asyncio


class Pauses:
    """A clock whose pauses end when the test says so."""

    def __init__(self):
        self.asked = asyncio.Queue()
        self._gates = asyncio.Queue()

    async def sleep(self, seconds):
        self.asked.put_nowait(seconds)
        await self._gates.get()

    async def next(self):
        """Wait until a pause begins; return its length."""
        return await self.asked.get()

    def end(self):
        self._gates.put_nowait(None)
