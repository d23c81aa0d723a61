"""Tools as OpenAI's clients declare and choose them."""

from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from backend.server.fields import Strict, one_of

MOST_TOOLS = 128

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]+$", max_length=64)]


class Function(Strict):
    """A function that may be called; ``strict`` wants arguments that are valid, always."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def for_template(self) -> dict[str, Any]:
        """Return what chat templates read."""
        described = {} if self.description is None else {"description": self.description}
        parameters = self.parameters or {"type": "object", "properties": {}}
        return {
            "type": "function",
            "function": {"name": self.name, **described, "parameters": parameters},
        }


class Tool(Strict):
    """Functions are the only tools there are."""

    type: Literal["function"]
    function: Function


class FunctionName(Strict):
    """Which function is meant."""

    name: str


class NamedChoice(Strict):
    """This function must be called."""

    type: Literal["function"]
    function: FunctionName


Tools = Annotated[list[Tool], Field(max_length=MOST_TOOLS)]
ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<mode>")]
    | Annotated[NamedChoice, Tag("<named>")],
    one_of("one of a string or an object", mode=str, named=dict),
]
