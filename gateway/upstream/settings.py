"""One upstream as the operator declares it: where it is, and what its requests carry.

Law: no message, log line or repr shows a key, the value of a header or the value of a query.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final, Self
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    model_validator,
)

from gateway.protocol.http.headers import CREDENTIALS, OF_ONE_CONNECTION
from gateway.protocol.http.messages import Addition
from policies.format.units import TIME, read_time, time_text
from policies.format.yaml_document import read_document

Seconds = Annotated[
    float,
    BeforeValidator(
        lambda value: read_time(value) if isinstance(value, str) else value,
        json_schema_input_type=float | Annotated[str, Field(pattern=f"^{TIME}$")],
    ),
    PlainSerializer(time_text, when_used="json-unless-none"),
]
"""A time: seconds, or a text with a unit. JSON has the text."""

_PATH: Final = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~!$&'()*+,=:@%-]+)+")
_ADDED_PATHS: Final = ("/chat/completions", "/completions", "/embeddings", "/responses")
_ADDED_PATHS_TOO: Final = ("/messages", "/models", "/rerank")
"""Paths of requests, which the gateway puts behind the base path."""

_QUERY_NAME: Final = re.compile(r"[A-Za-z0-9._~-]{1,64}")
_KEY_NAME: Final = re.compile(
    r"(.*[._~-])?(api|access|auth|subscription|client|private)?[._~-]?"
    r"(key|token|secret|password|passwd|sig|signature|credential|code)s?",
    re.IGNORECASE,
)
"""Names of a query's fields that hold a key."""

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_OF_THE_GATEWAY: Final = frozenset(
    {"accept-encoding", "content-encoding", "content-type", "via", "x-request-id"}
)
"""Headers that say what the gateway itself sends and reads."""
_SECRET_HEADER: Final = re.compile(
    r"(.*[-_])?(api[-_]?key|subscription-key|auth|token|secret|password|cookie)"
)
"""Names of headers, in lower case, whose value is a secret."""
_OWN_PREFIX: Final = "x-refrain-"
_LONGEST_VALUE: Final = 4096


def _base_url(value: str) -> str:
    """Return an OpenAI-style base URL without a last slash. Raises ValueError."""
    url = value.rstrip("/")
    shown = "" if re.search(r"[@?#]", url) else f", got {url!r}"  # no part of a key
    place = url.partition("//")[2].partition("/")[0]
    if "@" in place:
        raise ValueError(
            f"expected no user name or password in the URL of {place.rpartition('@')[2]}: "
            "the client's own Authorization is passed on"
        )
    try:
        parts = urlsplit(url)
        well_formed = parts.hostname and parts.port != 0 and not re.search(r"[\s\\]", url)
    except ValueError:
        well_formed = None
    if not well_formed or parts.scheme not in ("http", "https"):
        raise ValueError(f"expected a URL such as http://127.0.0.1:8000/v1{shown}")
    if parts.query or "#" in url:
        raise ValueError(f"expected no # in the URL of {parts.hostname}")
    if not parts.path:
        raise ValueError(f"expected a base path, as in {url}/v1, got {url!r}")
    if not _PATH.fullmatch(parts.path):
        raise ValueError(f"expected a base path of plain segments in the URL of {parts.hostname}")
    for added in (*_ADDED_PATHS, *_ADDED_PATHS_TOO):
        if parts.path.endswith(added):
            raise ValueError(f"expected the URL without {added}, which the gateway adds{shown}")
    return url


def _check_query(query: Any) -> dict[str, str]:
    """Return a fixed query. Raises ValueError, also for a key in it."""
    if not isinstance(query, Mapping):
        raise ValueError("expected a mapping such as {api-version: 2024-10-21}")  # noqa: TRY004
    checked = {}
    for name, value in query.items():
        if not isinstance(name, str) or not _QUERY_NAME.fullmatch(name):
            raise ValueError("expected names of letters, digits and . _ ~ - in the query")
        # A fraction has lost digits: 2024.10 is 2024.1.
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ValueError(  # noqa: TRY004 - pydantic's
                f"expected a text for {name} in the query (put it in quotes)"
            )
        if _KEY_NAME.fullmatch(name):
            raise ValueError(
                f"expected no key in the query ({name}): its place is api_key_env, or headers: "
                "with the name of a variable"
            )
        if not str(value).isprintable() or len(str(value)) > _LONGEST_VALUE:
            raise ValueError(f"expected printable text for {name} in the query")
        checked[name] = str(value)
    return checked


def _split_url(url: str) -> tuple[str, dict[str, str]]:
    """Return a URL without its query, and the query. Raises ValueError."""
    address, _, text = url.partition("?")
    if "#" in text:
        raise ValueError(f"expected no # in the URL of {urlsplit(address).hostname}")
    pairs = parse_qsl(text, keep_blank_values=True)
    if len(dict(pairs)) < len(pairs):
        raise ValueError("expected each name once in the query of the URL")
    return address, _check_query(dict(pairs))


def written_query(query: Mapping[str, str]) -> str:
    """Return a query as it stands in a URL, without a question mark."""
    return urlencode(query, quote_via=quote)


def _url_with_query(value: str) -> str:
    address, query = _split_url(value)
    return _base_url(address) + (f"?{written_query(query)}" if query else "")


UrlWithQuery = Annotated[str, AfterValidator(_url_with_query)]
"""The whole upstream of ``--upstream``: base URL, and a fixed query if there is one."""


def _matches(pattern: str, expected: str) -> AfterValidator:
    def check(value: str) -> str:
        if re.fullmatch(pattern, value) is None:
            raise ValueError(f"expected {expected}")
        return value

    return AfterValidator(check)


_VARIABLE_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_NAME: Final = _matches(r"[A-Za-z0-9._:/-]{1,128}", "a word of letters, digits and . _ : / -")
_VARIABLE: Final = _matches(_VARIABLE_NAME, "the name of an environment variable with the key")
_ADDRESS: Final = _matches(
    r"(?a)(\[[\w:.]+\]|[\w.-]+):(?!0)[1-6]?\d{1,4}", "host and port such as p1.internal:8200"
)
_PROBE: Final = _matches(r"auto|off|/[!-~]*", "auto, off or a path such as /health")


class HeaderValue(BaseModel):
    """The value of a fixed header: ``text``, or the value of the environment variable ``env``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str | None = Field(default=None, repr=False)
    env: str | None = None


def _read_headers(value: object) -> object:
    """Return fixed headers by name. Raises ValueError, which quotes names alone."""
    if not isinstance(value, Mapping):
        raise ValueError("expected a mapping such as {X-Team: search}")  # noqa: TRY004 - pydantic's
    names = [name.lower() if isinstance(name, str) else "" for name in value]
    for name, lower in zip(value, names, strict=True):
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise ValueError("expected names of headers: letters, digits and - without spaces")
        if names.count(lower) > 1:
            raise ValueError(f"expected each header once, {name} is there twice")
        if lower in CREDENTIALS:
            raise ValueError(
                f"expected no {name}: for the upstream's key there are auth: and api_key_env"
            )
        if lower in OF_ONE_CONNECTION or lower in _OF_THE_GATEWAY or lower.startswith(_OWN_PREFIX):
            raise ValueError(f"expected no {name}: the gateway sets it, or it is of one connection")
    return {name: _read_header(name, each) for name, each in value.items()}


def _read_header(name: str, value: object) -> HeaderValue:
    expected = f"expected a text for {name}, or {{env: VARIABLE}}"
    match value:
        case HeaderValue():
            return value
        case str() | {"text": str()} if _SECRET_HEADER.fullmatch(name.lower()):
            raise ValueError(f"expected {{env: VARIABLE}} for {name}, whose value is a secret")
        case str() if value and check_header_value(value):
            return HeaderValue(text=value)
        case {"text": str(text), "env": None} if check_header_value(text):
            return HeaderValue(text=text)
        case {"env": str(variable), **rest} if rest in ({}, {"text": None}):
            if re.fullmatch(_VARIABLE_NAME, variable):
                return HeaderValue(env=variable)
            raise ValueError(f"{expected} with the name of an environment variable")
        case str():
            raise ValueError(f"{expected}: printable ASCII on one line, without spaces around it")
        case _:
            raise ValueError(expected)


def check_header_value(value: str) -> bool:
    """Tell whether a text can stand in a header of a request."""
    plain = value.isascii() and value.isprintable() and value == value.strip()
    return plain and 0 < len(value) <= _LONGEST_VALUE


def _read_rename(value: object) -> object:
    """Return the upstream's name of each alias. Raises ValueError."""
    if not isinstance(value, Mapping):
        raise ValueError("expected a mapping such as {gpt-4o: my-deployment}")  # noqa: TRY004
    for alias, model in value.items():
        for name in (alias, model):
            if not isinstance(name, str) or not name.strip() or not name.isprintable():
                raise ValueError("expected the names of two models (put numbers in quotes)")
        if re.search(r"[*?\[]", alias):
            raise ValueError(f"expected the name of one model, which {alias} is not")
        if alias == model:
            raise ValueError(f"expected another name for {alias}: it stands for itself")
        if model in value:
            raise ValueError(
                f"expected the upstream's own name for {alias}: {model} is an alias itself"
            )
    return value


def _is_address(host: str) -> bool:
    with suppress(ValueError):
        return bool(ip_address(host))
    return False


@cache
def presets() -> Mapping[str, Mapping[str, Any]]:
    """Return what is known of providers and servers, by the name of their preset."""
    file = files("gateway.upstream") / "presets.yaml"
    known: Mapping[str, Mapping[str, Any]] = read_document(file.read_text(), str(file)).data
    return known


def _with_preset(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an upstream with the preset's values where it has none. Raises ValueError."""
    name = given.get("preset")
    if name is None:
        return given
    known = presets()
    preset = known.get(name) if isinstance(name, str) else None
    if preset is None:
        near = get_close_matches(str(name), known, n=1)
        hint = f"; is {near[0]} meant?" if near else ""
        raise ValueError(f"expected one of {', '.join(known)} for preset, got {name!r}{hint}")
    values = {
        key: value for key, value in preset.items() if key not in ("needs_url", "free", "realtime")
    }
    headers, fixed = given.get("headers", {}), values.pop("headers", {})
    if "url" not in given and "url" not in values:
        raise ValueError(f"expected a url beside preset: {name}, such as {preset['needs_url']}")
    if fixed and isinstance(headers, Mapping):
        ours = {str(header).lower() for header in headers}
        kept = {header: fixed[header] for header in fixed if header not in ours}
        given = {**given, "headers": {**kept, **headers}}
    return {**values, **given}


_ANTHROPIC: Final = re.compile(r"https?://(?:[^/:?#@]+\.)?anthropic\.com(?![^/:?#])", re.IGNORECASE)


def _with_anthropic(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Set the form of Anthropic's own API by its host, and how an API of its form reads its key."""
    url, known = given.get("url"), dict(given)
    if isinstance(url, str) and _ANTHROPIC.match(url):
        known.setdefault("api", "anthropic")
    if known.get("api") == "anthropic":
        known.setdefault("auth", "x-api-key")
    return known


class DiscoveryFile(BaseModel):
    """A file with the addresses of an upstream's replicas."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: Path


def _read_discover(value: object) -> object:
    """Return how replicas are found. Raises ValueError."""
    match value:
        case None | "dns" | "srv" | DiscoveryFile() | {"file": str() | Path()} if (
            not isinstance(value, Mapping) or len(value) == 1
        ):
            return value
        case _:
            raise ValueError("expected dns, srv or {file: replicas.txt} for discover")


class UpstreamSettings(BaseModel):
    """One upstream; a preset fills what is not given."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        # Most presets have an address.
        json_schema_extra={
            "required": [],
            "anyOf": [{"required": ["url"]}, {"required": ["preset"]}],
        },
    )

    url: Annotated[str, AfterValidator(_base_url)]
    """Base URL. Its path stands in the place of `/v1`, such as `/v1beta/openai` or
    `/openai/deployments/NAME`. Its query, if there is one, becomes `query`."""
    query: Annotated[
        dict[str, str], BeforeValidator(_check_query, json_schema_input_type=dict[str, str | int])
    ] = Field(default={}, repr=False)
    """Fixed query of each request, such as `{api-version: 2024-10-21}`."""
    name: Annotated[str, _NAME] | None = None
    """Its name in headers, metrics and logs. Unset: host and port."""
    preset: str | None = None
    """A provider or server whose address and manner are known. It fills what is not given."""
    api: str = Field(default="openai", pattern="^(openai|anthropic)$")
    """Form of its requests and replies. Unset for hosts below anthropic.com: `anthropic`."""
    models: tuple[str, ...] = Field(default=("*",), min_length=1)
    """Globs of the models that it serves."""
    rename: Annotated[dict[str, str], BeforeValidator(_read_rename)] = {}
    """Aliases: names that clients use, with its own name of each model."""
    tier: int = Field(default=1, ge=1, le=100)
    """Fallback order. A higher tier is used only if no upstream of a lower tier is healthy and has
    room."""
    weight: float = Field(default=1.0, gt=0, le=1000)
    """Its capacity, relative to others of its tier."""
    discover: Annotated[str | DiscoveryFile | None, BeforeValidator(_read_discover)] = None
    """Where the addresses of its replicas are: `dns`, `srv`, or `{file: replicas.txt}`. Each
    replica is an upstream with these settings. Unset: it has no replicas."""
    role: str | None = Field(default=None, pattern="^(prefill|decode)$")
    """What its engine does, if prefill is apart from decode. Unset: both."""
    kv_transfer: Annotated[str, _ADDRESS] | None = None
    """Of `role: prefill`: host and port of `--kv-transfer`, as decode engines know them."""
    load_signal: bool = False
    """Whether the gateway reads the engine's figures of its load. Presets of engines set it."""
    cache_salt: bool = False
    """Whether it knows `cache_salt`, which keeps tenants apart in its prefix cache. The presets of
    engines that do set it."""
    auth: str = Field(default="bearer", pattern="^(bearer|api-key|x-api-key|none)$")
    """The header with its key. `none`: it gets no credential, of the gateway or of a client. Unset
    with `api: anthropic`: `x-api-key`."""
    api_key_file: Path | None = None
    """File with its own key."""
    api_key_env: Annotated[str, _VARIABLE] | None = Field(default=None, repr=False)
    """Variable with its own key, which replaces the clients' keys and needs `gateway_keys`. Unset:
    REFRAIN_UPSTREAM_API_KEY."""
    headers: Annotated[
        dict[str, HeaderValue],
        BeforeValidator(_read_headers, json_schema_input_type=dict[str, str | HeaderValue]),
    ] = Field(default={}, repr=False)
    """Fixed headers of each request: a text, or `{env: VARIABLE}`."""
    max_concurrency: int | None = Field(default=None, ge=1)
    """Requests in flight at a time. Unset: no bound."""
    requests_per_minute: int | None = Field(default=None, ge=1, le=1_000_000)
    """Requests in any one minute. Unset: no bound."""
    connect_timeout: Seconds | None = Field(default=None, gt=0)
    """As the setting of the gateway. Unset: the gateway's."""
    read_timeout: Seconds | None = Field(default=None, gt=0)
    """As the setting of the gateway. Unset: the gateway's. For a plain reply: until its head."""
    first_token_timeout: Seconds | None = Field(default=None, gt=0)
    """As the setting of the gateway. Unset: the gateway's."""
    between_tokens_timeout: Seconds | None = Field(default=None, gt=0)
    """As the setting of the gateway. Unset: the gateway's."""
    probe: Annotated[str, _PROBE] = "auto"
    """How the gateway probes it: `auto`, `off`, or the path of the probe, such as `/health`."""
    accepts: tuple[Addition, ...] | None = None
    """The additions to requests that it accepts. Unset: `upstream_accepts`."""

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, given: Any) -> Any:
        """Fill in what the preset and the host tell, and move the URL's query to its own field."""
        if not isinstance(given, Mapping):
            return given
        given = _with_anthropic(_with_preset(given))
        url, query = given.get("url"), given.get("query", {})
        if not isinstance(url, str) or "?" not in url or not isinstance(query, Mapping):
            return given
        url, in_url = _split_url(url)
        if not in_url.keys().isdisjoint(query):
            raise ValueError("expected each name once: in the query of the url, or in query:")
        return {**given, "url": url, "query": {**in_url, **query}}

    @model_validator(mode="after")
    def _check_key(self) -> Self:
        if self.api_key_file is not None and self.api_key_env is not None:
            raise ValueError("expected api_key_file or api_key_env, not both")
        if self.has_key and self.auth == "none":
            raise ValueError("expected no key beside auth: none, which sends none")
        return self

    @model_validator(mode="after")
    def _check_discover(self) -> Self:
        parts = urlsplit(self.url)
        if self.discover == "srv" and parts.port is not None:
            raise ValueError(
                "expected no port in the url beside discover: srv, since SRV records have the ports"
            )
        if self.discover == "dns" and parts.port is None:
            raise ValueError(
                "expected a port in the url beside discover: dns, since addresses have none"
            )
        if self.discover in ("dns", "srv") and _is_address(parts.hostname or ""):
            raise ValueError(
                f"expected a host name in the url beside discover: {self.discover}, got an address"
            )
        return self

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        if (self.role == "prefill") is (self.kv_transfer is None):
            raise ValueError("expected kv_transfer: HOST:PORT beside role: prefill, and only there")
        if self.role is not None and self.preset != "refrain":
            raise ValueError("expected preset: refrain beside role: only its engines have roles")
        if self.kv_transfer and (self.discover is not None or self.rename):
            raise ValueError("expected no discover and no rename beside role: prefill")
        return self

    @property
    def label(self) -> str:
        """Its name: the given one, else host and port."""
        return self.name or urlsplit(self.url).netloc

    @property
    def identity(self) -> str:
        """What keys say of it: the whole URL and the fixed headers, which may select a version.

        Of the headers it has a digest, in which a variable stands for its value.
        """
        url = f"{self.url}?{written_query(self.query)}" if self.query else self.url
        if not self.headers:
            return url
        fixed = sorted((name.lower(), one.text, one.env) for name, one in self.headers.items())
        digest = hashlib.blake2b(json.dumps(fixed).encode(), digest_size=8).hexdigest()
        return f"{url}#{digest}"

    @property
    def has_key(self) -> bool:
        """Tell whether it has its own key."""
        return self.api_key_file is not None or self.api_key_env is not None

    @property
    def is_free(self) -> bool:
        """Tell whether its tokens cost nothing, unless the file of prices says so."""
        return self.preset is not None and bool(presets()[self.preset].get("free"))

    @property
    def realtime(self) -> bool:
        """Whether it may have `/v1/realtime`: of a server without a preset nobody knows."""
        if self.preset is not None:
            return bool(presets()[self.preset].get("realtime"))
        return self.api != "anthropic"

    @property
    def declares_models(self) -> bool:
        """Tell whether it names models, and so does not serve all."""
        return self.models != ("*",) or bool(self.rename)


def alias_identities(upstreams: Sequence[UpstreamSettings]) -> dict[str, str]:
    """Return what keys say of each alias in place of the upstreams' identity.

    That is the first upstream that renames it, and every model that may answer. So an alias that
    stands for something else finds no older entries, and one more replica changes nothing.
    """
    first: dict[str, UpstreamSettings] = {}
    for one in upstreams:
        for alias in one.rename:
            first.setdefault(alias, one)
    identities = {}
    for alias, leader in first.items():
        answering = {one.rename[alias] for one in upstreams if alias in one.rename}
        if any(_names(one, alias) for one in upstreams if alias not in one.rename):
            answering.add(alias)
        identities[alias] = f"{leader.identity}#{json.dumps(sorted(answering))}"
    return identities


def _names(one: UpstreamSettings, model: str) -> bool:
    """Tell whether an upstream serves an alias of others under the same name."""
    return "*" not in one.models and any(fnmatchcase(model, glob) for glob in one.models)
