"""What ``compress`` sets: which parts of a prompt are context, and how they are made shorter.

Law: what is left out is as in ``default``; unset there, nothing is compressed.
"""

from dataclasses import replace
from typing import Annotated, Any, Self

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from policies.decide import CompressSettings, DocumentSettings, Protected
from policies.fields import OnOff, Percent, one_of, whole_number
from policies.mappings import FilledSpec
from policies.prefix_settings import Marker
from policies.shapes import OFF, AnyNumber, Described, expected, is_off, or_on_off

MOST_TURNS = 1000

Kind = Annotated[
    str,
    PlainValidator(one_of([*Protected])),
    WithJsonSchema({"enum": [kind.value for kind in Protected]}),
]


def _turns(value: object) -> int:
    if is_off(value):
        return 0
    try:
        return whole_number(2, MOST_TURNS)(value)
    except PydanticCustomError as error:
        raise expected(f"{error.message()}, or off") from None


Turns = Annotated[
    int,
    PlainValidator(_turns),
    WithJsonSchema({"anyOf": [OFF, {"type": "integer", "minimum": 2, "maximum": MOST_TURNS}]}),
]


class ContextSpec(FilledSpec):
    """By which markers context is known, in detail."""

    enabled: OnOff = Field(default=True, description="Context has markers.", examples=["on"])
    begin: Marker | None = Field(
        default=None, description="With what it begins, to the letter.", examples=["<document>"]
    )
    end: Marker | None = Field(
        default=None, description="With what it ends.", examples=["</document>"]
    )

    @model_validator(mode="after")
    def _has_two_markers(self) -> Self:
        written = self.begin is not None or self.end is not None
        if written and (self.begin is None or self.end is None or self.begin == self.end):
            raise expected("the keys begin and end, two markers that differ")
        return self


Context = Annotated[ContextSpec, or_on_off("{begin: <document>, end: </document>}")]


class CompressSpec(FilledSpec):
    """Declared context made shorter, in detail."""

    enabled: OnOff = Field(default=True, description="Compress.", examples=["on"])
    documents: Context | None = Field(
        default=None,
        description=(
            "What stands between these markers in the user's turns is context. on: the markers "
            "of prefix.documents. Unset: as in the default settings, and on where they do not say."
        ),
        examples=[{"begin": "<document>", "end": "</document>"}],
    )
    tool_results: OnOff | None = Field(
        default=None,
        description="What tools returned is context, too. Unset: likewise, and off.",
        examples=["on"],
    )
    minify: OnOff | None = Field(
        default=None,
        description=(
            "White space that says nothing goes: in JSON outside of strings, in prose runs of "
            "spaces and blank lines. Unset: likewise, and on."
        ),
        examples=["on"],
    )
    duplicates: OnOff | None = Field(
        default=None,
        description=(
            "Passages go that an earlier one says nearly to the word, with the same numbers, "
            "names, identifiers and negations. Unset: likewise, and on."
        ),
        examples=["on"],
    )
    keep: Percent | None = Field(
        default=None,
        description=(
            "Passages that do not bear on the question go, until this share of its context is "
            "left. Unset: likewise, and 100%, which is none."
        ),
        examples=["50%"],
    )
    protect: AnyNumber[Kind] | None = Field(
        default=None,
        description=(
            "Sentences with these stay, of passages that go, unless they are about another thing "
            "altogether. Unset: likewise, and all."
        ),
        examples=[["numbers", "negation", "ids"]],
    )
    history: Turns | None = Field(
        default=None,
        description=(
            "Of longer conversations, all but the latest so many user turns (and up to as many "
            "more) are summed up by the upstream. Unset: likewise, and off."
        ),
        examples=[8, "off"],
    )
    min_gain: Percent | None = Field(
        default=None,
        description=(
            "A question's context is sent as it came where less than this would be saved. "
            "Unset: likewise, and 5%."
        ),
        examples=["5%"],
    )


Compress = Annotated[
    CompressSpec,
    or_on_off("{keep: 50%}"),
    Described(
        description=(
            "Declared context is made shorter on its way to the upstream. Keys of the cache, the "
            "scan, the user's own words and what system and developer say are left alone."
        ),
        examples=({"documents": {"begin": "<document>", "end": "</document>"}}, "off"),
    ),
]


def compress_settings(spec: CompressSpec, inherited: CompressSettings) -> CompressSettings:
    """Return what a rule's ``compress`` makes of what it inherits."""
    given: dict[str, Any] = {
        "enabled": spec.enabled,
        "tool_results": spec.tool_results,
        "minify": spec.minify,
        "duplicates": spec.duplicates,
        "keep": spec.keep,
        "protect": None if spec.protect is None else frozenset(map(Protected, spec.protect)),
        "history": spec.history,
        "min_gain": spec.min_gain,
    }
    settings = replace(
        inherited, **{name: value for name, value in given.items() if value is not None}
    )
    if spec.documents is None:
        return settings
    begin, end = spec.documents.begin, spec.documents.end
    markers = None if begin is None or end is None else DocumentSettings(begin, end)
    return replace(settings, documents=markers, markers=spec.documents.enabled)


def compress_words(settings: CompressSettings) -> Any:
    """Return the settings in the words of the file."""
    if not settings.enabled:
        return "off"
    switched = "on" if settings.markers else "off"
    markers = settings.documents if settings.markers else None
    return {
        "documents": (
            switched if markers is None else {"begin": markers.begin, "end": markers.end}
        ),
        "tool_results": "on" if settings.tool_results else "off",
        "minify": "on" if settings.minify else "off",
        "duplicates": "on" if settings.duplicates else "off",
        "keep": f"{settings.keep * 100:g}%",
        "protect": [kind.value for kind in Protected if kind in settings.protect],
        "history": settings.history or "off",
        "min_gain": f"{settings.min_gain * 100:g}%",
    }
