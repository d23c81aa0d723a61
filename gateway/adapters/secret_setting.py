"""Secrets of the operator: from the environment, or from a file that the environment names.

Law: a secret never stands on a command line or in refrain.yaml, and what is told of it is the name
of the variable, never a part of its value.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.adapters.secret import SECRET_BYTES, SecretError

if TYPE_CHECKING:
    from gateway.adapters.sealing import MasterKeys

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
    from gateway.adapters.sealing import MasterKeyError, parse_master_keys  # noqa: PLC0415

    try:
        return parse_master_keys(given)
    except MasterKeyError as error:
        raise SecretSettingError(f"REFRAIN_ENCRYPTION_KEYS: {error}") from None
