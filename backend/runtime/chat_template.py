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
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


class ChatTemplate:
    """A model's template, compiled once."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], tool_source: str | None = None
    ) -> None:
        """Compile.

        ``tool_source`` is the template some models keep for requests with tools. Raises
        ValueError when a template is not valid Jinja.
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
        self.tool_source = tool_source or source
        try:
            self._template = environment.from_string(source)
            self._tool_template = environment.from_string(self.tool_source)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"chat template, line {error.lineno}: {error.message}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> str:
        """Return the prompt text, special tokens included. Raises ChatTemplateError."""
        template = self._tool_template if tools else self._template
        try:
            return template.render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except jinja2.TemplateError as error:
            raise ChatTemplateError(
                f"the model's chat template refuses these messages: {error}"
            ) from error
        except (AttributeError, KeyError, TypeError, ValueError, ArithmeticError) as error:
            # Template code running over messages of a shape that its author did not expect.
            raise ChatTemplateError(
                f"the model's chat template cannot read these messages: {error}"
            ) from error
