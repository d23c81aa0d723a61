"""Prefix rewrite: a request becomes one whose prefix repeats, by the rules that are on.

Laws: only what a rule names changes. A rule that cannot be sure leaves the request as it is, and
gives its reason. All other bytes stay as they came, so edits are spliced in and nothing is printed
again. The last user turn never changes. A rewritten request is not changed again.
"""

from dataclasses import dataclass, replace
from typing import Any

from gateway.prompts.json_splice import Edit, Places, all_replaced, printed, spliced
from gateway.prompts.outcome import Changed, Declined, NotRewritten, NotRewrittenError, Rewrite
from gateway.prompts.rewrite import text_rules as prose
from gateway.prompts.rewrite import tool_rules as tools
from gateway.prompts.rewrite.documents import NOTHING_KNOWN, Memory
from gateway.prompts.rewrite.tool_rules import Form, Forms
from gateway.prompts.texts import Conversation, conversation
from gateway.protocol.endpoints.table import SPECS
from policies.decision import MARKS, Endpoint, PrefixSettings, SchemaKeys


@dataclass(frozen=True, slots=True)
class Rewritten(Changed):
    """A request whose prefix repeats."""

    digests: tuple[bytes, ...] = ()
    """Of the retrieved documents, in the order in which they are sent."""
    tools: tuple[Form, ...] = ()
    """Those that were not known before."""


@dataclass(slots=True)
class _Draft:
    """The changes so far; edits are to the bytes of the request as it came."""

    body: dict[str, Any]
    changes: list[Rewrite]
    declined: list[Declined]
    edits: list[Edit]
    digests: tuple[bytes, ...] = ()
    tools: tuple[Form, ...] = ()


def rules_for(
    endpoint: Endpoint, body: dict[str, Any], settings: PrefixSettings
) -> tuple[Rewrite, ...]:
    """Return the rules that are on and may apply."""
    spec = SPECS[endpoint]
    if spec.turns is None:
        return ()
    on_tools = _tool_rules(settings) if any(body.get(field) for field in spec.tool_fields) else ()
    return on_tools + prose.rules_on(settings)


def rewrite(
    endpoint: Endpoint,
    body: dict[str, Any],
    raw: bytes,
    settings: PrefixSettings,
    memory: Memory = NOTHING_KNOWN,
    *,
    known: Forms | None = None,
) -> Rewritten:
    """Return the request with the rules of ``settings`` applied; ``raw`` is the JSON of ``body``.

    ``body`` itself is never changed. ``memory`` holds the known documents, and ``known`` the known
    tools for ``settings.schema_keys``.
    """
    draft = _Draft(body, [], [], [])
    places = Places(raw, body)
    spec = SPECS[endpoint]
    for field in spec.tool_fields:
        if body.get(field) and _tool_rules(settings):
            _arrange_tools(draft, field, places, settings, known or {})
    if settings.changes_texts and spec.turns is not None:
        _rewrite_texts(draft, endpoint, places, settings=settings, memory=memory)
    changes, declined = tuple(dict.fromkeys(draft.changes)), tuple(dict.fromkeys(draft.declined))
    edits = tuple(sorted(draft.edits))
    sent = spliced(raw, edits) if edits else raw
    return Rewritten(draft.body, sent, changes, declined, edits, draft.digests, draft.tools)


def _tool_rules(settings: PrefixSettings) -> tuple[Rewrite, ...]:
    keys = () if settings.schema_keys is SchemaKeys.OFF else (Rewrite.SCHEMA_KEYS,)
    return (*keys, Rewrite.TOOLS) if settings.sorts_tools else keys


def _arrange_tools(
    draft: _Draft, field: str, places: Places, settings: PrefixSettings, known: Forms
) -> None:
    came = places.body[field]
    if not isinstance(came, list) or not all(isinstance(each, dict) for each in came):
        return
    if settings.sorts_tools and _has_marks(places.raw, came):
        draft.declined.append(Declined(Rewrite.TOOLS, NotRewritten.MARKED))
        settings = replace(settings, sorts_tools=False)
    try:
        result = tools.arrange_tools(places.raw, places.start((field,)), came, settings, known)
    except NotRewrittenError as error:
        draft.declined += (Declined(rule, error.why) for rule in _tool_rules(settings))
        return
    draft.tools += tuple(result.met)
    if result.edit is not None:
        draft.edits.append(result.edit)
        draft.body = {**draft.body, field: result.value}
        draft.changes += result.changes


def _has_marks(raw: bytes, came: list[dict[str, Any]]) -> bool:
    """Tell whether the client has set a cache breakpoint among the tools."""
    marks = [mark for mark in MARKS if mark.encode() in raw]
    return any(
        mark in holder
        for mark in marks
        for each in came
        for holder in (each, each.get("function"))
        if isinstance(holder, dict)
    )


def _rewrite_texts(
    draft: _Draft,
    endpoint: Endpoint,
    places: Places,
    *,
    settings: PrefixSettings,
    memory: Memory,
) -> None:
    given = conversation(endpoint, places.body, earlier_turns=settings.earlier_turns)
    if given is None:
        why = NotRewritten.NO_USER_TURN
        draft.declined += (Declined(rule, why) for rule in prose.rules_on(settings))
        return
    if given.has_block:  # it has been rewritten before
        return
    result = prose.rewrite_texts(given, settings, memory)
    try:
        draft.edits += [Edit(*places.of(each.path), printed(each.text)) for each in result.texts]
    except TypeError:  # a lone surrogate
        why = NotRewritten.UNREADABLE
        draft.declined += (Declined(rule, why) for rule in prose.rules_on(settings))
        return
    draft.changes += result.changes
    draft.declined += result.declined
    draft.digests = result.digests
    draft.body = all_replaced(draft.body, result.texts)
    if result.block is not None:
        _put_block(draft, given, result.block, places)


def _put_block(draft: _Draft, given: Conversation, text: str, places: Places) -> None:
    """Put a turn with the moved values before the last user turn.

    It is a user turn: more servers and templates accept two user turns in a row than a second
    system message, which some move to the front. Nor does a value gain authority by moving. If
    tools have answered the last user turn, the block goes to the end: nothing may stand between
    calls and results, and before them it would change all that follows.
    """
    block = {"role": "user", "content": text}
    field, turns, place = given.field, given.turns, given.place
    if turns is None:
        start, end = places.of((field,))
        draft.edits.append(
            Edit(start, start, b"[" + printed(block) + b',{"role":"user","content":')
        )
        draft.edits.append(Edit(end, end, b"}]"))
        asked = {"role": "user", "content": draft.body[field]}
        draft.body = {**draft.body, field: [block, asked]}
        return
    if place < len(turns):
        start = places.start((field, place))
        draft.edits.append(Edit(start, start, printed(block) + b","))
    else:
        _, end = places.of((field, place - 1))
        draft.edits.append(Edit(end, end, b"," + printed(block)))
    now = draft.body[field]
    draft.body = {**draft.body, field: [*now[:place], block, *now[place:]]}
