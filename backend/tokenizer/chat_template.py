"""Chat templates as Hugging Face defines them: Jinja in a sandbox, with its few extra names.

Templates come with the model, so they are data from outside: they run in jinja2's immutable
sandbox and can neither reach the process nor change the messages they are given.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import orjson

_SHORT_ID = 9
_END = "\N{OBJECT REPLACEMENT CHARACTER}end of the message to continue "
"""Marks in the rendered text where the last message ends."""


class ChatTemplateError(ValueError):
    """The template refuses these messages, or the model has no template: the client's to fix."""


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %}`` marks assistant text for training masks; serving only renders it."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it without ClassVar)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes HTML characters, which would change what the model reads.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _short(call_id: str) -> str:
    """Return nine letters or digits, the same for the same id."""
    return hashlib.sha256(call_id.encode()).hexdigest()[:_SHORT_ID]


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _compile(
    environment: jinja2.Environment, sources: Mapping[str, str], name: str
) -> jinja2.Template | None:
    try:
        return environment.from_string(sources[name]) if name in sources else None
    except jinja2.TemplateSyntaxError as error:
        which = "chat template" if name == "default" else f"chat template '{name}'"
        raise ValueError(f"{which}, line {error.lineno}: {error.message}") from error


class ChatTemplate:
    """A model's templates, compiled once.

    Calls in the history have their arguments as an object, or as text where only text can be
    rendered. Their ids are cut to the nine characters that Mistral's templates ask for.
    """

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        """Compile ``default`` of the ``sources``, and ``tool_use`` for requests with tools.

        Raises ValueError with template and line where one is not valid Jinja.
        """
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, jinja2.ext.loopcontrols],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _strftime_now
        self._special_tokens = dict(special_tokens)
        self._names = ", ".join(sorted(sources))
        self.tool_source = sources.get("tool_use") or sources.get("default", "")
        self.source = sources.get("default") or self.tool_source
        self._template = _compile(environment, sources, "default")
        self._tool_template = _compile(environment, sources, "tool_use") or self._template
        # The probe is rendered as it is.
        self._reads_text, self._has_short_ids = True, False
        forms = ((False, False), (False, True), (True, False), (True, True))
        able = (form for form in forms if self._can_read(short=form[0], text=form[1]))
        self._has_short_ids, self._reads_text = next(able, forms[0])

    def _can_read(self, *, short: bool, text: bool) -> bool:
        """Say whether a conversation with a call can be rendered in this form."""
        function = {"name": "f", "arguments": '{"the_key": 1}' if text else {"the_key": 1}}
        call = {"id": "a" * (_SHORT_ID if short else 24), "type": "function", "function": function}
        described = {"description": "d", "parameters": {"type": "object", "properties": {}}}
        try:
            written = self.render(
                [
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": "", "tool_calls": [call]},
                    {"role": "tool", "content": "b", "tool_call_id": call["id"]},
                ],
                add_generation_prompt=True,
                continue_final_message=False,
                tools=[{"type": "function", "function": {"name": "f", **described}}],
                variables={},
            )
        except ChatTemplateError:
            return False
        return "{'the_key'" not in written  # an object that was joined to text

    def _of_history(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return ``message`` with the ids and the arguments of calls as the template reads them."""
        if self._has_short_ids and "tool_call_id" in message:
            message = {**message, "tool_call_id": _short(message["tool_call_id"])}
        if message.get("tool_calls"):
            calls = [self._of_call(call) for call in message["tool_calls"]]
            message = {**message, "tool_calls": calls}
        return message

    def _of_call(self, call: Mapping[str, Any]) -> Mapping[str, Any]:
        function = dict(call["function"])
        if isinstance(function["arguments"], str) and not self._reads_text:
            with suppress(ValueError):
                function["arguments"] = orjson.loads(function["arguments"])
        short = {"id": _short(call["id"])} if self._has_short_ids else {}
        return {**call, **short, "function": function}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> str:
        """Return the prompt text, special tokens included. Raises ChatTemplateError.

        With ``continue_final_message`` the text ends where the last message does. ``variables``
        are a client's; what is told to every template goes before them.
        """
        template = self._tool_template if tools else self._template
        if template is None:
            kind = "with" if tools else "without"
            problem = f"no chat template for requests {kind} tools, only: {self._names}"
            raise ChatTemplateError(f"this model has {problem}")
        messages = [self._of_history(message) for message in messages]
        if continue_final_message:
            last = messages[-1]
            messages = [*messages[:-1], {**last, "content": last["content"] + _END}]
        told = {
            "documents": None,
            **self._special_tokens,
            **variables,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            # As one value: the name of a variable may be that of an argument of Python's.
            text = template.render(told)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(
                f"the model's chat template refuses these messages: {error}"
            ) from error
        except (
            *(AttributeError, KeyError, TypeError, ValueError, ArithmeticError),
            RecursionError,
        ) as error:
            # Template code running over messages of a shape that its author did not expect.
            raise ChatTemplateError(
                f"the model's chat template cannot read these messages: {error}"
            ) from error
        if not continue_final_message:
            return text
        at = text.rfind(_END.rstrip())
        if at < 0:
            raise ChatTemplateError(
                "the model's chat template leaves the last message out, so it cannot be continued"
            )
        # A template that trims messages has taken the mark's last character, a space.
        return text[:at] if text.startswith(_END, at) else text[:at].rstrip()
