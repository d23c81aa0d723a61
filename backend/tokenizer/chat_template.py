"""Chat templates as Hugging Face defines them: Jinja in a sandbox, with its few extra names.

Templates come with the model, so they are data from outside: they run in jinja2's immutable
sandbox and can neither reach the process nor change the messages they are given.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

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
    """A model's templates, compiled once."""

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
