"""The URL of a Redis store, checked before anything connects with it."""

from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

_SCHEMES: Final = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")

_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_IS_ONE: Final[dict[str, tuple[str, Callable[[str], bool]]]] = {
    "db": ("a number", str.isdecimal),
    "ssl_cert_reqs": ("none, optional or required", {"none", "optional", "required"}.__contains__),
    "ssl_check_hostname": ("true or false", lambda value: value.lower() in ("true", "false")),
}
_OPTIONS: Final = tuple(sorted((*_FILES, *_IS_ONE)))


def checked(url: str) -> str:
    """Return the URL. Raises ValueError, which quotes nothing: it may hold a password."""
    expected = "expected disk, memory or a URL such as redis://redis.example:6379/0"
    try:
        parts = urlsplit(url)
        place = parts.path if parts.scheme == "unix" else parts.hostname
        well_formed = bool(place) and (parts.port is None or parts.port > 0)
    except ValueError:
        raise ValueError(expected) from None
    if parts.scheme not in _SCHEMES or not well_formed:
        raise ValueError(f"{expected}; schemes are {', '.join(_SCHEMES)}")
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
