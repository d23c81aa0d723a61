"""What the models of requests are made of."""

from typing import Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator
from pydantic_core import PydanticCustomError


class Strict(BaseModel):
    """An object whose known fields have exactly their types; others are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


def only(*neutral: Any) -> AfterValidator:
    """Accept null and the ``neutral`` values, at which a parameter changes nothing."""

    def check(value: Any) -> Any:
        if value is not None and not any(
            value == allowed and isinstance(value, bool) == isinstance(allowed, bool)
            for allowed in neutral
        ):
            raise PydanticCustomError("unsupported_parameter", "", {"neutral": neutral})
        return value

    return AfterValidator(check)


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
