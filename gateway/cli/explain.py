"""What ``refrain policy explain`` does: a root of its own, which opens what it is told to open.

Law: nothing is made and nothing is changed: a store or secret that is not there is an error.
"""

import argparse
import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import orjson
from aiohttp import ClientSession, ClientTimeout

from gateway.app import default_policy
from gateway.cache.pii_scan import Scans
from gateway.cache.ports import PolicySource, Store, StoreError
from gateway.cache.stores.memory import MemoryStore
from gateway.cache.writer import CacheWriter
from gateway.cli.explain_text import explanation_text
from gateway.cli.gateway_client import CallError, Gateway
from gateway.cli.terminal import CommandError, unreadable
from gateway.semantic.ports import SemanticIndex, Verifier
from gateway.semantic.verification import Verification
from gateway.server.admin.explain import Explainer
from gateway.server.admin.recorded_request import Recorded, RecordedError, as_json, parse_recorded
from gateway.server.auth import Access, KeyRingError
from gateway.server.open_store import open_store
from gateway.server.pipeline import Pipeline
from gateway.server.policy_file import PolicyFile
from gateway.server.prepare import Outbox
from gateway.server.secrets import (
    SecretError,
    SecretSettingError,
    load_or_create_secret,
    shared_secret,
)
from gateway.settings import Settings, SettingsError, load_settings
from gateway.upstream.coalescing.coalescer import Coalescer
from gateway.upstream.ports import UpstreamReply
from gateway.upstream.request import Outgoing
from policies.format.yaml_document import PolicyError

_REPLY_SECONDS = 60.0
_SAMPLE = 1000


def explain(options: argparse.Namespace) -> int:
    """Explain a request from a file or standard input; return the exit code."""
    try:
        told = asyncio.run(_explained(options))
    except (PolicyError, SettingsError, KeyRingError, SecretSettingError) as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise unreadable(error.filename or options.policy, error) from None
    except (CallError, SecretError, StoreError) as error:
        raise CommandError(str(error), 1) from None
    if options.json:
        sys.stdout.write(orjson.dumps(told, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        sys.stdout.write(explanation_text(told, colour=colour))
    return 0


async def _explained(options: argparse.Namespace) -> dict[str, Any]:
    inquiry = _inquiry(options.request)
    if options.gateway is not None:
        if any((options.policy, options.data_dir, options.config)):
            raise CommandError("--gateway answers by its own policy, settings and store")
        return await _ask(options.gateway, options.token, inquiry)
    policies = PolicyFile(options.policy or default_policy())
    if options.data_dir is None and options.config is None:
        pipeline = pipeline_to_explain(policies, MemoryStore(max_bytes=0), b"", "")
        return await Explainer(pipeline, policy_only=True).explain(inquiry)
    given = {"data_dir": options.data_dir, "upstream": options.upstream and (options.upstream,)}
    flags = {name: value for name, value in given.items() if value is not None}
    settings = load_settings(flags, os.environ, options.config)
    opened, secret = _as_it_is(settings), _secret(settings)
    store = open_store(opened, os.environ).store
    try:
        upstream = settings.upstream_identity or await _usual_upstream(store)
        salts = settings.upstream_cache_salt
        explainer = Explainer(
            pipeline_to_explain(policies, store, secret, upstream, salts_caches=salts),
            Access(settings.gateway_keys, settings.denied_keys).holder,
            without_index="the running gateway has the index (--gateway URL)",
        )
        return await explainer.explain(inquiry)
    finally:
        await store.close()


class Nobody:
    """Stands for the upstream, verifier and quarantine of a pipeline that only explains."""

    def __init__(self, name: str) -> None:
        self.name = name

    def send(self, outgoing: Outgoing) -> AbstractAsyncContextManager[UpstreamReply]:
        """See the port ``Upstream``: an explanation sends nothing."""
        raise NotImplementedError

    async def verify(self, asked: str, stored: str, similarity: float) -> Verification:
        """See the port ``Verifier``."""
        del asked, stored, similarity
        return Verification(0.0, "no verifier")

    def threshold(self, max_wrong_hits: float, verifier: str = "") -> float | None:
        """See the port ``Verifier``."""
        del max_wrong_hits, verifier
        return None

    def holds(self, key: bytes) -> bool:
        """See the port ``Quarantine``."""
        del key
        return False

    async def add(self, key: bytes) -> None:
        """See the port ``Quarantine``: an explanation changes nothing."""
        raise NotImplementedError


def pipeline_to_explain(
    policies: PolicySource,
    store: Store,
    secret: bytes,
    upstream: str,
    *,
    salts_caches: bool = False,
    semantic: SemanticIndex | None = None,
    verifier: Verifier | None = None,
    now: Callable[[], float] = time.time,
) -> Pipeline:
    """Return a pipeline that can only explain: of the upstream it has the name."""
    nobody, scans = Nobody(upstream), Scans()
    return Pipeline(
        store=store,
        semantic=semantic,
        verifier=verifier or nobody,
        policies=policies,
        coalescer=Coalescer(nobody, CacheWriter(store, semantic, scans, now, nobody), 0),
        scans=scans,
        secret=secret,
        outbox=Outbox(secret, salts_caches),
        recorder=None,
        now=now,
    )


def _inquiry(request: str) -> Recorded:
    raw = sys.stdin.buffer.read() if request == "-" else Path(request).read_bytes()
    source = "standard input" if request == "-" else request
    try:
        return parse_recorded(raw)
    except RecordedError as error:
        raise CommandError(f"{source}: {error}") from None


async def _ask(url: str, token: str | None, inquiry: Recorded) -> dict[str, Any]:
    environment = os.environ if token is None else {"REFRAIN_ADMIN_TOKEN": token}
    async with ClientSession(timeout=ClientTimeout(total=_REPLY_SECONDS)) as session:
        try:
            return await Gateway(session, url, environment).admin("explain", as_json(inquiry))
        except TypeError:
            wide = "the request holds an integer of more than 64 bits, which is not sent"
            raise CommandError(wide) from None


def _as_it_is(settings: Settings) -> Settings:
    """Return settings that open the store without a tier of its own, where it is."""
    if settings.store == "memory":
        hint = "ask the running gateway with --gateway URL"
        raise CommandError(f"the entries are in the gateway's memory: {hint}")
    if settings.store == "disk" and not (settings.data_dir / "entries.sqlite3").exists():
        raise CommandError(f"{settings.data_dir}: there is no store here")
    return settings.model_copy(update={"memory_bytes": 0})


def _secret(settings: Settings) -> bytes:
    given = shared_secret(os.environ)
    if given is not None:
        return given
    if not (settings.data_dir / "secret").exists():
        raise CommandError(f"{settings.data_dir}: there is no secret here")
    return load_or_create_secret(settings.data_dir)


async def _usual_upstream(store: Store) -> str:
    """Return the upstream of most entries: it is part of every key."""
    page = await store.walk(None, _SAMPLE)
    counts = Counter(entry.upstream for entry in page.entries)
    return counts.most_common(1)[0][0] if counts else ""
