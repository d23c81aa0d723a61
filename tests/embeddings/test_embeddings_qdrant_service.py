"""The real service with its vectors in Qdrant: what a frozen Qdrant costs, and what it does not."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from embeddings.client import EmbeddingsClient, SemanticUnavailableError

RESET = "How do I reset my password?"


async def test_a_frozen_qdrant_costs_hits_by_meaning_and_nothing_else(new_service, qdrant_server):
    qdrant = qdrant_server
    service = new_service()
    service.start(
        env={
            **os.environ,
            "REFRAIN_VECTORS": qdrant.url,
            # The stand-in shares busy cores: 50 ms would be too little for it now and then.
            "REFRAIN_VECTORS_TIMEOUT": "3",
        },
        stderr=subprocess.DEVNULL,
    )
    client = EmbeddingsClient(service.socket, timeout=20)
    try:
        assert (await service.ready(client)).index == "qdrant"
        await client.add(b"p", b"reset", RESET, time.time() + 3600)
        (near,) = await client.search(b"p", "How can I reset my password?", 1)
        assert near.key == b"reset"
        qdrant.freeze()
        for _ in range(2):
            with pytest.raises(SemanticUnavailableError) as refused:
                await client.search(b"p", RESET, 1)
            assert refused.value.reason.startswith("index-")
        assert len(await client.embed([RESET])) == 1
        assert (await client.status()).fault == "not answering"
        qdrant.thaw()
        async with asyncio.timeout(60):
            while (await client.status()).fault:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.05)
        assert [match.key for match in await client.search(b"p", RESET, 1)] == [b"reset"]
        assert not (service.data_dir / "vectors.sqlite3").exists()
    finally:
        await client.close()
        qdrant.thaw()
    assert service.stop(signal.SIGTERM)[0] == 0


def test_the_default_start_imports_nothing_of_qdrant():
    code = "import sys, embeddings.service; print('qdrant_client' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False"]
