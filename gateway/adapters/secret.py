"""The secret behind scope ids: made once, kept in the data directory, shared by all workers.

Law: whoever comes first makes it, everybody gets the same one, and nobody ever sees half of it. It
is never replaced: a new secret would orphan every entry, so what looks wrong is an error to be
looked at.
"""

import logging
import os
import secrets
from pathlib import Path

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
