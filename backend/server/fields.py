"""What the models of requests are made of."""

from functools import cache
from typing import Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from backend.server.foreign_fields import HARMLESS, REFUSED

ALLOW_UNKNOWN = "allow_unknown"
"""Of the validation's context: whether names that no server is known to read are ignored."""

_NAME = 100
"""How much of a field's name an error repeats."""


class Strict(BaseModel):
    """An object whose known fields have exactly their types; others are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class Closed(Strict):
    """An object in which fields that are not known are refused by name, unless they are null."""

    @model_validator(mode="before")
    @classmethod
    def _know_all_fields(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, dict):
            return value
        allow_unknown = bool(info.context and info.context.get(ALLOW_UNKNOWN))
        known = _names(cls)
        for name, given in value.items():
            if given is None or name in known:
                continue
            if name in REFUSED:
                if not _is_any(given, REFUSED[name]):
                    raise PydanticCustomError(
                        "unsupported_parameter", "", {"field": name, "neutral": REFUSED[name]}
                    )
            elif not allow_unknown:
                raise PydanticCustomError("unknown_parameter", "", {"field": name[:_NAME]})
        return value


@cache
def _names(schema: type[BaseModel]) -> frozenset[str]:
    return HARMLESS.union(field.alias or name for name, field in schema.model_fields.items())


def only(*neutral: Any) -> AfterValidator:
    """Accept null and the ``neutral`` values, at which a parameter changes nothing."""

    def check(value: Any) -> Any:
        if value is not None and not _is_any(value, neutral):
            raise PydanticCustomError("unsupported_parameter", "", {"neutral": neutral})
        return value

    return AfterValidator(check)


def _is_any(value: Any, neutral: tuple[Any, ...]) -> bool:
    return any(
        value == allowed and isinstance(value, bool) == isinstance(allowed, bool)
        for allowed in neutral
    )


def one_of(expected: str, **type_of_tag: type) -> Discriminator:
    """Choose a union's branch by JSON type; ``expected`` names them all, and is the message."""

    def tag(value: Any) -> str | None:
        for name, kind in type_of_tag.items():
            if type(value) is kind:
                return f"<{name}>"
        return None

    return Discriminator(tag, custom_error_type="invalid_type", custom_error_message=expected)


def combination(message: str, param: str) -> PydanticCustomError:
    """Return the error of fields that are right but do not go together."""
    return PydanticCustomError("invalid_combination", message, {"param": param})
