"""Prefix rewrite: a request becomes one with a repeated prefix, by the active rules.

Laws: only what a rule names changes. A rule that cannot be sure leaves the request as it is, and
gives its reason. All other bytes stay, so edits are spliced in and nothing is printed again. The
last user turn never changes. A rewritten request is not changed again. Each text is cut once, at
the markers of its documents, and all other rules apply only to the text between them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

import orjson

from gateway.prompts.json_splice import Edit, Places, Text, splice, with_values
from gateway.prompts.outcome import (
    Declined,
    NotRewritten,
    NotRewrittenError,
    PreparedRequest,
    Rewrite,
    decline,
)
from gateway.prompts.rewrite.text_rules import (
    NOTHING_KNOWN,
    Memory,
    conversation,
    normalise,
    order_documents,
)
from gateway.prompts.rewrite.tool_rules import Form, Forms, arrange_tools
from gateway.prompts.rewrite.volatile import finder, move_values, refuse_placeholders
from gateway.protocol.endpoints.registry import SPECS
from policies.decision import MARKS, Endpoint, PrefixSettings, SchemaKeys

MAX_CHARACTERS = 2**20
"""Of all texts together; longer ones are left as they are."""

_Pieces = list[list[str]]
"""Of each text; each second one is a document."""


@dataclass(frozen=True, slots=True)
class RewrittenRequest(PreparedRequest):
    """A request with a repeated prefix, and the facts to remember about it."""

    digests: tuple[bytes, ...] = ()
    """Of the retrieved documents, in the order in which they are sent."""
    tools: tuple[Form, ...] = ()
    """Forms of tools that were not known before."""


def rules_for(
    endpoint: Endpoint, body: dict[str, Any], settings: PrefixSettings
) -> tuple[Rewrite, ...]:
    """Return the rules that are on and may apply."""
    spec = SPECS[endpoint]
    if spec.turns is None:
        return ()
    on_tools = _tool_rules(settings) if any(body.get(field) for field in spec.tool_fields) else ()
    if spec.is_anthropic:
        return on_tools
    return on_tools + tuple(rule.rewrite for rule in TEXT_RULES if rule.is_on(settings))


def _tool_rules(settings: PrefixSettings) -> tuple[Rewrite, ...]:
    keys = () if settings.schema_keys is SchemaKeys.OFF else (Rewrite.SCHEMA_KEYS,)
    return (*keys, Rewrite.TOOLS) if settings.sorts_tools else keys


def rewrite(
    endpoint: Endpoint,
    body: dict[str, Any],
    raw: bytes,
    settings: PrefixSettings,
    memory: Memory = NOTHING_KNOWN,
    *,
    known: Forms | None = None,
) -> RewrittenRequest:
    """Return the request with the rules of ``settings`` applied; ``raw`` is the JSON of ``body``.

    ``body`` itself is never changed. ``memory`` holds the known documents, and ``known`` the known
    tools for ``settings.schema_keys``.
    """
    spec = SPECS[endpoint]
    rules = [] if spec.is_anthropic else [rule for rule in TEXT_RULES if rule.is_on(settings)]
    on_tools = _tool_rules(settings)
    if not rules and not on_tools:
        return RewrittenRequest(body, raw)
    draft = _Draft(endpoint, settings, memory, Places(raw, body), body)
    if on_tools:
        for name in spec.tool_fields:
            if body.get(name):
                draft.arrange_tools(name, known or {})
    if rules and spec.turns is not None:
        draft.rewrite_texts(rules)
    edits = tuple(sorted(draft.edits))
    return RewrittenRequest(
        draft.body,
        splice(raw, edits) if edits else raw,
        tuple(dict.fromkeys(draft.changes)),
        tuple(dict.fromkeys(draft.declined)),
        edits,
        digests=tuple(draft.digests),
        tools=tuple(draft.tools),
    )


@dataclass(slots=True)
class _Draft:
    """A request and its changes so far; edits are to the client's bytes."""

    endpoint: Endpoint
    settings: PrefixSettings
    memory: Memory
    places: Places
    body: dict[str, Any]
    changes: list[Rewrite] = field(default_factory=list)
    declined: list[Declined] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    tools: list[Form] = field(default_factory=list)
    block: str | None = None
    """The moved values."""

    def arrange_tools(self, name: str, known: Forms) -> None:
        places, settings = self.places, self.settings
        tools = places.body[name]
        if not isinstance(tools, list) or not all(isinstance(each, dict) for each in tools):
            return
        if settings.sorts_tools and _has_marks(places.raw, tools):
            self.declined += decline((Rewrite.TOOLS,), NotRewritten.MARKED)
            settings = replace(settings, sorts_tools=False)
        try:
            start = places.start((name,))
            result = arrange_tools(places.raw, start, tools, settings, known)
        except NotRewrittenError as error:
            self.declined += decline(_tool_rules(settings), error.why)
            return
        self.tools += result.new
        if result.edit is not None:
            self.edits.append(result.edit)
            self.body = {**self.body, name: result.value}
            self.changes += result.changes

    def rewrite_texts(self, rules: Sequence["TextRule"]) -> None:
        """Apply the rules on texts; one that is not sure changes nothing."""
        earlier = self.settings.earlier_turns
        given = conversation(self.endpoint, self.places.body, earlier_turns=earlier)
        if given is None:
            self.declined += decline((rule.rewrite for rule in rules), NotRewritten.NO_USER_TURN)
            return
        if given.has_block or not given.texts:  # it has been rewritten before
            return
        if sum(len(text) for _, text in given.texts) > MAX_CHARACTERS:
            self.declined += decline((rule.rewrite for rule in rules), NotRewritten.TOO_LARGE)
            return
        pieces: _Pieces = [[text] for _, text in given.texts]
        for rule in rules:
            before = pieces
            try:
                before, pieces = rule.apply(self, given.texts, pieces)
            except NotRewrittenError as error:
                self.declined += decline((rule.rewrite,), error.why)
            if pieces != before:
                self.changes.append(rule.rewrite)
        texts = [
            Text(old.path, text)
            for old, text in zip(given.texts, map("".join, pieces), strict=True)
            if text != old.text
        ]
        self.edits += [Edit(*self.places.span(path), orjson.dumps(text)) for path, text in texts]
        self.body = with_values(self.body, texts)
        if self.block is not None:
            self._put_block(given.place, self.block)

    def order_documents(self, texts: list[Text], pieces: _Pieces) -> tuple[_Pieces, _Pieces]:
        if self.settings.documents is None:
            return pieces, pieces
        whole = [text for _, text in texts]
        cut, ordered, self.digests = order_documents(whole, self.settings.documents, self.memory)
        return cut, ordered

    def normalise(self, texts: list[Text], pieces: _Pieces) -> tuple[_Pieces, _Pieces]:
        return pieces, normalise(pieces, [path[:2] for path, _ in texts])

    def move_volatile(self, _: list[Text], texts: _Pieces) -> tuple[_Pieces, _Pieces]:
        """Put placeholders for volatile values, which go into the block."""
        between = [piece for pieces in texts for piece in pieces[::2]]
        found = finder(self.settings.volatile, self.settings.patterns)
        stable, block = move_values(between, found)
        if block is None:
            return texts, texts
        turns = self.places.body[SPECS[self.endpoint].question_field]
        # Text that is not the model's own may come from a page that a tool fetched.
        refuse_placeholders(
            turns
            if isinstance(turns, str)
            else [turn for turn in turns if turn.get("role") != "assistant"]
        )
        left = iter(stable)
        result = [list(pieces) for pieces in texts]
        for pieces in result:
            pieces[::2] = islice(left, (len(pieces) + 1) // 2)
        self.block = block
        return texts, result

    def _put_block(self, place: int, text: str) -> None:
        """Put a turn with the moved values before the last user turn.

        It is a user turn: more servers and templates accept two user turns in a row than a second
        system message, which some move to the front. Nor does a value gain authority by moving. If
        tools have answered the last user turn, the block goes to the end: nothing may stand between
        calls and results, and before them it would change all that follows.
        """
        name, places = SPECS[self.endpoint].question_field, self.places
        block = {"role": "user", "content": text}
        written, turns = orjson.dumps(block), self.body[name]
        if isinstance(turns, str):
            start, end = places.span((name,))
            self.edits.append(Edit(start, start, b"[" + written + b',{"role":"user","content":'))
            self.edits.append(Edit(end, end, b"}]"))
            turns = [{"role": "user", "content": turns}]
        elif place < len(turns):
            start = places.start((name, place))
            self.edits.append(Edit(start, start, written + b","))
        else:
            _, end = places.span((name, place - 1))
            self.edits.append(Edit(end, end, b"," + written))
        self.body = {**self.body, name: [*turns[:place], block, *turns[place:]]}


class TextRule(NamedTuple):
    """A rule on texts. ``apply`` returns a draft's pieces before, cut at documents, and after."""

    rewrite: Rewrite
    is_on: Callable[[PrefixSettings], object]
    apply: Callable[[_Draft, list[Text], _Pieces], tuple[_Pieces, _Pieces]]


TEXT_RULES = (
    TextRule(Rewrite.DOCUMENTS, lambda it: it.documents, _Draft.order_documents),
    TextRule(Rewrite.WHITESPACE, lambda it: it.whitespace, _Draft.normalise),
    TextRule(Rewrite.VOLATILE, lambda it: it.volatile or it.patterns, _Draft.move_volatile),
)
"""All rules on texts, in the order in which they are applied."""


def _has_marks(raw: bytes, tools: list[dict[str, Any]]) -> bool:
    marks = [mark for mark in MARKS if mark.encode() in raw]
    return any(
        mark in holder
        for mark in marks
        for tool in tools
        for holder in (tool, tool.get("function"))
        if isinstance(holder, dict)
    )
