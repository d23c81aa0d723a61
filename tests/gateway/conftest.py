"""A real Redis for the tests of one file, emptied before each."""

import pytest
from redis.asyncio import Redis

from running_redis import RunningRedis


@pytest.fixture(scope="module")
def server(redis_version, tmp_path_factory):
    redis = RunningRedis(tmp_path_factory.mktemp("redis"))
    redis.start()
    yield redis
    redis.kill()


@pytest.fixture
async def redis(server):
    """A client of the server, which has no entries, no scripts and no figures yet."""
    async with Redis.from_url(server.url) as client:
        await client.flushall()
        await client.script_flush()
        await client.config_resetstat()
        yield client
