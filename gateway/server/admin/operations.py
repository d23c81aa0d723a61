"""The operator's actions on the cache: list, purge, forget a scope, report a wrong hit, scan again.

Laws. Nothing is selected by accident: an empty selection, an unknown field or a wrong type is
refused with the field's name, and several fields must all hold. A dry run gives the same figures
as the purge, and what is purged is gone from store and index alike.

A wrong hit is evicted, and its entry answers no question of the same meaning while its key is in
quarantine.

What was stored for a scope before it is forgotten is found by nobody afterwards, in memory, on disk
or by meaning; with encryption not even in a copy of the files. Requests of the scope that come
meanwhile are stored anew, so shut the client out first.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import orjson

from gateway.cache.append_files import Journal
from gateway.cache.pii_scan import ScanFailedError, Scans
from gateway.cache.ports import Entry, ForgetKeys, PolicySource, Quarantine, Store, UnfinishedError
from gateway.protocol.conversation import answer_text, as_names
from gateway.protocol.errors import UnauthorizedError
from gateway.semantic.ports import SemanticIndex, SemanticUnavailableError
from policies.decision import Endpoint, PiiAction

PAGE = 256
"""Entries read at a time: the loop is free in between."""
PASSES = 3
"""What is stored while the store is walked is met by the next walk."""
SAMPLE = 10
HASH_BYTES = 32
_HASHES = ("key", "scope")
_TEXTS = ("model", "tag", "rule")
SELECTION_FIELDS = (*_HASHES, *_TEXTS, "all")


class InvalidFieldError(ValueError):
    """The value of a field is not what is expected; ``field`` is its name."""

    def __init__(self, field: str, expected: str) -> None:
        super().__init__(f"{field}: expected {expected}")
        self.field = field


@dataclass(frozen=True, slots=True)
class Selection:
    """Entries for which every field given holds; ``model`` is a glob."""

    key: bytes | None = None
    scope: bytes | None = None
    model: str | None = None
    tag: str | None = None
    rule: str | None = None

    def holds(self, entry: Entry) -> bool:
        """Tell whether the entry is among those selected."""
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
    texts = {name: _text(name, fields[name]) for name in _TEXTS if name in fields}
    return Selection(**hashes, **texts)  # type: ignore[arg-type]


def read_hash(field: str, value: Any) -> bytes:
    """Read a key or scope id as replies and lists show it. Raises InvalidFieldError."""
    if isinstance(value, str) and len(value) == 2 * HASH_BYTES:
        try:
            return bytes.fromhex(value)
        except ValueError:
            pass
    raise InvalidFieldError(field, f"{2 * HASH_BYTES} hex digits")


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidFieldError(field, "text that is not empty")
    return value


def read_headers(value: object) -> dict[str, str]:
    """Read headers, whose names come back in lower case. Raises InvalidFieldError."""
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise InvalidFieldError("headers", "an object of texts")
    return {name.lower(): text for name, text in value.items()}


def read_holder(
    given: object, headers: Mapping[str, str], holder_of: Callable[[Mapping[str, str]], str | None]
) -> str | None:
    """Return whose gateway key is meant: as it is ``given``, else as the headers' key says.

    Raises InvalidFieldError where keys are in use and the headers have none that is accepted.
    """
    if given is not None:
        if not isinstance(given, str) or not given:
            raise InvalidFieldError("holder", "the name of a holder of gateway keys")
        return given
    try:
        return holder_of(headers)
    except UnauthorizedError:
        raise InvalidFieldError(
            "headers", "a key that is accepted here, or the field holder in its place"
        ) from None


def read_switch(fields: dict[str, Any], name: str, *, default: bool) -> bool:
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


async def forget_scope(
    scope: bytes, *, store: Store, semantic: SemanticIndex | None, forget_keys: ForgetKeys | None
) -> int:
    """Forget the scope; return how many entries it had. Raises StoreError.

    ``forget_keys`` is None where entries are not encrypted. An index that is down keeps vectors
    whose entries are gone: they lead nowhere, and leave when they are next found.
    """
    forgotten = 0
    for _ in range(PASSES):
        before = forgotten
        async for page in walk(store):
            keys = [entry.key for entry in page if entry.scope == scope]
            await remove(keys, store=store, semantic=semantic)
            forgotten += len(keys)
        if forgotten == before:
            break
    if forget_keys is not None:
        # Last: without the keys, nobody could tell any more which entries are the scope's.
        await forget_keys(scope)
    return forgotten


async def walk(store: Store) -> AsyncIterator[Sequence[Entry]]:
    """Yield all entries, a page at a time; an entry may be met twice. Raises StoreError."""
    after: bytes | None = None
    while True:
        page = await store.walk(after, PAGE)
        yield page.entries
        if (after := page.after) is None:
            return


async def remove(keys: Sequence[bytes], *, store: Store, semantic: SemanticIndex | None) -> None:
    """Take entries out of store and index. Raises StoreError."""
    for key in keys:
        await store.delete(key)
    if semantic is not None and keys:
        # An index that is down keeps a vector whose entry is gone: never a hit.
        with suppress(SemanticUnavailableError):
            await semantic.remove(keys)


@dataclass(slots=True)
class Purged:
    """What a purge removed, or would remove; ``sample`` are some of the keys."""

    entries: int = 0
    bytes: int = 0
    tokens: int = 0
    sample: list[str] = field(default_factory=list)

    def count(self, entry: Entry, size: int) -> None:
        """Take note of an entry."""
        self.entries += 1
        self.bytes += size
        self.tokens += entry.tokens
        if len(self.sample) < SAMPLE:
            self.sample.append(entry.key.hex())


@dataclass(slots=True)
class Rescan:
    """What today's detectors find in what is stored; ``findings`` by kind, ``rules`` by rule."""

    scanned: int = 0
    failed: int = 0
    purged: int = 0
    findings: dict[str, int] = field(default_factory=dict)
    rules: dict[str, int] = field(default_factory=dict)

    def found(self, kind: str, rule: str) -> None:
        """Count a finding."""
        self.findings[kind] = self.findings.get(kind, 0) + 1
        self.rules[rule] = self.rules.get(rule, 0) + 1


@dataclass(frozen=True, slots=True)
class Operations:
    """The operator's use cases over the ports."""

    store: Store
    semantic: SemanticIndex | None
    quarantine: Quarantine
    cases: Journal
    """Wrong hits, kept so that a later version of the safety checks can be tried on them."""
    policies: PolicySource
    scans: Scans
    forget_keys: ForgetKeys | None
    size: Callable[[Entry], int]
    now: Callable[[], float]

    async def entries(self, selection: Selection, after: bytes | None, limit: int) -> "Listed":
        """Return up to ``limit`` of the entries selected, and where to go on."""
        if selection.key is not None:
            found = [entry async for entry in self._selected(selection)]
            return Listed(found, None)
        while True:
            page = await self.store.walk(after, limit)
            found = [entry for entry in page.entries if selection.holds(entry)]
            if found or page.after is None:
                return Listed(found, page.after)
            after = page.after

    async def purge(self, selection: Selection, *, dry_run: bool) -> Purged:
        """Remove what is selected, or only count it. Raises StoreError."""
        purged = Purged()
        batch: list[bytes] = []
        async for entry in self._selected(selection):
            purged.count(entry, self.size(entry))
            if not dry_run:
                batch.append(entry.key)
                if len(batch) == PAGE:
                    await self._remove(batch)
                    batch = []
        await self._remove(batch)
        return purged

    async def wrong(self, key: bytes, asked: str | None) -> Entry | None:
        """Evict an entry that was served where it did not fit; return it, None if it was not there.

        ``asked`` is the question it was served for. The key is barred from semantic reuse either
        way. Raises StoreError, OSError where nothing was done, and UnfinishedError.
        """
        await self.quarantine.add(key)
        entry = await self.store.get(key)
        if entry is not None:
            await self._keep_case(entry, asked)
        await self._remove([key])
        return entry

    async def forget(self, scope: bytes, *, dry_run: bool) -> Purged:
        """Forget a scope, its keys of encryption included; return what it had.

        Raises StoreError.
        """
        purged = await self.purge(Selection(scope=scope), dry_run=True)
        if not dry_run:
            await forget_scope(
                scope, store=self.store, semantic=self.semantic, forget_keys=self.forget_keys
            )
        return purged

    async def rescan(self, *, purge: bool) -> Rescan:
        """Scan every stored answer with today's detectors; ``purge`` removes what they find.

        Entries of rules that allow personal data are passed over, and so are those of rules that
        keep it within the end user's scope.
        """
        active = self.policies.active
        decisions = [rule.decision for rule in active.policy.rules] + [active.policy.default]
        scanning = {d.rule for d in decisions if d.pii is PiiAction.BYPASS}
        known = {d.rule for d in decisions}
        result = Rescan()
        async for entry in self._selected(Selection()):
            if entry.rule in known and entry.rule not in scanning:
                continue
            result.scanned += 1
            try:
                answer = answer_text(Endpoint(entry.endpoint), orjson.loads(entry.result))
                text = "\n".join((entry.question or "", answer, as_names(entry.model)))
                kind = await self.scans.scan(active.scanner, text, entry.scope)
            except (ScanFailedError, ValueError):
                # What cannot be looked at must not stay either.
                result.failed += 1
                kind = "unreadable"
            if kind is not None:
                result.found(kind, entry.rule)
                if purge:
                    await self._remove([entry.key])
                    result.purged += 1
        return result

    async def _selected(self, selection: Selection) -> AsyncIterator[Entry]:
        if selection.key is not None:
            entry = await self.store.get(selection.key)
            if entry is not None and selection.holds(entry):
                yield entry
            return
        seen: set[bytes] = set()
        async for page in walk(self.store):
            for entry in page:
                if entry.key not in seen and selection.holds(entry):
                    seen.add(entry.key)
                    yield entry

    async def _keep_case(self, entry: Entry, asked: str | None) -> None:
        case = {
            "time": self.now(),
            "entry": entry.key.hex(),
            "model": entry.model,
            "rule": entry.rule,
            "asked": asked,
            "stored": entry.question,
        }
        try:
            await self.cases.append(case)
        except OSError as error:
            # The entry stays: calling it wrong again can still keep the case.
            message = "The key is barred from semantic reuse, but the case cannot be written down: "
            raise UnfinishedError(message + "the entry was not evicted.") from error

    async def _remove(self, keys: Sequence[bytes]) -> None:
        await remove(keys, store=self.store, semantic=self.semantic)


@dataclass(frozen=True, slots=True)
class Listed:
    """Some entries, and where to go on; None at the end."""

    entries: Sequence[Entry]
    after: bytes | None
