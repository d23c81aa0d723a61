"""Identities: tenant, scope, cache key, compatibility fingerprint and vector partition.

Law: everything that decides whose answer it is, or which answer, is hashed in; fields are length
prefixed, so no two lists of fields share a byte string. A credential leaves this file only as an
HMAC under the server's secret.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.core.types import KEY_VERSION, Endpoint
from policies.decide import Scope

CREDENTIAL_HEADERS = ("authorization", "api-key", "x-api-key")
_ACCOUNT_HEADERS = ("openai-organization", "openai-project")


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who asks: all None when anonymous. ``credential`` joins what the credential headers hold."""

    credential: bytes | None = field(repr=False)
    credential_sha256: str | None
    organization: str | None
    project: str | None


ANONYMOUS = Tenant(None, None, None, None)


def _joined(*fields: bytes) -> bytes:
    return b"".join(len(field).to_bytes(8, "big") + field for field in fields)


def identify(headers: Mapping[str, str]) -> Tenant:
    """Read the tenant from request headers (lower-case names)."""
    credentials = [headers.get(name) for name in CREDENTIAL_HEADERS]
    organization, project = (headers.get(name) or None for name in _ACCOUNT_HEADERS)
    given = next((value for value in credentials if value), None)
    if given is None and organization is None and project is None:
        return ANONYMOUS
    digest = None
    if given is not None:
        api_key = (given[7:] if given[:7].lower() == "bearer " else given).strip()
        digest = hashlib.sha256(api_key.encode(errors="surrogateescape")).hexdigest()
    joined = _joined(*((value or "").encode(errors="surrogateescape") for value in credentials))
    return Tenant(joined if given is not None else None, digest, organization, project)


def scope_id(secret: bytes, scope: Scope, tenant: Tenant, user: tuple[str, ...]) -> bytes:
    """Return the 32-byte id of the partition that a request may share answers within.

    ``user`` holds every name the request has for its end user. Only the user scope reads it, and
    the caller bypasses the cache where it is empty.
    """
    if scope is Scope.PUBLIC:
        fields = [b"public"]
    else:
        fields = [
            scope.value.encode(),
            b"anonymous" if tenant == ANONYMOUS else b"known",
            tenant.credential or b"",
            (tenant.organization or "").encode(errors="surrogateescape"),
            (tenant.project or "").encode(errors="surrogateescape"),
        ]
        if scope is Scope.USER:
            fields += [name.encode() for name in user]
    return hmac.digest(secret, _joined(*fields), "sha256")


@dataclass(frozen=True, slots=True)
class Partition:
    """What an answer is bound to beside the request's body.

    ``query`` is the query string as it is forwarded: some servers take a credential or a version
    there. ``pii_identity`` names the scan that prompts went through: an entry proves that its
    prompt passed a scan, but only the same scan.
    """

    endpoint: Endpoint
    upstream: str
    query: str
    generation: int
    scope: bytes
    pii_identity: str

    def _digest(self, kind: bytes, form: bytes) -> bytes:
        fields = (
            kind,
            str(KEY_VERSION).encode(),
            str(self.generation).encode(),
            self.endpoint.value.encode(),
            self.upstream.encode(),
            self.query.encode(errors="surrogateescape"),
            self.scope,
            self.pii_identity.encode(),
            form,
        )
        return hashlib.sha256(_joined(*fields)).digest()

    def cache_key(self, form: bytes) -> bytes:
        """Return the exact identity; ``form`` is the canonical form of the whole request."""
        return self._digest(b"key", form)

    def fingerprint(self, form: bytes) -> bytes:
        """Return the compatibility fingerprint; ``form`` leaves the question out."""
        return self._digest(b"fingerprint", form)
