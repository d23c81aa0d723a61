"""Arrays of tokens in requests, checked in pieces.

pydantic keeps the interpreter's lock for a whole array, which takes a tenth of a second for a
million tokens; between pieces the event loop gets its turn.
"""

from typing import Annotated, Any

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import InitErrorDetails

PIECE = 16 * 1024

_PLAIN = 2**31
"""No bound on a token is below, and no vocabulary above."""


def in_pieces(given: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Let ``check`` judge a long array piece by piece; the first complaint is of the whole."""
    if type(given) is not list or len(given) <= PIECE:
        return check(given)
    for start in range(0, len(given), PIECE):
        piece = given[start : start + PIECE]
        # What C tells in a tenth of the time; bool is another type.
        if set(map(type, piece)) == {int} and min(piece) >= 0 and max(piece) <= _PLAIN:
            continue
        try:
            check(piece)
        except ValidationError as error:
            raise _moved(error, start) from None
    return given


def _moved(error: ValidationError, start: int) -> ValidationError:
    details: list[InitErrorDetails] = []
    for told in error.errors(include_url=False):
        first, *rest = told["loc"]
        details.append(
            InitErrorDetails(
                type=told["type"],
                loc=(int(first) + start, *rest),
                input=told["input"],
                ctx=told.get("ctx", {}),
            )
        )
    return ValidationError.from_exception_data(error.title, details)


# One complaint is sent, so a long array of wrong elements needs no more than one made.
Tokens = Annotated[
    list[Annotated[int, Field(ge=0)]],
    Field(min_length=1, fail_fast=True),
    WrapValidator(in_pieces),
]
