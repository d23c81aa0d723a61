"""What every mapping of a policy file has in common."""

from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

from policies.shapes import expected


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
