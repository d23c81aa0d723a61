"""`refrain keys`: keys of the gateway, made, listed, ended and replaced in their file.

Law: the secret of a key is shown once and stored nowhere. An edit of the file is locked against
other edits, happens whole or not at all, and leaves all other lines as they were.
"""

import hashlib
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from gateway.cache.append_files import replace_file
from gateway.cli.terminal import CommandError, FailedError, printable, say, show_json, unreadable
from gateway.server.keys.auth import KeyRingError, read_key_ring
from gateway.server.keys.key_line import (
    ATTRIBUTES,
    NAME,
    Key,
    KeyLineError,
    attributes_of,
    describe_key,
    format_key,
    format_time,
    make_key,
    read_key,
)
from gateway.settings import SettingsError, load_settings
from policies.format.values import DURATION, UnexpectedValueError

SECRET_BYTES = 32
LOCK_SECONDS = 5.0


class Line(NamedTuple):
    """A line of the file; ``key`` and ``digest`` are None where it has none."""

    text: str
    digest: bytes | None = None
    key: Key | None = None


def add(*, name: str, file: Path | None, config: Path | None, **attributes: str | None) -> int:
    """Make a key for a new holder, and print its secret."""
    if not NAME.fullmatch(name):
        raise CommandError("expected a name of at most 64 characters, without space, # and !")
    # All keys share the upstream's account, so it is closed to a new one.
    key = make_key(name, {"account": "closed"} | _attributes(attributes))
    secret = _new_secret()

    def edit(lines: Sequence[Line]) -> list[Line]:
        if _keys_of(lines, key.name):
            hint = f"refrain keys rotate {key.name} replaces it"
            raise FailedError(f"{key.name} has a key already: {hint}")
        return [*lines, _line(secret, key)]

    used = key_file(file, config)
    edit_file(used, edit, create=True)
    _show(secret, f"{key.name}: added to {used}")
    return 0


def rotate(
    *, name: str, file: Path | None, config: Path | None, overlap: float, **attributes: str | None
) -> int:
    """Make a new key for a holder, with the attributes of the old one, and print its secret."""
    secret, now = _new_secret(), time.time()
    until = now + overlap

    def edit(lines: Sequence[Line]) -> list[Line]:
        old = _keys_of(lines, name)
        if not old:
            raise _unknown(name, lines)
        newest = old[-1]
        # A new key that has expired would be of no use.
        key = make_key(name, attributes_of(newest) | _attributes(attributes))
        if key.has_expired(now):
            raise FailedError(f"{name}: the key has expired; give --expires")
        kept = lines if overlap else [each for each in lines if each.key not in old]
        return [
            *(_end(each, until, now, key) if each.key in old else each for each in kept),
            _line(secret, key),
        ]

    edit_file(key_file(file, config), edit)
    ends = f"ends {format_time(until)}" if overlap else "ends now"
    _show(secret, f"{name}: rotated; the old key {ends}")
    return 0


def revoke(*, name: str, file: Path | None, config: Path | None) -> int:
    """Remove every key of a holder."""

    def edit(lines: Sequence[Line]) -> list[Line]:
        old = _keys_of(lines, name)
        if not old:
            raise _unknown(name, lines)
        return [each for each in lines if each.key not in old]

    edit_file(key_file(file, config), edit)
    say(f"{name}: revoked")
    return 0


def list_keys(*, as_json: bool, file: Path | None, config: Path | None) -> int:
    """Print the keys, without anything that could be used as one."""
    used_file, now = key_file(file, config), time.time()
    found = [each for each in _read(used_file) if each.key is not None and each.digest is not None]
    rows = [describe_key(each.digest, each.key, now) for each in found if each.key and each.digest]
    if as_json:
        show_json(rows)
        return 0
    columns = ("name", "key", "state", *ATTRIBUTES)
    used = [name for name in columns if any(row.get(name) for row in rows)]
    if not rows:
        say(f"{used_file}: no keys; refrain keys add NAME makes one")
        return 0
    table = [
        tuple(map(str.upper, used)),
        *(tuple(row.get(name, "-") for name in used) for row in rows),
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        print(printable("  ".join(padded).rstrip()))
    return 0


def key_file(file: Path | None, config: Path | None) -> Path:
    """Return the file of --file, else of the settings. Raises CommandError."""
    if file is not None:
        return file
    if config is None and Path("refrain.yaml").is_file():
        config = Path("refrain.yaml")
    try:
        file = load_settings({}, os.environ, config).gateway_keys
    except SettingsError as error:
        raise CommandError(str(error)) from None
    if file is None:
        raise CommandError(
            "no file of keys: give --file FILE, or set gateway_keys in refrain.yaml "
            "(REFRAIN_GATEWAY_KEYS)"
        )
    return file


def edit_file(
    file: Path, edit: Callable[[Sequence[Line]], Sequence[Line]], *, create: bool = False
) -> None:
    """Replace the file by an edit of its lines. Raises CommandError, and what ``edit`` raises."""
    # Through a link, so that the link stays.
    file = file.resolve()
    try:
        with FileLock(file.with_name(file.name + ".lock"), LOCK_SECONDS, 0o600):
            lines = _read(file, absent_is_empty=create)
            text = "".join(f"{line.text}\n" for line in edit(lines))
            _check(text.encode(), file)
            replace_file(file, text.encode())
    except Timeout:
        raise FailedError(f"{file}: another command is editing it; try again") from None
    except OSError as error:
        raise FailedError(f"{file}: cannot be written: {error.strerror or error}") from None


def _read(file: Path, *, absent_is_empty: bool = False) -> list[Line]:
    """Return the lines of a file whose every line is right. Raises CommandError."""
    try:
        data = file.read_bytes()
    except FileNotFoundError as error:
        if not absent_is_empty:
            raise unreadable(file, error) from None
        data = b""
    except OSError as error:
        raise unreadable(file, error) from None
    _check(data, file)
    return [_read_line(text) for text in data.decode("utf-8-sig").splitlines()]


def _check(data: bytes, file: Path) -> None:
    try:
        read_key_ring(data, str(file))
    except KeyRingError as error:
        raise CommandError(str(error)) from None


def _read_line(text: str) -> Line:
    words = text.partition("#")[0].split()
    return Line(text, *read_key(words)) if words else Line(text)


def _line(secret: str, key: Key) -> Line:
    return _read_line(format_key(hashlib.sha256(secret.encode()).digest(), key))


def _end(line: Line, until: float, now: float, new: Key) -> Line:
    """Return the line of a key that ends at ``until``, or sooner, with what the new one shares."""
    key = line.key
    if key is None or line.digest is None:
        return line
    expires = key.expires
    if not key.has_expired(now):
        expires = until if expires is None else min(until, expires)
    key = replace(key, expires=expires, limits=new.limits, team=new.team)
    _, mark, comment = line.text.partition("#")
    text = format_key(line.digest, key)
    return Line(f"{text} {mark}{comment}" if mark else text, line.digest, key)


def _keys_of(lines: Sequence[Line], name: str) -> list[Key]:
    return [line.key for line in lines if line.key is not None and line.key.name == name]


def _unknown(name: str, lines: Sequence[Line]) -> CommandError:
    names = sorted({line.key.name for line in lines if line.key is not None})
    known = f"there are {', '.join(names[:10])}" if names else "there are none"
    return FailedError(f"no key of {name}: {known}")


def _attributes(given: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the attributes that the command line gives. Raises CommandError."""
    found: dict[str, Any] = {}
    now = time.time()
    for name, attribute in ATTRIBUTES.items():
        text = given.get(name)
        if text is None:
            continue
        try:
            found[name] = attribute.read(_date(text) if name == "expires" else text)
        except KeyLineError as error:
            raise CommandError(f"--{name.replace('_', '-')}: {error}") from None
    if (end := found.get("expires", now)) < now:
        raise CommandError(f"--expires: expected a time to come, {format_time(end)} has passed")
    return found


def _date(text: str) -> str:
    """Return the date that a time such as 90d leads to; other texts as they are."""
    try:
        return format_time(time.time() + DURATION.read(text))
    except UnexpectedValueError:
        return text


def _new_secret() -> str:
    return f"rk-{secrets.token_urlsafe(SECRET_BYTES)}"


def _show(secret: str, message: str) -> None:
    """Print the secret to standard output, where a script finds it alone."""
    say(message)
    say("this key is shown once; the file has only its SHA-256:")
    print(secret)
