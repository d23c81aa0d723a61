"""A gateway key as a line of a file: NAME SHA256, and then attributes such as ``models=gpt-4o*``.

A key is 256 random bits, so its plain SHA-256 tells nothing: a slow hash is for passwords.
Law: no message quotes a word of a line. Somebody may have put a key there instead of its digest.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from gateway.cache.stores.windows import PERIODS, RATE
from gateway.protocol.errors import ClientError
from gateway.protocol.http.cache_status import Reason
from gateway.server.keys.limits import NANO, NO_LIMITS, Budget, Limits
from policies.policy import glob_test

NAME = re.compile(r"[^\s#!]{1,64}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_READING = frozenset({"GET", "HEAD"})
"""Methods of requests that no model answers, and that change nothing of what others stored."""

_UNANSWERED = _READING | {"DELETE", "OPTIONS"}

_STATELESS = frozenset(
    f"/v1/{path}"
    for path in (
        *("audio/speech", "audio/transcriptions", "audio/translations", "classify", "detokenize"),
        *("chat/classifications", "chat/moderations", "classifications", "fim/completions"),
        *("images/edits", "images/generations", "images/variations", "moderations", "ocr"),
        *("pooling", "responses/compact", "responses/input_tokens", "score", "tokenize"),
    )
)
"""Passed-through paths whose answers depend on the request alone."""

_NAMES_NO_MODEL = re.compile(
    "/v1/(?:(?:batches|containers|conversations|files|skills|uploads|vector_stores)(?:/.*)?"
    "|chat/completions/[^/]+|(?:messages/batches|responses)/[^/]+/cancel"
    "|fine_tuning/jobs/[^/]+/(?:cancel|pause|resume))"
)
"""Passed-through paths to which requests are sent that no model has to answer."""

_AMOUNT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([kMG]?)")
_BUDGET = re.compile(r"([0-9.]+[kMG]?)(tokens|USD)/([a-z]+)")
_THOUSANDS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}
_MOST = 10**15

_test_of = lru_cache(maxsize=1024)(glob_test)


class KeyLineError(ValueError):
    """A line, or one attribute of it, is wrong; the text says what was expected."""


class ForbiddenError(ClientError):
    """The key may not be used for this request."""

    def __init__(
        self, message: str, param: str | None = None, reason: Reason = Reason.MODEL_NOT_ALLOWED
    ) -> None:
        super().__init__(403, message, param=param, code=reason.value.replace("-", "_"))
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Key:
    """A key that may be used here, and its holder's ``name``.

    ``models`` are globs of the models that it may name; empty allows any. ``expires`` is in seconds
    since the epoch. Keys of one ``team`` may share answers. With a ``closed`` ``account``, the key
    may not use paths where the upstream stores something for all who have its account.
    """

    name: str
    models: tuple[str, ...] = ()
    expires: float | None = None
    limits: Limits = NO_LIMITS
    team: str | None = None
    account: str | None = None

    @property
    def shared(self) -> tuple[str | None, Limits]:
        """What all keys of a holder have in common."""
        return self.team, self.limits

    def has_expired(self, now: float) -> bool:
        return self.expires is not None and now >= self.expires

    def may_use(self, model: str) -> bool:
        return not self.models or _test_of(self.models)(model)

    def check_model(self, model: str) -> None:
        """Raise ForbiddenError unless the key may use this model."""
        if not self.may_use(model):
            allowed = ", ".join(self.models)
            raise ForbiddenError(
                f"This API key may not use this model. It may use: {allowed}.", "model"
            )

    def check_models(self, models: Sequence[str]) -> None:
        """Raise ForbiddenError unless the key may use all the models that a request names."""
        for model in models:
            self.check_model(model)
        if self.limits.needs_price and len(models) > 1:
            raise ForbiddenError(
                "This API key has a budget in dollars, so a request may name one model, and no "
                "others to fall back to.",
                "model",
            )

    @property
    def is_restricted(self) -> bool:
        """Whether its requests must be read, wherever they go."""
        return bool(self.models) or self.limits.counts_tokens

    def check_other_path(self, method: str, path: str) -> None:
        """Raise ForbiddenError unless the key may use a path that is passed through."""
        if self.account == "closed" and not _is_stateless(method, path):
            raise ForbiddenError(
                "This API key may not use this path, where all keys share one account of the "
                "upstream. The operator can allow it: account=open.",
                reason=Reason.PATH_NOT_ALLOWED,
            )


def needs_model(method: str, path: str) -> bool:
    """Tell whether a model answers what is sent to a path that is passed through."""
    return method not in _UNANSWERED and _NAMES_NO_MODEL.fullmatch(path) is None


def _is_stateless(method: str, path: str) -> bool:
    if method in _READING:
        return path in ("/v1/models", "/v1/realtime") or path.startswith("/v1/models/")
    return method == "POST" and path in _STATELESS


def read_key(words: Sequence[str]) -> tuple[bytes, Key]:
    """Read the words of a line; return the digest and the key. Raises KeyLineError."""
    if len(words) < 2 or not NAME.fullmatch(words[0]) or not _DIGEST.fullmatch(words[1]):
        raise KeyLineError("expected NAME and the SHA-256 of a key (64 hex digits)")
    name, digest, *rest = words
    found: dict[str, Any] = {}
    for word in rest:
        attribute, _, value = word.partition("=")
        if attribute not in ATTRIBUTES:
            near = get_close_matches(attribute, ATTRIBUTES, n=1)
            known = near[0] if near else ", ".join(ATTRIBUTES)
            raise KeyLineError(f"expected attributes such as {known}, each as name=value")
        if attribute in found:
            raise KeyLineError(f"{attribute} is there twice")
        try:
            found[attribute] = ATTRIBUTES[attribute].read(value)
        except KeyLineError as error:
            raise KeyLineError(f"{attribute}: {error}") from None
    return bytes.fromhex(digest), make_key(name, found)


def make_key(name: str, attributes: Mapping[str, Any]) -> Key:
    """Return the key of a holder with these values of attributes."""
    found = dict(attributes)
    limits = {each: found.pop(each) for each in LIMITS if each in found}
    return Key(name, **found, limits=Limits(**limits) if limits else NO_LIMITS)


def attributes_of(key: Key) -> dict[str, Any]:
    """Return the values of the attributes that a key has."""
    values = {name: getattr(key.limits if name in LIMITS else key, name) for name in ATTRIBUTES}
    return {name: value for name, value in values.items() if value is not None and value != ()}


def format_attributes(key: Key) -> Mapping[str, str]:
    """Return the attributes that a key has, as a line has them."""
    return {name: ATTRIBUTES[name].write(value) for name, value in attributes_of(key).items()}


def describe_key(digest: bytes, key: Key, now: float) -> dict[str, str]:
    """Return what operators see of a key: its holder, its state, its attributes, and no secret."""
    state = "expired" if key.has_expired(now) else "valid"
    # Eight digits tell the keys of a holder apart.
    return {"name": key.name, "key": digest.hex()[:8], "state": state, **format_attributes(key)}


def format_key(digest: bytes, key: Key) -> str:
    """Return the line of a key."""
    attributes = (f"{name}={value}" for name, value in format_attributes(key).items())
    return " ".join((key.name, digest.hex(), *attributes))


@dataclass(frozen=True, slots=True)
class Attribute:
    """How an attribute's value is read, which raises KeyLineError, and how it is written."""

    read: Callable[[str], Any]
    write: Callable[[Any], str]


def _read_models(text: str) -> tuple[str, ...]:
    models = tuple(text.split(","))
    if not all(models) or any(char.isspace() or char == "#" for char in text):
        raise KeyLineError("expected names or globs of models, such as gpt-4o*,claude-*")
    return models


def _read_account(text: str) -> str:
    if text not in ("open", "closed"):
        raise KeyLineError("expected open or closed")
    return text


def _read_team(text: str) -> str:
    if not NAME.fullmatch(text):
        raise KeyLineError("expected a name of at most 64 characters, without space, # and !")
    return text


def _read_time(text: str) -> float:
    try:
        when = datetime.fromisoformat(text)
        seconds = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
        format_time(seconds)  # near the first and the last year, UTC may not have it
    except (ValueError, OverflowError):
        raise KeyLineError("expected a date in UTC: 2027-01-31 or 2027-01-31T12:00Z") from None
    return seconds


def format_time(seconds: float) -> str:
    """Return a time as a line has it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _read_amount(text: str, unit: int = 1) -> int:
    found = _AMOUNT.fullmatch(text)
    amount = Decimal(0) if found is None else Decimal(found[1]) * _THOUSANDS[found[2]] * unit
    if not 1 <= amount <= _MOST or amount % 1:
        if unit == NANO:
            raise KeyLineError("expected dollars up to 1M, such as 20 or 2.50")
        raise KeyLineError("expected a whole number from 1, such as 60, 100k or 2M")
    return int(amount)


def _read_budgets(text: str) -> tuple[Budget, ...]:
    budgets = tuple(map(_read_budget, text.split(",")))
    if len({each[1:] for each in budgets}) < len(budgets):
        raise KeyLineError("expected one budget of each unit and period")
    return budgets


def _read_budget(text: str) -> Budget:
    found = _BUDGET.fullmatch(text)
    if found is None or found[3] not in PERIODS or found[3] == RATE:
        raise KeyLineError(
            "expected a budget such as 5Mtokens/day or 20USD/month, several with commas between"
        )
    amount, unit, period = found.groups()
    return Budget(_read_amount(amount, NANO if unit == "USD" else 1), period, unit)


def _write_amount(amount: int) -> str:
    for unit in "GMk":
        if amount % _THOUSANDS[unit] == 0:
            return f"{amount // _THOUSANDS[unit]}{unit}"
    return str(amount)


def _write_budget(it: Budget) -> str:
    amount = _write_amount(it.amount) if it.unit == "tokens" else it.written(it.amount)
    return f"{amount}{it.unit}/{it.period}"


_amount = Attribute(_read_amount, _write_amount)
_budget = Attribute(_read_budgets, lambda it: ",".join(map(_write_budget, it)))

LIMITS: Mapping[str, Attribute] = {
    "rpm": _amount,
    "tpm": _amount,
    "concurrency": _amount,
    "budget": _budget,
    "soft_budget": _budget,
}
"""Attributes of a holder, which all keys of the holder share: fields of ``Limits``."""

ATTRIBUTES: Mapping[str, Attribute] = {
    "models": Attribute(_read_models, ",".join),
    "expires": Attribute(_read_time, format_time),
    "team": Attribute(_read_team, str),
    "account": Attribute(_read_account, str),
    **LIMITS,
}
"""All attributes of a line; the first ones are fields of ``Key``."""
