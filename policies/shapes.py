"""Ways to write a value shorter: one for a list of one, a switch for a mapping.

Each takes the plain data of ``policies.document`` before the type it annotates reads it, and adds
the short way to the JSON schema of that type.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_before_validator_function

ON_OFF: JsonSchemaValue = {"enum": ["on", "off", True, False, "yes", "no"]}
OFF: JsonSchemaValue = {"enum": ["off", False, "no"]}

_ON, _OFF = ("on", "yes"), ("off", "no")


def expected(what: str) -> PydanticCustomError:
    """Return the error of a value that is not ``what``."""
    # The text goes in as context: a template would trip over the braces of a pattern.
    return PydanticCustomError("expected", "{what}", {"what": what})


def on_off(value: object) -> bool:
    """Read a switch."""
    if isinstance(value, bool):
        return value
    if value in _ON:
        return True
    if value in _OFF:
        return False
    raise expected("on or off")


def is_off(value: object) -> bool:
    """Tell whether a value is a switch that is off."""
    return value is False or value in _OFF


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """Reads a single value as a list of one, and refuses an empty list."""

    may_be_empty: bool = False

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return no_info_before_validator_function(self._listed, handler(source))

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        many = handler(core)
        if not self.may_be_empty:
            many = {**many, "minItems": 1}
        return {"anyOf": [many["items"], many]}

    def _listed(self, value: object) -> object:
        if value == [] and not self.may_be_empty:
            raise expected("at least one value")
        return value if isinstance(value, list) else [value]


class _Filled:
    """Refuses an empty mapping."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return no_info_before_validator_function(self._filled, handler(source))

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(core), "minProperties": 1}

    @staticmethod
    def _filled(value: object) -> object:
        if value == {}:
            raise expected("at least one key")
        return value


@dataclass(frozen=True, slots=True, eq=False)
class OrShort:
    """Reads what is no mapping as the mapping that ``read`` makes of it.

    ``what`` is said where neither fits, ``schema`` is that of the short way.
    """

    read: Callable[[object], dict[str, Any]]
    schema: tuple[JsonSchemaValue, ...]
    what: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return no_info_before_validator_function(self._mapping, handler(source))

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [*self.schema, handler(core)]}

    def _mapping(self, value: object) -> object:
        if isinstance(value, dict):
            return value
        try:
            return self.read(value)
        except PydanticCustomError:
            raise expected(self.what) from None


def or_on_off(such_as: str) -> OrShort:
    """Return the shape that reads on and off as a mapping that sets only ``enabled``."""
    return OrShort(
        lambda value: {"enabled": on_off(value)},
        (ON_OFF,),
        f"on, off or a mapping such as {such_as}",
    )


@dataclass(frozen=True, slots=True, eq=False)
class Described:
    """Documents a key wherever it may stand, optional or not."""

    description: str
    examples: tuple[Any, ...]

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {
            **handler(core),
            "description": self.description,
            "examples": list(self.examples),
        }


T = TypeVar("T")
OneOrMany = Annotated[list[T], Listed()]
AnyNumber = Annotated[list[T], Listed(may_be_empty=True)]
Filled = Annotated[T, _Filled()]
