"""The tools of a request: the keys of their schemas, and their own order.

Law: no tool is lost, added or changed in meaning; those that were in order stay byte for byte.

Tools as clients write them, and as they are sent: agents send the same ones thousands of times.

Law: what is remembered saves time and changes nothing else. It is bounded in bytes, and what it
holds is shared and never changed.
"""

from collections.abc import Iterable, Mapping
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from gateway.prompts.json_splice import Edit, Elements, end_of, next_element
from gateway.prompts.outcome import NotRewritten, NotRewrittenError, Rewrite
from gateway.prompts.rewrite.schema_keys import in_order
from policies.decision import PrefixSettings, SchemaKeys

MOST_BYTES = 2**24
"""Of all remembered tools; beyond it, all are forgotten."""
LONGEST = 2**14
"""Of one text; longer ones are not remembered."""
_FORM_BYTES = 1024
"""What a form takes beside its texts, about, with its owner's table."""
_MOST_FORMS = 8
"""Ways in which tools of one name are written; the one met first is forgotten."""


class Form(NamedTuple):
    """A tool as it came, and as it is sent."""

    name: str
    came: bytes
    sent: bytes
    """Is ``came`` where nothing moves."""
    value: dict[str, Any]
    """That of ``sent``."""


Forms = Mapping[str, tuple[Form, ...]]
"""By the names of tools."""


class KnownTools:
    """The tools of former requests, by their owner. Read by several threads, told by one.

    How long a request takes must not tell one owner which tools another has.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._forms: dict[tuple[bytes, str], dict[str, tuple[Form, ...]]] = {}
        self._bytes = 0

    def forms(self, keys: SchemaKeys, owner: bytes) -> Forms:
        """Return what is known of the owner's tools whose keys are put in this order."""
        return self._forms.get((owner, keys.value), {})

    def note(self, keys: SchemaKeys, met: Iterable[Form], owner: bytes) -> None:
        """Remember tools of the owner's that were not known."""
        for form in met:
            if len(form.came) > LONGEST:
                continue
            if self._bytes + _size(form) > self._most_bytes:
                self._forms, self._bytes = {}, 0
            known = self._forms.setdefault((owner, keys.value), {})
            others = known.get(form.name, ())
            known[form.name] = (form, *others[: _MOST_FORMS - 1])
            self._bytes += _size(form) - sum(map(_size, others[_MOST_FORMS - 1 :]))


def _size(form: Form) -> int:
    return len(form.came) + len(form.sent) + _FORM_BYTES


TOOLS_MOST_BYTES = 2**20
"""Of all tools together; larger ones are left as they are."""


class Arranged(NamedTuple):
    """What becomes of the tools of a request."""

    met: list[Form]
    """Those that were not known."""
    changes: tuple[Rewrite, ...] = ()
    value: list[dict[str, Any]] | None = None
    """The array as it is sent; None where nothing changes."""
    edit: Edit | None = None


def arranged(
    raw: bytes, start: int, came: list[dict[str, Any]], settings: PrefixSettings, known: Forms
) -> Arranged:
    """Put the tools of the array that begins at ``start`` in order. Raises NotRewrittenError."""
    names = _names(came)
    elements = Elements(raw, start, came)
    try:
        read = _recognised(raw, elements.start(0), names, known) or _read(
            raw, elements, names, settings.schema_keys, known
        )
    except TypeError:  # an integer of more than 64 bits
        raise NotRewrittenError(NotRewritten.UNREADABLE) from None
    if read.end - start > TOOLS_MOST_BYTES:
        raise NotRewrittenError(NotRewritten.TOO_LARGE)
    sent = read.forms
    changes: list[Rewrite] = []
    if any(form.sent is not form.came for form in sent):
        changes.append(Rewrite.SCHEMA_KEYS)
    if settings.sorts_tools:
        sent = _by_name(read.forms)
        if sent != read.forms:
            changes.append(Rewrite.TOOLS)
    if not changes:
        return Arranged(read.met)
    texts = [form.sent for form in sent]
    if isinstance(read.gaps, bytes):
        text = read.gaps.join(texts)
    else:
        text = b"".join(chain.from_iterable(zip(texts, (*read.gaps, b""), strict=True)))
    values = [form.value for form in sent]
    return Arranged(read.met, tuple(changes), values, Edit(read.start, read.end, text))


def _by_name(forms: list[Form]) -> list[Form]:
    return sorted(forms, key=attrgetter("name", "sent"))


class _Read(NamedTuple):
    """The tools of an array, as they stand between ``start`` and ``end``."""

    start: int
    end: int
    forms: list[Form]
    gaps: bytes | list[bytes]
    """What stands between them, one by one if that is not always the same."""
    met: list[Form]
    """Those that were not known."""


def _recognised(raw: bytes, start: int, names: list[str], known: Forms) -> _Read | None:
    """Read tools all of which are known, in one comparison; None where that does not do.

    How a client wrote its tools the last time it will write them again, and to compare is faster by
    far than to read: what stands there is the same text, so it is the same value and ends there.
    """
    met = [raw.startswith(form.came, start) for form in known.get(names[0], ())]
    if True not in met:
        return None
    index = met.index(True)  # tools that came together were met together
    try:
        forms = [known[name][index] for name in names]
    except LookupError:
        return None
    end = start + len(forms[0].came)
    gap = raw[end : next_element(raw, end)]
    text = gap.join([form.came for form in forms])
    if not raw.startswith(text, start):
        return None
    return _Read(start, start + len(text), forms, gap, [])


def _read(
    raw: bytes, elements: Elements, names: list[str], keys: SchemaKeys, known: Forms
) -> _Read:
    """Read the tools of an array one by one."""
    forms: list[Form] = []
    gaps: list[bytes] = []
    met: list[Form] = []
    at = end = start = elements.start(0)
    for index, (name, tool) in enumerate(zip(names, elements.values, strict=True)):
        for form in known.get(name, ()):
            if raw.startswith(form.came, at):
                break
        else:
            end = end_of(raw, at, tool) or elements.span(index)[1]
            if end - start > TOOLS_MOST_BYTES:
                raise NotRewrittenError(NotRewritten.TOO_LARGE)
            text = raw[at:end]
            sent, value = in_order(text, tool, keys) or (text, tool)
            form = Form(name, text, sent, value)
            met.append(form)
        forms.append(form)
        end = at + len(form.came)
        at = next_element(raw, end)
        gaps.append(raw[end:at])
    return _Read(start, end, forms, gaps[:-1], met)


def _names(tools: list[dict[str, Any]]) -> list[str]:
    found = []
    for tool in tools:
        function = tool.get("function")
        name = (function if isinstance(function, dict) else tool).get("name")
        found.append(name if isinstance(name, str) else "")
    return found
