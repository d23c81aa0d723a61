"""What ``compress`` sets: which parts of a prompt are context, and how they are made shorter.

Law: what is left out is as in ``default``; unset there, nothing is compressed.
"""

from typing import Any

from policies.decision import CompressSettings, DocumentSettings, Protected
from policies.format.keys import Key, Table
from policies.format.keys.prefix import MARKER, two_markers
from policies.format.shorthand import Listed, on_or_off
from policies.format.values import ON_OFF, PERCENT, members, or_word, whole

MOST_TURNS = 1000


class _Context(Table):
    """Markers of its own, those of ``prefix.documents``, or none."""

    def fields(self, spec: Any, _inherited: Any) -> dict[str, Any]:
        own = None if spec.begin is None else DocumentSettings(spec.begin, spec.end)
        return {"documents": own, "markers": spec.enabled}

    def words(self, settings: CompressSettings) -> Any:
        if not settings.markers or settings.documents is None:
            return ON_OFF.words(settings.markers)
        return {"begin": settings.documents.begin, "end": settings.documents.end}


def _markers(spec: Any) -> str | None:
    return None if spec.begin is None and spec.end is None else two_markers(spec)


COMPRESS = Table(
    "CompressSpec",
    "Declared context made shorter, in detail.",
    Key("enabled", ON_OFF, "Compress.", "on", unset=True),
    Key(
        "documents",
        _Context(
            "ContextSpec",
            "By which markers context is known, in detail.",
            Key("enabled", ON_OFF, "Context has markers.", "on", unset=True),
            Key("begin", MARKER, "With what it begins, to the letter.", "<document>"),
            Key("end", MARKER, "With what it ends.", "</document>"),
            short=on_or_off("{begin: <document>, end: </document>}"),
            refuse=_markers,
        ),
        "What stands between these markers in the user's turns is context. on: the markers of "
        "prefix.documents. Unset: as in the default settings, and on where they do not say.",
        {"begin": "<document>", "end": "</document>"},
    ),
    Key(
        "tool_results",
        ON_OFF,
        "What tools returned is context, too. Unset: likewise, and off.",
        "on",
    ),
    Key(
        "minify",
        ON_OFF,
        "White space that says nothing goes: in JSON outside of strings, in prose runs of spaces "
        "and blank lines. Unset: likewise, and on.",
        "on",
    ),
    Key(
        "duplicates",
        ON_OFF,
        "Passages go that an earlier one says nearly to the word, with the same numbers, names, "
        "identifiers and negations. Unset: likewise, and on.",
        "on",
    ),
    Key(
        "keep",
        PERCENT,
        "Passages that do not bear on the question go, until this share of its context is left. "
        "Unset: likewise, and 100%, which is none.",
        "50%",
    ),
    Key(
        "protect",
        Listed(members(Protected), least=0, into=frozenset, order=tuple(Protected)),
        "Sentences with these stay, of passages that go, unless they are about another thing "
        "altogether. Unset: likewise, and all.",
        ["numbers", "negation", "ids"],
    ),
    Key(
        "history",
        or_word(whole(2, MOST_TURNS), "off", 0),
        "Of longer conversations, all but the latest so many user turns (and up to as many more) "
        "are summed up by the upstream. Unset: likewise, and off.",
        *(8, "off"),
    ),
    Key(
        "min_gain",
        PERCENT,
        "A question's context is sent as it came where less than this would be saved. Unset: "
        "likewise, and 5%.",
        "5%",
    ),
    short=on_or_off("{keep: 50%}"),
)
