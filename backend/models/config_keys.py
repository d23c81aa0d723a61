"""Typed access to one object of ``config.json``; every refusal names source and key."""

from collections.abc import Mapping
from typing import Any, TypeVar

from backend.models.errors import ModelLoadError

_Value = TypeVar("_Value", bool, int, float, str)


class ConfigKeys:
    """One parsed JSON object; null counts as absent."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        """``source`` says where ``values`` stand, for refusals."""
        self.values = values
        self.source = source

    def refusal(self, key: str, problem: str) -> ModelLoadError:
        """Return the error that says what is wrong with ``key``."""
        return ModelLoadError(f"{self.source}: {key}: {problem}")

    def get(self, key: str, kind: type[_Value], default: _Value | None = None) -> _Value:
        """Return a value of ``kind``; without a default it must be there."""
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise ModelLoadError(f"{self.source}: {key} is missing")
            return default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.refusal(key, f"expected {kind.__name__}, got {value!r}")
        return value

    def positive(self, key: str, default: int | None = None) -> int:
        """Return a number that is at least 1."""
        value = self.get(key, int, default)
        if value < 1:
            raise self.refusal(key, f"expected a positive number, got {value}")
        return value

    def optional_positive(self, key: str, default: int | None = None) -> int | None:
        """Return a number that is at least 1; None where the file says null."""
        if key in self.values and self.values[key] is None:
            return None
        return default if key not in self.values else self.positive(key)

    def above_zero(self, key: str, default: float | None = None) -> float:
        """Return a number greater than 0."""
        value = self.get(key, float, default)
        if not 0 < value < float("inf"):
            raise self.refusal(key, f"expected a number above 0, got {value}")
        return value

    def numbers(self, key: str, length: int) -> tuple[float, ...]:
        """Return a list of ``length`` numbers, which must be there."""
        value = self.values.get(key)
        if value is None:
            raise ModelLoadError(f"{self.source}: {key} is missing")
        if not isinstance(value, list) or any(
            isinstance(each, bool) or not isinstance(each, int | float) for each in value
        ):
            raise self.refusal(key, "expected a list of numbers")
        if len(value) != length:
            raise self.refusal(key, f"expected {length} numbers, got {len(value)}")
        return tuple(float(each) for each in value)

    def names(self, key: str) -> tuple[str, ...] | None:
        """Return a list of strings, None when it is not there."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.refusal(key, "expected a list of names")
        return tuple(value)
