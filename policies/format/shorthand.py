"""Mappings and lists of the file, and the short ways to write them.

A short way is read before the mapping or the list is, and stands beside it in the JSON schema.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from policies.format.values import ON_OFF, Value, expected, is_off

OFF: JsonSchemaValue = {"enum": ["off", False, "no"]}


class MappingSpec(BaseModel):
    """A mapping of the file that knows all its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class FilledSpec(MappingSpec):
    """A mapping that would be a mistake if it were empty."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    @model_validator(mode="after")
    def _is_filled(self) -> Self:
        if not self.model_fields_set:
            raise expected(f"at least one of the keys {', '.join(type(self).model_fields)}")
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """A list of values of one kind; a single value is a list of one."""

    item: Value
    least: int = 1
    most: int | None = None
    into: Callable[[list[Any]], Any] = list
    """What the list becomes once it is read."""
    order: Sequence[Any] = ()
    """In which order values that have none are written."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        one = core_schema.no_info_plain_validator_function(self.item.read)
        many = core_schema.no_info_before_validator_function(
            self._listed, core_schema.list_schema(one)
        )
        return core_schema.no_info_after_validator_function(self.into, many)

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        many: JsonSchemaValue = {"type": "array", "items": self.item.schema}
        many |= {"minItems": self.least} if self.least else {}
        many |= {"maxItems": self.most} if self.most else {}
        return {"anyOf": [self.item.schema, many]}

    def words(self, values: Any) -> list[Any]:
        """Return what a file says for values that were read."""
        if self.order:
            values = sorted(values, key=lambda value: (self._place(value), value))
        return [self.item.words(value) for value in values]

    def _place(self, value: Any) -> int:
        return self.order.index(value) if value in self.order else len(self.order)

    def _listed(self, value: object) -> object:
        values = value if isinstance(value, list) else [value]
        if len(values) < self.least:
            raise expected("at least one value")
        if self.most is not None and len(values) > self.most:
            raise expected(f"at most {self.most} values")
        return values


def unique(values: list[Any]) -> tuple[Any, ...]:
    """Return the values in their order, each once."""
    return tuple(dict.fromkeys(values))


@dataclass(frozen=True, slots=True, eq=False)
class Short:
    """A short way to write a mapping."""

    read: Callable[[object], dict[str, Any]]
    """Returns the mapping that it stands for, or refuses."""
    schema: tuple[JsonSchemaValue, ...]
    what: str
    """What is expected where neither way fits."""
    words: Callable[[dict[str, Any]], Any] = lambda mapping: mapping
    """Takes the mapping in words and returns what a file says."""

    def mapping(self, value: object) -> object:
        """Return a mapping as it is, and what is none as the mapping that it stands for."""
        if isinstance(value, dict):
            return value
        try:
            return self.read(value)
        except PydanticCustomError:
            raise expected(self.what) from None


def on_or_off(such_as: str) -> Short:
    """Return the short way by which on and off set ``enabled`` and nothing else."""

    def words(mapping: dict[str, Any]) -> Any:
        enabled = mapping.pop("enabled")
        return mapping if enabled == "on" else enabled

    what = f"on, off or a mapping such as {such_as}"
    return Short(lambda value: {"enabled": ON_OFF.read(value)}, (ON_OFF.schema,), what, words)


def only_off(such_as: str, sets: dict[str, Any]) -> Short:
    """Return the short way by which off sets these keys."""

    def read(value: object) -> dict[str, Any]:
        if not is_off(value):
            raise expected("off")
        return sets

    return Short(read, (OFF,), f"off or a mapping such as {such_as}")
