"""The secret behind scope ids: made once, kept in the data directory, shared by all workers.

Law: whoever comes first makes it, everybody gets the same one, and nobody ever sees half of it. It
is never replaced: a new secret would orphan every entry, so what looks wrong is an error to be
looked at.

Secrets of the operator: from the environment, or from a file that the environment names.

Law: a secret never stands on a command line or in refrain.yaml, and what is told of it is the name
of the variable, never a part of its value.
"""

import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.cache.stores.encrypted import MasterKeys

SECRET_BYTES = 32
_OTHERS_MAY_READ = 0o077

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
        return _load(path)
    except OSError as error:
        raise SecretError(f"{path}: {error.strerror or error}") from error


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


def _load(path: Path) -> bytes:
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        secret = file.read(SECRET_BYTES + 1)
    if len(secret) != SECRET_BYTES:
        size = f"{len(secret)}" if len(secret) <= SECRET_BYTES else f"more than {SECRET_BYTES}"
        raise SecretError(
            f"{path}: expected {SECRET_BYTES} bytes, got {size}; restore it from a backup, or "
            "remove it to make a new one and lose every stored entry"
        )
    if mode & _OTHERS_MAY_READ:
        _log.warning("%s may be read by others (mode %o); run chmod 600 on it", path, mode & 0o777)
    return secret


MOST_BYTES = 64 << 10


class SecretSettingError(SecretError):
    """A variable, or the file that it names, is wrong: bad usage, and told by the variable."""


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
    try:
        with Path(file).open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
        text = data.decode().strip()
    except OSError as error:
        raise SecretSettingError(f"{variable}_FILE: {file}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise SecretSettingError(f"{variable}_FILE: {file}: expected text") from None
    if not text or len(data) > MOST_BYTES:
        size = "nothing" if not text else f"more than {MOST_BYTES} bytes"
        raise SecretSettingError(f"{variable}_FILE: {file}: holds {size}")
    return text


def shared_secret(environment: Mapping[str, str]) -> bytes | None:
    """Return the secret behind scope ids where gateways that share a store are given one.

    Raises SecretSettingError when it is not of 32 bytes in hexadecimal.
    """
    given = secret_setting(environment, "SECRET")
    if given is None:
        return None
    try:
        secret = bytes.fromhex(given)
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise SecretSettingError(
            f"REFRAIN_SECRET: expected {2 * SECRET_BYTES} hexadecimal digits, such as "
            f"`openssl rand -hex {SECRET_BYTES}` prints"
        )
    return secret


def master_keys(environment: Mapping[str, str]) -> "MasterKeys | None":
    """Return the keys that entries are encrypted under, where there are any.

    Raises SecretSettingError.
    """
    given = secret_setting(environment, "ENCRYPTION_KEYS")
    if given is None:
        return None
    # Costs 70 ms to import.
    from gateway.cache.stores.encrypted import MasterKeyError, parse_master_keys  # noqa: PLC0415

    try:
        return parse_master_keys(given)
    except MasterKeyError as error:
        raise SecretSettingError(f"REFRAIN_ENCRYPTION_KEYS: {error}") from None
