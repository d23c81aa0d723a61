"""Settings of the gateway: flags over REFRAIN_* environment over refrain.yaml over defaults.

Law: every message names where the value came from: the flag, the variable, or the file with its
line and key. A message quotes no value that may hold a secret.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final, Self
from urllib.parse import parse_qsl, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from gateway.protocol.http.messages import Addition
from gateway.upstream.settings import Seconds, UpstreamSettings, UrlWithQuery
from policies.format.units import SIZE, read_size, size_text
from policies.format.yaml_document import (
    Document,
    PolicyError,
    key_path,
    policy_text,
    read_document,
)

Size = Annotated[
    int,
    BeforeValidator(
        lambda value: read_size(value) if isinstance(value, str) else value,
        json_schema_input_type=int | Annotated[str, Field(pattern=f"^{SIZE}$")],
    ),
    PlainSerializer(size_text, when_used="json"),
]
"""A size: bytes, or a text with a unit. JSON has the text."""

REDIS: Final = ("redis", "redis")
SERVERS: Final = {
    "store": dict.fromkeys(("redis", "rediss", "unix", "redis+cluster", "rediss+cluster"), REDIS),
    "vectors": dict.fromkeys(("http", "https"), ("qdrant_client", "qdrant")),
}
"""Of settings that may name a server: the schemes of URLs, with their library and its extra."""

_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_IS_ONE: Final[dict[str, tuple[str, Callable[[str], bool]]]] = {
    "db": ("a number", str.isdecimal),
    "ssl_cert_reqs": ("none, optional or required", {"none", "optional", "required"}.__contains__),
    "ssl_check_hostname": ("true or false", lambda value: value.lower() in ("true", "false")),
}
_OPTIONS: Final = tuple(sorted((*_FILES, *_IS_ONE)))


def _check_store(url: str) -> str:
    # Nothing is quoted: a URL may hold a password.
    if url in ("disk", "memory"):
        return url
    expected = "expected disk, memory or a URL such as redis://redis.example:6379/0"
    try:
        parts = urlsplit(url)
        place = parts.path if parts.scheme == "unix" else parts.hostname
        well_formed = bool(place) and (parts.port is None or parts.port > 0)
    except ValueError:
        raise ValueError(expected) from None
    if parts.scheme not in SERVERS["store"] or not well_formed:
        raise ValueError(f"{expected}; schemes are {', '.join(SERVERS['store'])}")
    database = parts.path.strip("/")
    if parts.scheme != "unix" and database and not database.isdecimal():
        raise ValueError(f"{expected}; behind the host stands the number of a database")
    for name, value in _options(url).items():
        if name not in _OPTIONS:
            raise ValueError(f"expected no options in the URL but {', '.join(_OPTIONS)}")
        if name in _IS_ONE and not _IS_ONE[name][1](value):
            raise ValueError(f"expected {_IS_ONE[name][0]} for {name} in the URL")
    return url


def tls_files(url: str) -> dict[str, Path]:
    """Return the files that the URL's options name, by option."""
    return {name: Path(value) for name, value in _options(url).items() if name in _FILES}


def _options(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))


def _split(value: object) -> object:
    return value.split() if isinstance(value, str) else value


def _split_or_none(value: object) -> object:
    return () if value == "none" else _split(value)


def _check_vectors(value: str) -> str:
    if value == "faiss":
        return value
    parts = urlsplit(value)
    if "@" in parts.netloc:
        raise ValueError(
            f"expected no user name or password in the URL of {parts.hostname}: "
            "the key goes into REFRAIN_QDRANT_API_KEY"
        )
    if parts.scheme not in SERVERS["vectors"] or not parts.hostname:
        raise ValueError(f"expected faiss or a URL such as http://127.0.0.1:6333, got {value!r}")
    return value.rstrip("/")


def _check_dns_server(value: str) -> str:
    try:
        parts = urlsplit(f"//{value}")
        ip_address(parts.hostname or "")
        is_place = parts.netloc == value and "@" not in value and parts.port != 0
    except ValueError:
        is_place = False
    if not is_place:
        raise ValueError("expected the IP address of a name server, such as 127.0.0.1:8600")
    return value


def _check_list(value: object) -> object:
    if isinstance(value, str):
        raise ValueError("expected a list of mappings, in refrain.yaml")  # noqa: TRY004 - pydantic's
    return value


def _check_names(value: tuple[UpstreamSettings, ...]) -> tuple[UpstreamSettings, ...]:
    for name, count in Counter(upstream.label for upstream in value).items():
        if count > 1:
            raise ValueError(f"expected a separate name for each upstream, {name!r} is there twice")
    if value and all(one.kv_transfer for one in value):
        raise ValueError("expected an upstream beside those with role: prefill: they answer nobody")
    return value


ENVIRONMENT_PREFIX = "REFRAIN_"
SECRETS = {
    "admin_token": "Lets operators use /admin and its page, from other machines too.",
    "encryption_keys": "Master keys of the encryption of entries.",
    "qdrant_api_key": "Key of the Qdrant server.",
    "secret": "The secret behind scope ids. Gateways that share entries need the same.",
    "store_password": "Password of Redis.",
    "upstream_api_key": "Replaces clients' credentials at the upstream. Needs `gateway_keys`.",
}
"""From the environment alone, or with ``_file`` behind the name from a file that it names."""

_OTHERS = (
    *("parent_pipe", "worker_settings", "instance", "seat"),
    *("data", "model", "publish", "redis_memory"),
)
"""Variables of other parts: processes, benchmarks, compose.yaml."""


class SettingsError(Exception):
    """A setting is missing, unknown or wrong; the message names where it came from."""


class Settings(BaseModel):
    """Every setting of `refrain serve`. Sizes and times may have a unit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    upstream: Annotated[
        tuple[UrlWithQuery, ...],
        BeforeValidator(_split, json_schema_input_type=str | tuple[str, ...]),
    ] = ()
    """Base URLs, mostly ending in /v1: one, or several replicas of the same."""
    upstreams: Annotated[
        tuple[UpstreamSettings, ...], BeforeValidator(_check_list), AfterValidator(_check_names)
    ] = ()
    """The long form of `upstream`: a list of mappings."""
    upstream_name: str | None = None
    """Name of the upstream in cache keys, in place of the (first) URL. With it, the address can
    change without loss of entries."""
    default_model: str | None = Field(default=None, min_length=1, max_length=256)
    """The model of requests that name none."""
    unknown_models: str | None = Field(default=None, pattern="^(refuse|pass)$")
    """What becomes of a model that no upstream declares: `refuse` (a 404 with the list of models),
    or `pass` (an upstream decides). Unset: by the upstreams."""
    upstream_routing: str = Field(default="prefix", pattern="^(prefix|load)$")
    """How one of several upstreams is chosen: by the cached part of the prompt, or by load alone.
    """
    upstream_accepts: Annotated[
        tuple[Addition, ...] | None,
        BeforeValidator(_split_or_none, json_schema_input_type=str | tuple[Addition, ...] | None),
    ] = None
    """The additions to requests that upstreams accept. Unset: all. In the environment: words, or
    `none`."""
    upstream_cache_salt: bool | None = None
    """Whether the upstreams know `cache_salt`: they then get a separate value for each scope.
    Unset: `true` if each upstream has `cache_salt: true`, as the presets of engines set it."""
    upstream_warm_up: bool = False
    """Whether an upstream that recovers gets the most used prompt beginnings before requests."""
    dns_server: Annotated[str, AfterValidator(_check_dns_server)] | None = None
    """IP address of the name server for `discover`, with its port if it is not 53. Unset: the name
    servers of /etc/resolv.conf."""
    gateway_keys: Path | None = None
    """File of the keys that the gateway accepts. Unset: clients' own keys are forwarded."""
    denied_keys: Path | None = None
    """File of keys that the gateway refuses, in the same form."""
    key_limits_fail: str = Field(default="open", pattern="^(open|closed)$")
    """Whether keys with limits may be used (`open`) while the gateway cannot know what they have
    used."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8080, ge=0, le=65535)
    """Port to listen on."""
    ui: bool = True
    """Whether browsers get the operator's page."""
    data_dir: Path = Path(".refrain")
    """Folder of entries, vectors and the secret. One gateway uses it at a time: a second one is
    refused, with the pid of the first."""
    policy: Path | None = None
    """The policy file. Unset: the built-in policy."""
    prices: Path | None = None
    """CSV file of prices, which come before the built-in ones."""
    workers: int = Field(default=1, ge=1, le=64)
    """Gateway processes."""
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    """The least level of a line in the log."""
    log_format: str = Field(default="auto", pattern="^(auto|text|json)$")
    """Form of the log. `auto`: text on a terminal, and JSON elsewhere."""
    access_log: bool = False
    """Whether each request has a line in the log, at every `log_level`."""
    max_body_bytes: Size = Field(default=32 * 2**20, ge=1024)
    """Larger requests are refused (413). For compressed requests the inflated size counts."""
    max_answer_bytes: Size = Field(default=8 * 2**20, ge=1024)
    """Larger answers reach the client, but are not stored."""
    max_unread_bytes: Size = Field(default=256 * 2**20, ge=2**20)
    """Of replies that a worker holds because their clients do not read. Above it, the client that
    has read nothing for the longest time is disconnected."""
    store: Annotated[str, AfterValidator(_check_store)] = Field(default="disk", repr=False)
    """Where entries are: `disk`, `memory` (lost at the end, one worker), or a URL of Redis."""
    decision_log: Path | None = None
    """File with one line for each request, for `refrain policy replay`. Unset: none."""
    decision_log_bytes: Size = Field(default=256 * 2**20, ge=2**20)
    """At this size, the file becomes FILE.1 and replaces the older one."""
    decision_log_text: bool = False
    """Whether the decision log has the text of users and system prompts, in plain text."""
    decision_log_requests: bool = False
    """Whether the decision log has whole requests, in plain text."""
    store_bytes: Size = Field(default=2**30, ge=2**20)
    """Bound of the entries on disk, or in Redis for all gateways together."""
    memory_bytes: Size = Field(default=128 * 2**20, ge=0)
    """Bound of the entries in a worker's memory, objects and tables included. 0: none there."""
    embeddings_model: str | None = None
    """Encoder: a folder or a hub id. Unset: all-MiniLM-L6-v2."""
    embeddings_device: str = Field(default="cpu", pattern="^(auto|cpu|cuda)$")
    """Device of the encoder. `auto`: a GPU if there is one, which it may share with an engine."""
    encoders: Annotated[int, BeforeValidator(lambda value: 0 if value == "auto" else value)] = (
        Field(default=0, ge=0, le=16)
    )
    """Passes of the encoder that run side by side, each on a core; as many of the verifier. 0 or
    `auto`: one for every four cores, 4 at most."""
    semantic_timeout: Seconds = Field(default=1.0, gt=0)
    """Bound of a semantic lookup: a longer search is a miss, and no further candidate is checked.
    """
    semantic_wait: Seconds = Field(default=0.05, gt=0)
    """How long a question may wait for others at the encoder. If more wait, it is a miss at once,
    `semantic-busy`."""
    compress_timeout: Seconds = Field(default=1.0, gt=0)
    """If the compression of a prompt takes longer, the prompt is sent unchanged."""
    verifier_timeout: Seconds = Field(default=0.5, gt=0)
    """If the verification of a candidate takes longer, the candidate is dropped."""
    semantic_judge_model: str | None = None
    """A model at the upstream that decides whether two answers say the same, if that is unsure.
    Each decision is a call that sends both answers. Unset: none."""
    vectors: Annotated[str, AfterValidator(_check_vectors)] = "faiss"
    """Where vectors are: `faiss` (in the data directory), or the URL of a Qdrant server."""
    vectors_timeout: Seconds = Field(default=0.05, gt=0)
    """How long a lookup waits for Qdrant before it is a miss."""
    connect_timeout: Seconds = Field(default=10.0, gt=0)
    """Time to connect to the upstream."""
    read_timeout: Seconds = Field(default=600.0, gt=0)
    """Time for the upstream to read the request and send its whole head; also between two reads of
    its answer."""
    first_token_timeout: Seconds | None = Field(default=None, gt=0)
    """Of a stream: time to its first word. Unset: `read_timeout`."""
    between_tokens_timeout: Seconds | None = Field(default=None, gt=0)
    """Of a stream: time between two reads of its body. Unset: `read_timeout`."""
    queue_size: int = Field(default=256, ge=0, le=100_000)
    """How many requests of a worker wait for room at an upstream."""
    queue_timeout: Seconds = Field(default=10.0, gt=0, le=600)
    """How long a request waits for room at an upstream."""
    client_timeout: Seconds = Field(default=300.0, gt=0)
    """Time for a client to send its body, and to read what was written."""
    drain_delay: Seconds = Field(default=1.0, ge=0, le=600)
    """How long /readyz says 503 after the stop signal, before the port is closed. Set it longer
    than the load balancer's check interval."""
    drain_timeout: Seconds = Field(default=30.0, ge=0, le=3600)
    """How long answers in progress may take after `drain_delay`, streams included."""

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        if self.upstream and self.upstreams:
            raise ValueError("expected upstream or upstreams, not both: the second says more")
        if self.store == "memory" and self.workers > 1:
            raise ValueError(
                "expected one worker with store: memory, which others would know nothing of"
            )
        return self

    @property
    def salts(self) -> bool:
        """Whether requests get a `cache_salt`."""
        if self.upstream_cache_salt is not None:
            return self.upstream_cache_salt
        return bool(self.upstreams) and all(one.cache_salt for one in self.upstreams)

    @property
    def all_upstreams(self) -> tuple[UpstreamSettings, ...]:
        """The upstreams, whichever way they were given; replicas that were given by URL alone."""
        if self.upstreams:
            return self.upstreams
        alone = tuple(UpstreamSettings(url=url) for url in dict.fromkeys(self.upstream))
        names = {upstream.label for upstream in alone}
        if len(names) == len(alone):
            return alone
        return tuple(upstream.model_copy(update={"name": upstream.identity}) for upstream in alone)

    @property
    def refuses_unknown_models(self) -> bool:
        """Whether a model that no upstream declares is refused here, and not by an upstream."""
        if self.unknown_models is not None:
            return self.unknown_models == "refuse"
        answering = (one for one in self.all_upstreams if not one.kv_transfer)
        return sum(one.declares_models for one in answering) > 1

    @property
    def public_names(self) -> dict[str, str]:
        """What errors to clients call each upstream: its name, or a number where it has none."""
        return {
            one.label: (one.name if self.upstreams else None) or f"upstream-{number}"
            for number, one in enumerate(self.all_upstreams, 1)
        }

    @property
    def upstream_identity(self) -> str | None:
        """What keys say of the upstreams: one more replica must not drop the cache."""
        first = next((one.identity for one in self.all_upstreams if not one.kv_transfer), None)
        return self.upstream_name or first


def load_settings(
    flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None
) -> Settings:
    """Merge the sources. ``flags`` holds only what was given. Raises SettingsError."""
    document = _read(file) if file is not None else Document("")
    if document.problems:
        raise SettingsError("\n".join(map(str, document.problems)))
    in_file = document.data or {}
    if not isinstance(in_file, dict):
        raise SettingsError(str(document.problem((), "a mapping of settings")))
    in_environment = _from_environment(environment)
    try:
        return Settings.model_validate({**in_file, **in_environment, **flags})
    except ValidationError as error:
        problems = sorted(
            error.errors(include_url=False), key=lambda each: _line(each["loc"], document)
        )
        raise SettingsError(
            "\n".join(_message(problem, document, in_environment, flags) for problem in problems)
        ) from None


def origins(
    flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None
) -> dict[str, str]:
    """Return where each setting comes from that has no default: flag, variable, or file and line.

    The arguments are the same that ``load_settings`` took. Raises SettingsError.
    """
    found = {}
    if file is not None:
        document = _read(file)
        found = {name: f"{file}:{_line((name,), document)}" for name in document.data or {}}
    variables = {name: ENVIRONMENT_PREFIX + name.upper() for name in _from_environment(environment)}
    return found | variables | {name: f"--{name.replace('_', '-')}" for name in flags}


def place_of(path: tuple[str | int, ...], file: Path | None) -> str:
    """Return file and line of a setting in its file, such as before a message; else nothing."""
    if not path or file is None:
        return ""
    document = _read(file)
    return f"{file}:{_line(path, document)}: " if path[:1] in document.places else ""


def _read(file: Path) -> Document:
    try:
        return read_document(policy_text(file.read_bytes(), str(file)), str(file))
    except OSError as error:
        raise SettingsError(f"{file}: cannot be read: {error.strerror or error}") from None
    except PolicyError as error:
        raise SettingsError(str(error)) from None


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the REFRAIN_* variables that are none of ours, each with the nearest that is.

    They are warnings, not errors: orchestrators set such variables for a service of this name.
    """
    secrets = (*SECRETS, *(f"{name}_file" for name in SECRETS))
    names = (*Settings.model_fields, *_OTHERS, *secrets)
    known = [ENVIRONMENT_PREFIX + name.upper() for name in names]
    warnings = []
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known:
            near = get_close_matches(name, known, n=1)
            warnings.append(f"{name} is not a setting" + (f"; is {near[0]} meant?" if near else ""))
    return warnings


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    known = {ENVIRONMENT_PREFIX + name.upper(): name for name in Settings.model_fields}
    return {known[name]: value for name, value in environment.items() if name in known and value}


def _message(
    problem: ErrorDetails,
    document: Document,
    in_environment: Mapping[str, str],
    flags: Mapping[str, Any],
) -> str:
    path, message = problem["loc"], _describe_problem(problem)
    if not path:
        return message
    name = str(path[0])
    if name in flags:
        return f"--{name.replace('_', '-')}: {message}"
    if name in in_environment:
        return f"{ENVIRONMENT_PREFIX}{name.upper()}: {message}"
    if problem["type"] == "extra_forbidden":
        known = Settings.model_fields if len(path) == 1 else UpstreamSettings.model_fields
        near = get_close_matches(str(path[-1]), known, n=1)
        hint = f"such as {near[0]}" if near else ", ".join(sorted(known))
        return str(document.problem(path, f"a known key ({hint})", f"unknown key {path[-1]!r}"))
    return f"{document.source}:{_line(path, document)}: {key_path(path)}: {message}"


def _line(path: tuple[Any, ...], document: Document) -> int:
    while path and path not in document.places:
        path = path[:-1]
    return document.places[path].line if path else 0


_TYPES = {
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "list": 'a list such as ["qwen"]',
    "model": "a mapping of keys, such as {url: http://127.0.0.1:8000/v1}",
    "path": "a path",
    "string": "a text (put it in quotes)",
    "tuple": 'a list such as ["qwen"]',
}
"""The allowed values, by the first word of the library's type of problem."""


def _describe_problem(problem: ErrorDetails) -> str:
    """Return the expected value in our words: the library's words are about an input."""
    kind: str = problem["type"]
    message: str = problem["msg"].removeprefix("Value error, ")
    of, _, how = kind.partition("_")
    if kind == "missing":
        return f"expected the key {problem['loc'][-1]}, which is not there"
    if kind == "too_short":
        return "expected at least one item, got an empty list"
    if kind == "string_pattern_mismatch":
        words = problem["ctx"]["pattern"].strip("^()$").split("|")
        message = f"expected one of {', '.join(words)}"
    elif how in ("type", "parsing", "from_float") and of in _TYPES:
        message = f"expected {_TYPES[of]}"
    elif message.startswith("Input should be "):
        wanted = message.removeprefix("Input should be ").partition(", ")[0]
        compared = wanted.startswith(("less", "greater"))
        message = f"expected {'a number ' if compared else ''}{wanted}"
    elif ", got " in message or not message.startswith("expected "):
        return message
    # A store's URL may hold a password, and what stands for a key may be one.
    secret = {"store", "api_key_env", "upstream", "url", "vectors"}
    inside = {"headers", "query"}
    # A position in a list is no key: the item is as secret as the list.
    path = [part for part in problem["loc"] if isinstance(part, str)]
    hidden = not (secret.isdisjoint(path[-1:]) and inside.isdisjoint(path))
    hidden = hidden or path == ["upstreams"]
    shows = isinstance(problem["input"], str | int | float) and not hidden
    return f"{message}, got {problem['input']!r}" if shows else message
