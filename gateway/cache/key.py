"""Identities: tenant, scope, canonical form, cache key, fingerprint, and digests of fields.

Law: all that decides whose answer it is, or which, is hashed. Fields are length prefixed, so no two
lists of fields share a byte string. A credential leaves this file only as an HMAC under the
server's secret. A header becomes part of the key by ``keyed_headers`` of the endpoint's record.

Two bodies share a canonical form only if no upstream can tell them apart. Number lexemes (1, 1.0,
1e0) and the two forms of a message that is one text, or of one input to embed, fold. So does the
order of an object's members, except in data: a model writes the properties of a schema in their
order, and reads the arguments of a call in theirs. Text never folds, and arrays keep their order. A
field is part of the form unless it is known to be neutral (``protocol.endpoints.spec``). Null and
absent stay apart, because some servers treat them differently (vLLM: ``tool_choice: null``). So do
a default and its absence: the upstream may change a default.

A field's digest is short and keyed by the server's secret and the scope, so it tells equality
within one scope and nothing else. The list of digests is bounded; fields beyond share one.
"""

import hashlib
import hmac
import json
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import Any

from gateway.cache.ports import KEY_VERSION
from gateway.protocol import exact_json
from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.http.headers import bearer
from policies.decision import CompressSettings, DocumentSettings, Endpoint, Scope


def key_fields(endpoint: Endpoint, body: dict[str, Any]) -> dict[str, Any]:
    """Return the keyed fields of a parsed body, texts folded.

    That is the body itself where there is nothing to leave out or to fold.
    """
    spec = SPECS[endpoint]
    neutral = spec.neutral
    fields = body
    if not neutral.isdisjoint(body):
        fields = {field: value for field, value in body.items() if field not in neutral}
    if spec.turns is not None:
        return _fold_texts(fields, spec.turns, spec.text_type)
    if spec.is_batch:
        match fields.get(spec.question_field):
            case [str() | list() as only]:  # a batch of one is that one
                return {**fields, spec.question_field: only}
    return fields


def canonical_form(endpoint: Endpoint, body: dict[str, Any]) -> bytes:
    """Return the canonical bytes of a parsed body: its keyed fields, in the order of names.

    A second line has the fields whose order counts, as they were written. So no form without such a
    field belongs to a request with one.
    """
    fields = key_fields(endpoint, body)
    form = exact_json.dumps(fields, sort_keys=True)
    unordered = SPECS[endpoint].unordered
    # From behind, it is found in less than half the time.
    if form.rfind(_NESTED) >= 0 or not fields.keys() <= unordered:
        form += _ordered(fields, unordered)
    return form


_NESTED = b'":{"'
"""How an object begins that is a value of another one; in a string, the last quote is escaped."""


def _ordered(fields: dict[str, Any], unordered: Container[str]) -> bytes:
    """Return a line of the fields whose order counts, nothing if there are none."""
    kept = []
    for name in sorted(fields):
        if type(fields[name]) in (dict, list):
            written = exact_json.dumps(fields[name])
            if (_NESTED if name in unordered else b'{"') in written:
                kept += [exact_json.dumps(name), written]
    return b"\n" + b":".join(kept) if kept else b""


def _fold_texts(fields: dict[str, Any], field: str, kind: str | None) -> dict[str, Any]:
    """Write content that is one text part as that text, in a copy."""
    messages = fields.get(field)
    if type(messages) is not list:
        return fields
    for message in messages:
        if type(message) is dict and type(message.get("content")) is list:
            return {**fields, field: [_fold_message(each, kind) for each in messages]}
    return fields


def _fold_message(message: Any, kind: str | None) -> Any:
    match message:
        case {"content": [{"type": str(given), "text": str(text), **rest}]}:
            if given == kind and not rest:
                return {**message, "content": text}
    return message


_MAX_TENANTS = 1024
"""Of each memo, as the same few tenants ask all the time.

Only values of a request's head are kept, and the server bounds their size.
"""


@dataclass(frozen=True, slots=True)
class Tenant:
    """The client: all None if anonymous. ``credential`` joins the values of credential headers.

    ``team`` is the team of a gateway key's holder.
    """

    credential: bytes | None = field(repr=False)
    credential_sha256: str | None
    organization: str | None
    project: str | None
    team: str | None = None


ANONYMOUS = Tenant(None, None, None, None)


def _join(*fields: bytes) -> bytes:
    return b"".join(len(field).to_bytes(8, "big") + field for field in fields)


def identify(
    headers: Mapping[str, str], holder: str | None = None, team: str | None = None
) -> Tenant:
    """Read the tenant from request headers (lower-case names).

    ``holder`` names the holder of a gateway key, and ``team`` its team. The name makes the tenant
    and not the key, so a new key of the same holder finds what the old one stored.
    """
    tenant = _tenant(
        headers.get("authorization") or None,
        headers.get("api-key") or None,
        headers.get("x-api-key") or None,
        headers.get("openai-organization") or None,
        headers.get("openai-project") or None,
    )
    if holder is None:
        return tenant
    # Two fields, while the credential headers make three: never equal.
    return replace(tenant, credential=_join(b"holder", holder.encode()), team=team)


@lru_cache(maxsize=_MAX_TENANTS)
def _tenant(
    authorization: str | None,
    api_key_header: str | None,
    x_api_key: str | None,
    organization: str | None,
    project: str | None,
) -> Tenant:
    credentials = (authorization, api_key_header, x_api_key)
    given = next((value for value in credentials if value), None)
    if given is None and organization is None and project is None:
        return ANONYMOUS
    digest = None
    if given is not None:
        digest = hashlib.sha256(bearer(given).encode(errors="surrogateescape")).hexdigest()
    joined = _join(*((value or "").encode(errors="surrogateescape") for value in credentials))
    return Tenant(joined if given is not None else None, digest, organization, project)


def scope_id(secret: bytes, scope: Scope, tenant: Tenant, user: tuple[str, ...]) -> bytes:
    """Return the 32-byte id of the partition that a request may share answers within.

    ``user`` holds each name that the request has for its end user. Only the user scope reads it,
    and the caller bypasses the cache if it is empty.
    """
    if scope is Scope.TEAM and tenant.team is None:
        scope = Scope.TENANT
    owner = _owner(scope.value.encode(), _sharer(scope, tenant))
    if scope is Scope.USER:
        owner += _join(*(name.encode() for name in user))
    return hmac.digest(secret, owner, "sha256")


def _sharer(scope: Scope, tenant: Tenant) -> Tenant:
    """Return who shares within a scope, as a tenant."""
    if scope is Scope.PUBLIC:
        return ANONYMOUS
    if scope is Scope.TEAM and tenant.team is not None:
        # In place of the credential, and told apart from each: a holder may have the same name.
        return replace(tenant, credential=_join(b"team", tenant.team.encode()))
    return tenant


def document_owner(secret: bytes, tenant: Tenant) -> bytes:
    """Return the key of the digests of the tenant's documents."""
    return hmac.digest(secret, _owner(b"cache-salt", tenant), "sha256")


def cache_salt(secret: bytes, scope: Scope, tenant: Tenant) -> str:
    """Return the salt that keeps blocks apart in the upstream's prefix cache.

    Who shares answers shares blocks, too. The end users of a tenant count as that tenant.
    """
    return document_owner(secret, _sharer(scope, tenant)).hex()


def scope_ids(secret: bytes, tenant: Tenant, user: tuple[str, ...]) -> dict[Scope, bytes]:
    """Return the scope ids of a request, the user scope only if an end user is named."""
    return {
        scope: scope_id(secret, scope, tenant, user)
        for scope in Scope
        if scope is not Scope.USER or user
    }


def affinity_scopes(secret: bytes, scope: Scope, tenant: Tenant) -> tuple[bytes, ...]:
    """Return the scopes within which a tenant may know state of upstreams; ``scope`` comes first.

    The end users of a tenant count as that tenant.
    """
    ids = scope_ids(secret, tenant, ())
    return tuple(dict.fromkeys((ids.get(scope, ids[Scope.TENANT]), *ids.values())))


def _owner(use: bytes, tenant: Tenant) -> bytes:
    """Return a tenant for one use: always four fields, so that more may follow."""
    return _join(
        use,
        tenant.credential or b"",
        (tenant.organization or "").encode(errors="surrogateescape"),
        (tenant.project or "").encode(errors="surrogateescape"),
    )


@dataclass(frozen=True)
class Partition:
    """All that an answer is bound to beside the request's body.

    ``query`` is the query string as forwarded: some servers take a credential or a version there.
    ``pii_identity`` names the scan of prompts: an entry proves that its prompt passed this scan and
    no other. ``compress`` names the settings that leave out context, empty for none: an answer to a
    shorter prompt is for requests with the same settings. ``headers`` choose a
    version of the API, empty where the endpoint has none.
    """

    endpoint: Endpoint
    upstream: str
    query: str
    generation: int
    scope: bytes
    pii_identity: str
    compress: str = ""
    headers: str = ""

    def key_of(self, body: dict[str, Any]) -> bytes:
        """Return the exact identity of a request, 32 bytes."""
        return self.cache_key(canonical_form(self.endpoint, body))

    def fingerprint_of(self, rest: dict[str, Any]) -> bytes:
        """Return the identity of a request without its question, 32 bytes."""
        return self.fingerprint(canonical_form(self.endpoint, rest))

    def cache_key(self, form: bytes) -> bytes:
        """Return the exact identity; ``form`` is the canonical form of the whole request."""
        return hashlib.sha256(self._prefix + b"key" + form).digest()

    def fingerprint(self, form: bytes) -> bytes:
        """Return the compatibility fingerprint; ``form`` leaves the question out."""
        return hashlib.sha256(self._prefix + b"but" + form).digest()

    @cached_property
    def _prefix(self) -> bytes:
        """Return the bytes hashed before the form; length prefixes make their end unambiguous."""
        more = (self.compress.encode(),) if self.compress else ()
        if self.headers:  # two fields, so that it is never taken for the one before
            more = (*more, b"headers", self.headers.encode(errors="surrogateescape"))
        return _join(
            str(KEY_VERSION).encode(),
            str(self.generation).encode(),
            self.endpoint.value.encode(),
            self.upstream.encode(),
            self.query.encode(errors="surrogateescape"),
            self.scope,
            self.pii_identity.encode(),
            *more,
        )


@lru_cache(maxsize=_MAX_TENANTS)
def compress_identity(settings: CompressSettings, documents: DocumentSettings | None) -> str:
    """Return the identity of these settings; empty if they leave out no content.

    ``documents`` belong to ``prefix``.
    """
    if not settings.enabled or (settings.keep >= 1 and not settings.history):
        return ""
    given = [getattr(settings, each.name) for each in fields(settings)]
    return repr([sorted(each) if isinstance(each, frozenset) else each for each in given]) + repr(
        documents if settings.documents is None else None
    )


def keyed_headers(endpoint: Endpoint, headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the headers of a request that are part of its key: they choose an API's version."""
    return [(name, headers[name]) for name in SPECS[endpoint].keyed_headers if name in headers]


def partition_of(
    place: tuple[Endpoint, str, str, int],
    identities: tuple[str, ...],
    secret: bytes,
    scope: Scope,
    tenant: Tenant,
    *,
    user: tuple[str, ...] = (),
) -> Partition:
    """Return the partition of a request; for ``user`` see ``scope_id``.

    ``place`` is its endpoint, upstream, query and generation, ``identities`` belong to its scan,
    of its compression and of its headers.
    """
    return Partition(*place, scope_id(secret, scope, tenant, user), *identities)


shared_partition = lru_cache(maxsize=_MAX_TENANTS)(partition_of)
"""For a request with a scope that does not depend on its end user."""


Digests = tuple[tuple[str, bytes], ...]

MAX_FIELDS = 40
MAX_ITEMS = 23
"""Messages with a digest each; in a longer conversation those in the middle share one."""
FIRST_ITEMS = 8
LONGEST_NAME = 64
OTHER_FIELDS = "(other fields)"
DIGEST_BYTES = 8


def field_digests(secret: bytes, scope: bytes, endpoint: Endpoint, body: dict[str, Any]) -> Digests:
    """Return (name, digest) of each field that is part of the key, and of each message."""
    key = _digest_key(secret, scope)
    unordered = SPECS[endpoint].unordered
    named = _named_fields(endpoint, key_fields(endpoint, body))
    return tuple([(name, _digest(key, name, value, unordered)) for name, value in named])


@lru_cache(maxsize=_MAX_TENANTS)
def _digest_key(secret: bytes, scope: bytes) -> bytes:
    return hmac.digest(secret, b"field digests" + scope, "sha256")


def _named_fields(endpoint: Endpoint, fields: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    listed = SPECS[endpoint].turns or ""
    items = fields.get(listed)
    plain = {
        name: value for name, value in fields.items() if name != listed or type(items) is not list
    }
    shown = sorted(name for name in plain if len(name) <= LONGEST_NAME)[:MAX_FIELDS]
    for name in shown:
        yield name, plain.pop(name)
    if plain:
        yield OTHER_FIELDS, plain
    if type(items) is list:
        yield from _items(listed, items)


def _items(name: str, items: list[Any]) -> Iterator[tuple[str, Any]]:
    """Name messages by their index from either end, so that equal beginnings and ends match."""
    first, last = len(items), 0
    if first > MAX_ITEMS:
        first, last = FIRST_ITEMS, MAX_ITEMS - FIRST_ITEMS - 1
    for index in range(first):
        yield _item_name(name, index), items[index]
    if last:
        yield _item_name(name, f"{first}:-{last}"), items[first:-last]
    for index in range(-last, 0):
        yield _item_name(name, index), items[index]


@lru_cache(maxsize=512)
def _item_name(name: str, place: int | str) -> str:
    """Return the name of a message; there are few, and all entries in memory share them."""
    return f"{name}[{place}]"


def _digest(key: bytes, name: str, value: Any, unordered: Container[str]) -> bytes:
    try:
        encoded = exact_json.dumps(value, sort_keys=True)
    except TypeError:  # half of a surrogate pair
        encoded = json.dumps(value, sort_keys=True, ensure_ascii=False).encode(
            "utf-8", "surrogatepass"
        )
    field = name.partition("[")[0]  # of a message
    if _NESTED in encoded or field not in unordered:
        encoded += _ordered({field: value}, unordered)
    data = name.encode("utf-8", "surrogatepass") + b"\0" + encoded
    if len(data) <= _REPEATED_BYTES:
        return _digest_again(key, data)
    return hmac.digest(key, data, "sha256")[:DIGEST_BYTES]


_REPEATED_BYTES = 48
"""Of a field such as a model or a temperature, which many requests have in common."""


@lru_cache(maxsize=_MAX_TENANTS)
def _digest_again(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")[:DIGEST_BYTES]


@dataclass(frozen=True, slots=True)
class Difference:
    """A field in which two requests differ."""

    field: str
    how: str
    """``differs``, ``only asked`` or ``only stored``."""


def differences(request: Digests, stored: Digests) -> tuple[Difference, ...]:
    """Return the differences, in the order of the request's fields."""
    theirs = dict(stored)
    found = [
        Difference(name, "differs" if name in theirs else "only asked")
        for name, digest in request
        if theirs.get(name) != digest
    ]
    ours = {name for name, _ in request}
    found += [Difference(name, "only stored") for name, _ in stored if name not in ours]
    return tuple(found)


def nearest(request: Digests, entries: Sequence[Digests]) -> int | None:
    """Return the index of the list with the fewest differences; the last of several."""
    ranks = [
        (len(differences(request, stored)), -index)
        for index, stored in enumerate(entries)
        if stored
    ]
    return -min(ranks)[1] if ranks else None
