"""The operator's actions on the cache: list, purge, forget, load, report a wrong hit, scan again.

Laws. Nothing is selected by accident: an empty selection, an unknown field or a wrong type is
refused with the field's name, and several fields must all hold. A dry run gives the same figures
as the purge, and what is purged is gone from store and index alike.

A wrong hit is evicted, and its entry answers no question of the same meaning while its key is in
quarantine.

After a scope is forgotten, no lookup finds its earlier entries, in memory, on disk or by meaning;
with encryption not even a copy of the files has them. Requests of the scope that arrive meanwhile
are stored again, so shut the client out first.

There is no second path into the cache. A known answer that is loaded goes through the pipeline,
policy, scan and admission included. Only the upstream is a stand-in, which returns that answer.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from time import perf_counter
from typing import Any

import orjson

from gateway.cache.append_files import Journal
from gateway.cache.key import identify, scope_ids
from gateway.cache.pii_scan import ScanFailedError
from gateway.cache.ports import (
    SEALED,
    Entry,
    ForgetKeys,
    Quarantine,
    Store,
    StoreError,
    UnfinishedError,
)
from gateway.cache.stores.entry_codec import encoded_size
from gateway.cache.writer import CacheWriter
from gateway.protocol.conversation import answer_text, as_names
from gateway.protocol.errors import RequestError, UnauthorizedError
from gateway.protocol.request import read_request
from gateway.server.admin.recorded_request import InvalidFieldError, read_endpoint, read_headers
from gateway.server.keys.key_line import Key
from gateway.server.open.local_encoder import LocalReply
from gateway.server.pipeline import Pipeline
from gateway.telemetry.observation import NO_CALL, Observation
from gateway.upstream.request import Outgoing, Served, Upstream
from gateway.upstream.sharing.coalescer import Coalescer
from policies.decision import Endpoint, PiiAction

Fields = dict[str, Any]
"""A JSON object: the fields of an action, or its reply."""

PAGE = 256
"""Entries read at a time: the loop is free in between."""
PASSES = 3
"""A walk may miss entries that are stored meanwhile; the next walk finds them."""
SAMPLE = 10
HASH_BYTES = 32
_HASHES = ("key", "scope")
_TEXTS = ("model", "tag", "rule")
SELECTION_FIELDS = (*_HASHES, *_TEXTS, "all")
_NOT_EVICTED = (
    "The key is barred from semantic reuse, but the entry was not evicted ({}). Report it again."
)
_SEALED = (
    "{} entries were selected. {} more cannot be read without their master key, and may be among "
    "those you mean: repeat after the reload, give REFRAIN_ENCRYPTION_KEYS the key, or purge all."
)


@dataclass(frozen=True, slots=True)
class Selection:
    """Entries for which every field given holds; ``model`` is a glob."""

    key: bytes | None = None
    scope: bytes | None = None
    model: str | None = None
    tag: str | None = None
    rule: str | None = None

    def holds(self, entry: Entry) -> bool:
        return (
            (self.key is None or entry.key == self.key)
            and (self.scope is None or entry.scope == self.scope)
            and (self.model is None or fnmatchcase(entry.model, self.model))
            and (self.tag is None or self.tag in entry.tags)
            and (self.rule is None or entry.rule == self.rule)
        )


def parse_selection(fields: Mapping[str, Any]) -> Selection:
    """Read a selection: at least one of ``SELECTION_FIELDS``. Raises InvalidFieldError."""
    refuse_other_fields(fields, *SELECTION_FIELDS)
    everything = fields.get("all", False)
    if not isinstance(everything, bool):
        raise InvalidFieldError("all", "true")
    if everything == any(name != "all" for name in fields):
        either = "either all: true or at least one of the fields"
        raise InvalidFieldError("all", f"{either} {', '.join(SELECTION_FIELDS[:-1])}")
    hashes = {name: read_hash(name, fields[name]) for name in _HASHES if name in fields}
    texts = {name: fields[name] for name in _TEXTS if name in fields}
    for name, text in texts.items():
        if not isinstance(text, str) or not text:
            raise InvalidFieldError(name, "text that is not empty")
    return Selection(**hashes, **texts)  # type: ignore[arg-type]


def read_hash(field: str, value: Any) -> bytes:
    """Read a key or scope id as replies and lists show it. Raises InvalidFieldError."""
    with suppress(ValueError):
        if isinstance(value, str) and len(value) == 2 * HASH_BYTES:
            return bytes.fromhex(value)
    raise InvalidFieldError(field, f"{2 * HASH_BYTES} hex digits")


def read_switch(fields: Fields, name: str, *, default: bool) -> bool:
    """Take a switch out of the fields. Raises InvalidFieldError."""
    value = fields.pop(name, default)
    if not isinstance(value, bool):
        raise InvalidFieldError(name, "true or false")
    return value


def refuse_other_fields(fields: Iterable[str], *known: str) -> None:
    """Refuse a field that is not known. Raises InvalidFieldError."""
    for name in fields:
        if name not in known:
            raise InvalidFieldError(name, f"one of the fields {', '.join(known)}")


async def forget_scope(scope: bytes, *, writer: CacheWriter, forget_keys: ForgetKeys | None) -> int:
    """Forget the scope; return how many entries it had. Raises StoreError.

    ``forget_keys`` is None where entries are not encrypted. An index that is down keeps vectors
    whose entries are gone: they lead nowhere, and leave when they are next found.
    """
    forgotten = 0
    for _ in range(PASSES):
        before = forgotten
        async for page in walk(writer.entries):
            keys = [entry.key for entry in page if entry.scope == scope]
            await writer.remove(keys)
            forgotten += len(keys)
        if forgotten == before:
            break
    if forget_keys is not None:
        # Last: without the keys, the entries of the scope could not be recognised any more.
        await forget_keys(scope)
    return forgotten


def entry_summary(entry: Entry, now: float) -> Fields:
    """Return what lists and explanations show of an entry; times in seconds."""
    return {
        "key": entry.key.hex(),
        "rule": entry.rule,
        "tags": list(entry.tags),
        "age": max(0, int(now - entry.stored_at)),
        "ttl": int(entry.expires_at - now),
        "tokens": entry.tokens,
    }


async def walk(store: Store) -> AsyncIterator[Sequence[Entry]]:
    """Yield all entries, a page at a time; an entry may be met twice. Raises StoreError."""
    after: bytes | None = None
    while True:
        page = await store.walk(after, PAGE)
        yield page.entries
        if (after := page.after) is None:
            return


@dataclass(frozen=True, slots=True)
class KnownAnswer:
    """Stands in for the upstream ``name``; see the port ``Upstream``."""

    name: str
    answer: dict[str, Any]

    @asynccontextmanager
    async def send(self, outgoing: Outgoing) -> AsyncIterator[LocalReply]:
        del outgoing
        yield LocalReply(200, self.answer, Served(self.name))


@dataclass(frozen=True, slots=True)
class Operations:
    """What an operator may do: fields of a JSON object in, a JSON object out.

    Every action raises InvalidFieldError where the fields are wrong, and StoreError.
    """

    pipeline: Pipeline
    quarantine: Quarantine
    cases: Journal
    """Wrong hits, kept so that a later version of the safety checks can be tried on them."""
    forget_keys: ForgetKeys | None
    make_coalescer: Callable[[Upstream], Coalescer]
    """Gives one for the stand-in of the upstream."""
    key_of: Callable[[Mapping[str, str]], Key | None]
    """Returns the gateway key in headers. Raises UnauthorizedError."""
    holders: Callable[[], Mapping[str, Key]]
    """Returns the holders of gateway keys, with one key of each."""
    hits_of: Callable[[bytes], int] | None = None
    """Returns how often an entry was served; None where one of several workers cannot know."""

    async def entries(
        self, selection: Selection, after: bytes | None, limit: int
    ) -> tuple[Sequence[Entry], bytes | None]:
        """Return up to ``limit`` of the entries selected, and where to go on; None at the end."""
        if selection.key is not None:
            return [entry async for entry in self._select(selection)], None
        while True:
            page = await self.pipeline.store.walk(after, limit)
            found = [entry for entry in page.entries if selection.holds(entry)]
            found = [entry for entry in found if entry.endpoint != SEALED]
            if found or page.after is None:
                return found, page.after
            after = page.after

    def summary(self, entry: Entry) -> Fields:
        return {
            **entry_summary(entry, self.pipeline.now()),
            "scope": entry.scope.hex(),
            "endpoint": entry.endpoint,
            "model": entry.model,
            "upstream": entry.upstream,
            "generation": entry.generation,
            "stored_at": entry.stored_at,
            "expires_at": entry.expires_at,
            "bytes": encoded_size(entry),
            "hits": None if self.hits_of is None else self.hits_of(entry.key),
            "semantic": entry.question is not None and not self.quarantine.holds(entry.key),
        }

    async def purge(self, fields: Fields) -> Fields:
        """Remove the selected entries, or only count them.

        Raises UnfinishedError if some could not be removed, or if nobody here can read them.
        """
        dry_run = read_switch(fields, "dry_run", default=True)
        return await self._purge(parse_selection(fields), dry_run=dry_run)

    async def _purge(self, selection: Selection, *, dry_run: bool) -> Fields:
        counts = {"entries": 0, "bytes": 0, "tokens": 0}
        sample: list[str] = []
        batch: list[bytes] = []
        gone, sealed, has_begun = 0, 0, False
        try:
            async for entry in self._select(selection):
                if not selection.holds(entry):
                    sealed += 1
                    continue
                counts["entries"] += 1
                counts["bytes"] += encoded_size(entry)
                counts["tokens"] += entry.tokens
                if len(sample) < SAMPLE:
                    sample.append(entry.key.hex())
                if dry_run:
                    continue
                batch.append(entry.key)
                if len(batch) == PAGE:
                    has_begun = True
                    await self._remove(batch)
                    gone += len(batch)
                    batch.clear()
            if batch:
                has_begun = True
                await self._remove(batch)
        except StoreError as error:
            if not has_begun:
                raise
            message = f"The store failed: {error}. At least {gone} entries are purged: purge again."
            raise UnfinishedError(message) from error
        if sealed:
            raise UnfinishedError(_SEALED.format(counts["entries"], sealed))
        return {"dry_run": dry_run, **counts, "sample": sample}

    async def wrong(self, fields: Fields) -> Fields:
        """Evict an entry that was served where it did not fit ``question``.

        The key is barred from semantic reuse, whether or not the entry was there. Raises OSError
        where nothing was done, and UnfinishedError.
        """
        refuse_other_fields(fields, "entry", "question")
        question = fields.get("question")
        if not isinstance(question, str | None):
            raise InvalidFieldError("question", "the text that was asked")
        key = read_hash("entry", fields.get("entry"))
        await self.quarantine.add(key)
        try:
            entry = await self.pipeline.store.get(key)
        except StoreError as error:
            raise UnfinishedError(_NOT_EVICTED.format(f"the store failed: {error}")) from error
        if entry is not None:
            case = {
                "time": self.pipeline.now(),
                "entry": key.hex(),
                "model": entry.model,
                "rule": entry.rule,
                "asked": question,
                "stored": entry.question,
            }
            try:
                await self.cases.append(case)
            except OSError as error:
                # The entry stays: calling it wrong again can still keep the case.
                why = "the case cannot be written down"
                raise UnfinishedError(_NOT_EVICTED.format(why)) from error
        try:
            await self._remove([key])
        except StoreError as error:
            raise UnfinishedError(_NOT_EVICTED.format(f"the store failed: {error}")) from error
        return {"entry": key.hex(), "evicted": entry is not None, "semantic": False}

    async def forget(self, fields: Fields) -> Fields:
        """Forget a scope, its keys of encryption included; return what it had."""
        dry_run = read_switch(fields, "dry_run", default=True)
        refuse_other_fields(fields, "scope", "dry_run")
        scope = read_hash("scope", fields.get("scope"))
        counts = await self._purge(Selection(scope=scope), dry_run=True)
        if not dry_run:
            writer = self.pipeline.coalescer.caller.writer
            await forget_scope(scope, writer=writer, forget_keys=self.forget_keys)
        return {**counts, "dry_run": dry_run}

    async def audit(self, fields: Fields) -> Fields:
        """Scan every stored answer with today's detectors; ``purge`` removes what they find.

        Entries of rules that allow personal data are passed over, and so are entries of rules that
        keep it within the end user's scope.
        """
        purge = read_switch(fields, "purge", default=False)
        refuse_other_fields(fields, "purge")
        active = self.pipeline.policies.active
        decisions = active.policy.decisions
        scanned_rules = {each.rule for each in decisions if each.pii is PiiAction.BYPASS}
        passed_over = {each.rule for each in decisions} - scanned_rules
        scanned = failed = purged = 0
        findings: Counter[str] = Counter()
        rules: Counter[str] = Counter()
        async for entry in self._select(Selection()):
            if entry.rule in passed_over:
                continue
            scanned += 1
            try:
                answer = answer_text(Endpoint(entry.endpoint), orjson.loads(entry.result))
                text = "\n".join((entry.question or "", answer, as_names(entry.model)))
                kind = await self.pipeline.scans.scan(active.scanner, text, entry.scope)
            except (ScanFailedError, ValueError):
                # What cannot be looked at must not stay either.
                failed += 1
                kind = "unreadable"
            if kind is not None:
                findings[kind] += 1
                rules[entry.rule] += 1
                if purge:
                    await self._remove([entry.key])
                    purged += 1
        counts = {"scanned": scanned, "failed": failed, "purged": purged}
        return {**counts, "findings": findings, "rules": rules}

    async def scope(self, fields: Fields) -> Fields:
        """Return the scope ids of a client with these headers and this user."""
        refuse_other_fields(fields, "headers", "holder", "user")
        headers, holder, team = self._sender(fields)
        user = fields.get("user")
        if not isinstance(user, str | None):
            raise InvalidFieldError("user", "text")
        users = () if user is None else (user,)
        ids = scope_ids(self.pipeline.secret, identify(headers, holder, team), users)
        return {scope.value: digest.hex() for scope, digest in ids.items()}

    async def load(self, fields: Fields) -> Fields:
        """Store ``answer`` for ``request`` in place of any other, as the tenant of ``headers``.

        Return ``stored`` and, where it was not, the ``reason``.
        """
        refuse_other_fields(fields, "endpoint", "headers", "holder", "request", "answer")
        target = fields.get("endpoint", Endpoint.CHAT.value)
        endpoint, _ = read_endpoint(target)
        headers, holder, team = self._sender(fields)
        for name in ("request", "answer"):
            if not isinstance(fields.get(name), dict):
                raise InvalidFieldError(name, "an object")
        upstream = self.pipeline.coalescer.caller.upstream.name
        coalescer = self.make_coalescer(KnownAnswer(upstream, fields["answer"]))
        pipeline = replace(self.pipeline, coalescer=coalescer)
        observation = Observation(endpoint.value, perf_counter(), perf_counter, ())
        headers["cache-control"] = "no-cache"
        raw, lines = orjson.dumps({**fields["request"], "stream": False}), tuple(headers.items())
        try:
            request = read_request(
                endpoint,
                raw,
                headers=headers,
                fields=lines,
                target=target,
                holder=holder,
                team=team,
            )
            reply, outcome = await pipeline.answer(request, observation)
            reply.close()
            # A bulk load goes no faster than the index.
            await coalescer.caller.writer.settle()
        except RequestError as error:
            raise InvalidFieldError("request", f"a request that can be made ({error})") from None
        finally:
            await coalescer.close()
        call = outcome.call or NO_CALL
        reason = None if call.stored else call.declined or outcome.reason
        return {"stored": call.stored, "reason": reason}

    def team_of(self, holder: str) -> str | None:
        """Return the team of a holder of gateway keys, if there is one."""
        key = self.holders().get(holder)
        return None if key is None else key.team

    def check_holder(self, holder: str) -> None:
        """Raise InvalidFieldError if no gateway key has this holder."""
        holders = self.holders()
        if holder not in holders:
            near = get_close_matches(holder, holders, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise InvalidFieldError("holder", f"the name of a holder of gateway keys{hint}")

    def _sender(self, fields: Fields) -> tuple[dict[str, str], str | None, str | None]:
        """Return headers by lower-case name, the holder of their gateway key, and its team.

        If the gateway has gateway keys, ``holder`` may name the holder instead.
        """
        headers, holder = read_headers(fields.get("headers", {})), fields.get("holder")
        if holder is None:
            try:
                key = self.key_of(headers)
            except UnauthorizedError:
                raise InvalidFieldError(
                    "headers", "a key that is accepted here, or the field holder in its place"
                ) from None
            return headers, None if key is None else key.name, None if key is None else key.team
        if not isinstance(holder, str) or not holder:
            raise InvalidFieldError("holder", "the name of a holder of gateway keys")
        return headers, holder, self.team_of(holder)

    async def _select(self, selection: Selection) -> AsyncIterator[Entry]:
        """Yield the selected entries, and sealed ones, which may be among them."""
        store = self.pipeline.store
        if selection.key is not None:
            entry = await store.get(selection.key)
            if entry is not None and selection.holds(entry):
                yield entry
            return
        seen: set[bytes] = set()
        async for page in walk(store):
            for entry in page:
                if entry.key not in seen and (selection.holds(entry) or entry.endpoint == SEALED):
                    seen.add(entry.key)
                    yield entry

    async def _remove(self, keys: Sequence[bytes]) -> None:
        await self.pipeline.coalescer.caller.writer.remove(keys)
