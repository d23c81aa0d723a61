"""Tools as clients write them, and as they are sent: agents send the same ones thousands of times.

Law: what is remembered saves time and changes nothing else. It is bounded in bytes, and what it
holds is shared and never changed.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from policies.decide import SchemaKeys

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
