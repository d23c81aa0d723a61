"""Which key each upstream gets, its own or that of all: part of the composition root.

Law: a key is spent only for clients that showed one of the gateway's, and no message holds one.
"""

import logging
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from gateway.adapters.secret import SecretError
from gateway.adapters.secret_setting import (
    SecretSettingError,
    master_keys,
    secret_setting,
    shared_secret,
)
from gateway.settings import SECRETS
from gateway.upstream_settings import UpstreamSettings

log = logging.getLogger(__name__)

KEY = "UPSTREAM_API_KEY"
_INSIDE = (".local", ".internal", ".lan", ".svc")


def upstream_keys(
    upstreams: Sequence[UpstreamSettings], environment: Mapping[str, str], *, own_keys: bool
) -> dict[str, str | None]:
    """Return the key of each upstream, by name. Raises SecretSettingError.

    ``own_keys`` says that the gateway has keys of its own.
    """
    common = _key(secret_setting(environment, KEY), f"REFRAIN_{KEY}", own_keys=own_keys)
    keys = {one.called: _own_key(one, environment, own_keys=own_keys) for one in upstreams}
    return {name: key or common for name, key in keys.items()}


def secrets_problem(
    upstreams: Sequence[UpstreamSettings], environment: Mapping[str, str], *, own_keys: bool
) -> str | None:
    """Return what is wrong with any secret of the settings, or None."""
    try:
        for name in SECRETS:
            secret_setting(environment, name.upper())
        shared_secret(environment)
        master_keys(environment)
        upstream_keys(upstreams, environment, own_keys=own_keys)
    except SecretError as error:
        return str(error)
    return None


def warn_of_shared_credentials(
    upstreams: Sequence[UpstreamSettings], environment: Mapping[str, str], *, own_keys: bool
) -> None:
    """Log a warning where upstreams of several hosts get the same credentials."""
    has_common = secret_setting(environment, KEY) is not None
    sharing = [one for one in upstreams if one.api_key_env is None and one.api_key_file is None]
    if (has_common or not own_keys) and len({_site(one.url) for one in sharing}) > 1:
        log.warning(
            "%s to upstreams of several hosts: %s; declare only such as may see them, or give "
            "each a key of its own (api_key_env, api_key_file)",
            f"REFRAIN_{KEY} goes" if has_common else "the clients' credentials go",
            ", ".join(one.called for one in sharing),
        )


def _site(url: str) -> str:
    """Return the host, or nothing for all of a private network: these are the operator's own."""
    host = urlsplit(url).hostname or ""
    try:
        return "" if ip_address(host).is_private else host
    except ValueError:
        return "" if "." not in host or host.endswith(_INSIDE) else host


def _own_key(
    one: UpstreamSettings, environment: Mapping[str, str], *, own_keys: bool
) -> str | None:
    """Return the key of one upstream. Raises SecretSettingError."""
    if one.api_key_env is not None:
        where = f"upstream {one.called}: {one.api_key_env}"
        found = environment.get(one.api_key_env, "").strip()
        if not found:
            raise SecretSettingError(
                f"upstream {one.called}: api_key_env: the environment variable {one.api_key_env} "
                "is not set; set it to the upstream's key"
            )
    elif one.api_key_file is not None:
        where = f"upstream {one.called}: {one.api_key_file}"
        found = _read(one.api_key_file, where)
    else:
        return None
    if not found:
        raise SecretSettingError(f"{where}: holds no key")
    return _key(found, where, own_keys=own_keys)


def _read(file: Path, where: str) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(64 << 10).decode().strip()
    except OSError as error:
        raise SecretSettingError(f"{where}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise SecretSettingError(f"{where}: expected text") from None


def _key(api_key: str | None, where: str, *, own_keys: bool) -> str | None:
    """Return the key once it is known to be one that may be used. Raises SecretSettingError."""
    if api_key is None:
        return None
    if not own_keys:
        raise SecretSettingError(
            f"{where} is given, but not gateway_keys: whoever reaches the gateway could spend it"
        )
    if not (api_key.isascii() and api_key.isprintable()) or " " in api_key:
        raise SecretSettingError(f"{where}: expected a key: one word of ASCII")
    return api_key
