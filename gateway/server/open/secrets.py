"""Secrets: the one behind scope ids, the operator's secrets, and the keys of the upstreams.

The secret behind scope ids is made once, kept in the data directory and shared by all workers. Law:
the first worker makes it, every worker gets the same one, and none ever sees half of it. It is
never replaced: a new secret would orphan every entry, so a wrong file is an error to look at.

The operator's secrets come from the environment, or from a file that the environment names. Law: a
secret never stands on a command line or in refrain.yaml. Messages hold the name of its variable,
never a part of its value. A key of an upstream is spent only for clients that showed a key of the
gateway's own.
"""

import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]

from gateway.protocol.http.headers import Fields
from gateway.settings import SECRETS
from gateway.upstream.settings import UpstreamSettings, check_header_value

if TYPE_CHECKING:
    from gateway.cache.stores.encrypted import MasterKey

SECRET_BYTES = 32
_OTHERS_MAY_READ = 0o077
MOST_BYTES = 64 << 10
UPSTREAM_KEY = "UPSTREAM_API_KEY"
_PRIVATE_DOMAINS = (".local", ".internal", ".lan", ".svc")

_log = logging.getLogger(__name__)


class SecretError(Exception):
    """The secret cannot be made or used; the message says which file and why."""


def load_or_create_secret(data_dir: Path) -> bytes:
    """Return the 32 bytes in ``data_dir/secret``, made at the first call with mode 0600.

    Raises SecretError when the file has another size, or cannot be made or read.
    """
    path = data_dir / "secret"
    try:
        if not path.exists():
            _create(path)
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            secret = file.read(SECRET_BYTES + 1)
    except OSError as error:
        raise SecretError(f"{path}: {error.strerror or error}") from error
    if len(secret) != SECRET_BYTES:
        size = f"{len(secret)}" if len(secret) <= SECRET_BYTES else f"more than {SECRET_BYTES}"
        raise SecretError(
            f"{path}: expected {SECRET_BYTES} bytes, got {size}; restore it from a backup, or "
            "remove it to make a new one and lose every stored entry"
        )
    if mode & _OTHERS_MAY_READ:
        _log.warning("%s may be read by others (mode %o); run chmod 600 on it", path, mode & 0o777)
    return secret


def _create(path: Path) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
        # A link never replaces what is there, unlike a rename: the first one wins.
        os.link(draft, path)
    except FileExistsError:
        _log.debug("%s was made by another worker at the same moment", path)
    finally:
        draft.unlink(missing_ok=True)


class SecretSettingError(SecretError):
    """A variable, or the file that it names, is wrong; the message names the variable."""


def secret_setting(environment: Mapping[str, str], name: str) -> str | None:
    """Return ``REFRAIN_<name>``, or what the file in ``REFRAIN_<name>_FILE`` holds, or None.

    Raises SecretSettingError when both are given, or the file cannot be read or holds nothing.
    """
    variable = f"REFRAIN_{name}"
    value = environment.get(variable, "").strip()
    file = environment.get(f"{variable}_FILE", "")
    if value and file:
        raise SecretSettingError(f"{variable} and {variable}_FILE are both given: give one")
    if not file:
        return value or None
    where = f"{variable}_FILE: {file}"
    text = _read_text(Path(file), where)
    if not text:
        raise SecretSettingError(f"{where}: holds nothing")
    return text


def _read_text(file: Path, where: str) -> str:
    try:
        with file.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
        text = data.decode().strip()
    except OSError as error:
        raise SecretSettingError(f"{where}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise SecretSettingError(f"{where}: expected text") from None
    if text and len(data) > MOST_BYTES:
        raise SecretSettingError(f"{where}: holds more than {MOST_BYTES} bytes")
    return text


def shared_secret(environment: Mapping[str, str]) -> bytes | None:
    """Return the secret behind scope ids where gateways that share a store are given one.

    Raises SecretSettingError when it is not of 32 bytes in hexadecimal.
    """
    text = secret_setting(environment, "SECRET")
    if text is None:
        return None
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise SecretSettingError(
            f"REFRAIN_SECRET: expected {2 * SECRET_BYTES} hexadecimal digits, such as "
            f"`openssl rand -hex {SECRET_BYTES}` prints"
        )
    return secret


def master_keys(environment: Mapping[str, str]) -> "tuple[MasterKey, ...] | None":
    """Return the keys that entries are encrypted under, where there are any.

    Raises SecretSettingError.
    """
    text = secret_setting(environment, "ENCRYPTION_KEYS")
    if text is None:
        return None
    # Costs 70 ms to import.
    from gateway.cache.stores.encrypted import MasterKeyError, parse_master_keys  # noqa: PLC0415

    try:
        return parse_master_keys(text)
    except MasterKeyError as error:
        raise SecretSettingError(f"REFRAIN_ENCRYPTION_KEYS: {error}") from None


def upstream_keys(
    upstreams: Sequence[UpstreamSettings], environment: Mapping[str, str], *, own_keys: bool
) -> dict[str, str | None]:
    """Return the key of each upstream, by name. Raises SecretSettingError.

    ``own_keys`` says that the gateway has gateway keys.
    """
    common = secret_setting(environment, UPSTREAM_KEY)
    if common is not None:
        _check_key(common, f"REFRAIN_{UPSTREAM_KEY}", own_keys=own_keys)
    keys = {one.label: None if one.auth == "none" else common for one in upstreams}
    for one in upstreams:
        if one.api_key_env is not None:
            where = f"upstream {one.label}: {one.api_key_env}"
            key = environment.get(one.api_key_env, "").strip()
            if not key:
                raise SecretSettingError(
                    f"upstream {one.label}: api_key_env: the environment variable "
                    f"{one.api_key_env} is not set; set it to the upstream's key"
                )
        elif one.api_key_file is not None:
            where = f"upstream {one.label}: {one.api_key_file}"
            key = _read_text(one.api_key_file, where)
            if not key:
                raise SecretSettingError(f"{where}: holds no key")
        else:
            continue
        _check_key(key, where, own_keys=own_keys)
        keys[one.label] = key
    return keys


def upstream_headers(
    one: UpstreamSettings, environment: Mapping[str, str], *, own_keys: bool
) -> Fields:
    """Return the fixed headers of an upstream, headers from the environment too.

    ``own_keys`` says that the gateway has gateway keys. Raises SecretSettingError.
    """
    fields = []
    for name, value in one.headers.items():
        text = value.text or ""
        if value.env is not None:
            where = f"upstream {one.label}: headers: {name}: {value.env}"
            text = environment.get(value.env, "").strip()
            if not text:
                raise SecretSettingError(
                    f"{where}: this environment variable is not set; set it to the header's value"
                )
            _check_may_spend(where, own_keys=own_keys)
            if not check_header_value(text):
                raise SecretSettingError(f"{where}: expected printable ASCII on one line")
        fields.append((name, text))
    return tuple(fields)


def outbound_proxy(one: UpstreamSettings, environment: Mapping[str, str]) -> str | None:
    """Return the proxy on the way to an upstream, by the usual variables; None if it has none.

    A loopback address has none. Raises SecretSettingError, which quotes no password.
    """
    parts = urlsplit(one.url)
    host = parts.hostname or ""
    with suppress(ValueError):
        if host == "localhost" or ip_address(host).is_loopback:
            return None
    names = [name for kind in (parts.scheme, "all") for name in _spellings(f"{kind}_proxy")]
    variable = next((name for name in names if environment.get(name)), None)
    excluded = next(filter(None, map(environment.get, _spellings("no_proxy"))), "")
    if variable is None or proxy_bypass_environment(parts.netloc, {"no": excluded}):
        return None
    value = environment[variable]
    proxy = value if "://" in value else f"http://{value}"
    try:
        parts = urlsplit(proxy)
        port = parts.port
    except ValueError:
        port = 0
    well_formed = parts.hostname and port != 0 and proxy.isprintable() and " " not in proxy
    if parts.scheme != "http" or not well_formed:
        raise SecretSettingError(
            f"{variable}: expected a proxy such as http://proxy.example:3128 for upstream "
            f"{one.label}; to leave it out, name {host} in NO_PROXY"
        )
    return proxy


def outbound_proxies(
    upstreams: Sequence[UpstreamSettings], environment: Mapping[str, str]
) -> dict[str, list[str]]:
    """Return the upstreams behind each proxy, which has no user and password here."""
    through: dict[str, list[str]] = {}
    for one in upstreams:
        if (proxy := outbound_proxy(one, environment)) is not None:
            place = urlsplit(proxy).netloc.rpartition("@")[2]
            through.setdefault(place, []).append(one.label)
    return through


def log_proxies(upstreams: Sequence[UpstreamSettings], environment: Mapping[str, str]) -> None:
    """Log which upstreams are reached through a proxy, without its user and password."""
    for place, names in outbound_proxies(upstreams, environment).items():
        _log.info(
            "reached through the proxy %s of the environment: %s; NO_PROXY names the hosts "
            "that are reached without it",
            place,
            ", ".join(names),
        )


def _spellings(name: str) -> tuple[str, str]:
    return name, name.upper()


def _check_may_spend(where: str, *, own_keys: bool) -> None:
    if not own_keys:
        raise SecretSettingError(
            f"{where} is given, but not gateway_keys: any client of the gateway could spend it"
        )


def _check_key(key: str, where: str, *, own_keys: bool) -> None:
    _check_may_spend(where, own_keys=own_keys)
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise SecretSettingError(f"{where}: expected a key: one word of ASCII")


class SecretFault(NamedTuple):
    """What is wrong with a secret; ``path`` leads to the setting that needs it, if one does."""

    path: tuple[str | int, ...]
    text: str


def secret_faults(
    upstreams: Sequence[UpstreamSettings], environment: Mapping[str, str], *, own_keys: bool
) -> list[SecretFault]:
    """Read every secret of the settings and return all that is wrong with them."""
    reads: list[tuple[tuple[str | int, ...], Callable[[], object]]] = [
        ((), partial(secret_setting, environment, name.upper())) for name in SECRETS
    ]
    reads += [((), partial(shared_secret, environment)), ((), partial(master_keys, environment))]
    for number, one in enumerate(upstreams):
        at = ("upstreams", number)
        kind = "api_key_file" if one.api_key_env is None else "api_key_env"
        keys = partial(upstream_keys, [one], environment, own_keys=own_keys)
        reads.append(((*at, kind) if one.has_key else (), keys))
        for name in one.headers:
            alone = one.model_copy(update={"headers": {name: one.headers[name]}})
            header = partial(upstream_headers, alone, environment, own_keys=own_keys)
            reads.append(((*at, "headers", name), header))
        reads.append(((), partial(outbound_proxy, one, environment)))
    faults: dict[str, SecretFault] = {}
    for path, read in reads:
        try:
            read()
        except SecretSettingError as error:
            faults.setdefault(str(error), SecretFault(path, str(error)))
    return list(faults.values())


def warn_of_shared_credentials(
    upstreams: Sequence[UpstreamSettings], environment: Mapping[str, str], *, own_keys: bool
) -> None:
    """Log a warning where upstreams of several hosts get the same credentials."""
    has_common = secret_setting(environment, UPSTREAM_KEY) is not None
    sharing = [
        one
        for one in upstreams
        if one.api_key_env is None and one.api_key_file is None and one.auth != "none"
    ]
    if (has_common or not own_keys) and len({_site(one.url) for one in sharing}) > 1:
        _log.warning(
            "%s to upstreams of several hosts: %s; declare only such as may see them, or give "
            "each its own key (api_key_env, api_key_file)",
            f"REFRAIN_{UPSTREAM_KEY} goes" if has_common else "the clients' credentials go",
            ", ".join(one.label for one in sharing),
        )


def _site(url: str) -> str:
    """Return the host, or nothing for all of a private network: these are the operator's own."""
    host = urlsplit(url).hostname or ""
    try:
        return "" if ip_address(host).is_private else host
    except ValueError:
        return "" if "." not in host or host.endswith(_PRIVATE_DOMAINS) else host
