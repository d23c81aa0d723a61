"""Settings of a rule as tables: a row is a key, its values, what it sets and what is said of it.

Law: one row is all that the format knows of a key. From it come the reader with its messages, the
JSON schema, the field of the decision, and the words in which a decision is told.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, TypeVar

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, create_model
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema
from pydantic_core.core_schema import (
    no_info_after_validator_function,
    no_info_before_validator_function,
)

from policies.format.shorthand import FilledSpec, Listed, MappingSpec, Short
from policies.format.values import Value, expected

M = TypeVar("M", bound=MappingSpec)


class Key:
    """A row: one key of a mapping."""

    def __init__(
        self,
        name: str,
        kind: "Value | Listed | Table",
        about: str,
        *examples: Any,
        sets: str | None = None,
        unset: Any = None,
        hide: str | None = None,
        required: bool = False,
    ) -> None:
        """Take what the key is called and holds, a help text, and examples of values.

        ``sets`` is the field that the value becomes: by default one of the key's name, and for a
        mapping whose keys set fields themselves none. ``unset`` is the value where the mapping does
        not say; without it, nothing is set then. A decision is told without the key where its word
        is ``hide``. ``required`` keys may not lack in ``default``.
        """
        self.name = name
        self.kind = kind
        self.about = about
        self.examples = list(examples)
        self.sets = sets or (None if isinstance(kind, Table) else name)
        self.unset = unset
        self.hide = hide
        self.required = required

    def annotated(self, *, required: bool) -> tuple[Any, Any]:
        """Return type and field for a pydantic model."""
        default = ... if required and self.required else self.unset
        field = Field(default=default, description=self.about, examples=self.examples)
        return Annotated[Any, self.kind], field

    def fields(self, value: Any, inherited: Any) -> dict[str, Any]:
        """Return the fields that the value sets, by name."""
        if not isinstance(self.kind, Table):
            return {str(self.sets): value}
        if self.sets is None:
            return self.kind.fields(value, inherited)
        return {self.sets: self.kind.settings(value, getattr(inherited, self.sets))}

    def words(self, settings: Any) -> Any:
        """Return what a file says for this key."""
        return self.kind.words(settings if self.sets is None else getattr(settings, self.sets))


class Table:
    """A mapping of the file whose keys set fields of a decision, or of a value in it."""

    def __init__(
        self,
        name: str,
        about: str,
        *keys: Key,
        short: Short | None = None,
        off: Any = None,
        refuse: Callable[[Any], str | None] = lambda _: None,
    ) -> None:
        """Take the name in the JSON schema, a help text, and the rows.

        ``off`` are the settings that are told as off. ``refuse`` returns what was expected where
        keys that are right by themselves do not fit together.
        """
        self.name = name
        self.about = about
        self.keys = keys
        self._short = short
        self._off = off
        self._refuse = refuse

    def extend(self, spec: type[M], *, required: bool = False) -> type[M]:
        """Return ``spec`` with these keys beside its own; those that must not lack ``required``."""
        rows: dict[str, Any] = {key.name: key.annotated(required=required) for key in self.keys}
        return create_model(spec.__name__, __base__=spec, __doc__=spec.__doc__, **rows)

    @cached_property
    def _model(self) -> type[FilledSpec]:
        return self.extend(type(self.name, (FilledSpec,), {"__doc__": self.about}))

    def fields(self, spec: Any, inherited: Any) -> dict[str, Any]:
        """Return the fields that a mapping of the file sets, by name."""
        found: dict[str, Any] = {}
        for key in self.keys:
            if key.name in spec.model_fields_set or key.unset is not None:
                found |= key.fields(getattr(spec, key.name), inherited)
        return found

    def settings(self, spec: Any, inherited: Any) -> Any:
        """Return what the mapping makes of the settings that it inherits."""
        return replace(inherited, **self.fields(spec, inherited))

    def words(self, settings: Any) -> Any:
        """Return the settings in the words of the file, short where that is possible."""
        if self._off is not None and settings == self._off:
            return "off"
        every = {key: key.words(settings) for key in self.keys}
        written = {key.name: words for key, words in every.items() if words != key.hide}
        return written if self._short is None else self._short.words(written)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        mapping = no_info_after_validator_function(
            self._checked, handler.generate_schema(self._model)
        )
        if self._short is None:
            return mapping
        return no_info_before_validator_function(self._short.mapping, mapping)

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        mapping = handler(core)
        return mapping if self._short is None else {"anyOf": [*self._short.schema, mapping]}

    def _checked(self, spec: Any) -> Any:
        wrong = self._refuse(spec)
        if wrong is not None:
            raise expected(wrong)
        return spec
