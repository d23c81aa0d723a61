"""Ways to write a value so that a scan overlooks it, and text that only looks as if it were so."""

import base64
from collections.abc import Callable
from random import Random
from urllib.parse import quote

from personal_data.values import BASE64, HEX, Maker, digits, draw_text

Disguise = Callable[[str], str]


def _groups(mark: str) -> Disguise:
    return lambda value: value.replace(" ", mark).replace("-", mark)


def _within(mark: str) -> Disguise:
    return lambda value: value[: len(value) // 2] + mark + value[len(value) // 2 :]


def _percent(value: str) -> str:
    return "".join(f"%{byte:02X}" for byte in value.encode())


def _base64(value: str) -> str:
    return base64.b64encode(value.encode()).decode()


DISGUISES: dict[str, Disguise] = {
    "zero width": "\u200b".join,
    "fillers": "\u3164".join,
    "tabs": _groups("\t"),
    "underscores": _groups("_"),
    "bold": _groups("** **"),
    "bold within": _within("**"),
    "tags within": _within("</b><b>"),
    "entities": lambda value: "".join(f"&#{ord(character)};" for character in value),
    "percent": _percent,
    "percent twice": lambda value: quote(_percent(value)),
    "base64": _base64,
    "base64 of a sentence": lambda value: _base64(f"it is {value}, I think"),
    "hexadecimal": lambda value: value.encode().hex(),
    "not: a space after each": " ".join,
    "not: reversed": lambda value: value[::-1],
}


def _table(draw: Random) -> str:
    columns, mark = draw.randrange(2, 9), draw.choice(("\t", "</td><td>", " | "))
    return "\n".join(
        mark.join(digits(draw, draw.randrange(1, 6)) for _ in range(columns)) for _ in range(5)
    )


def _code(draw: Random) -> str:
    n = draw.randrange(1000)
    return draw.choice(
        (
            f"x{n} = a_{n} * b[{n}][{n % 7}] ** 2 - f({n})({n % 5})  # {n}_000_000",
            f"assert `{n}` == **{n}** && y_{n} < {n} > z; /v{n % 3}/{n}/{n * 7}",
            f"#define MASK_{n} 0x{draw_text(draw, HEX, 8)} /* {n}/{n + 5} */",
        )
    )


def _page(draw: Random) -> str:
    n = draw.randrange(10_000)
    return (
        f'<p class="a{n}"><b>{n}</b> of <i>{n * 3}</i></p><ul><li>{n % 100}</li><li>{n}</li></ul>'
        f"&nbsp;&copy; {2000 + n % 30}, <a href='/p/{n}?q=a%20b%2C{n}&amp;lang=en'>{n}/{n + 1}</a>"
    )


def _encoded(draw: Random) -> str:
    return draw.choice(
        (
            base64.b64encode(draw.randbytes(draw.choice((300, 3000)))).decode(),
            draw_text(draw, HEX, 64),
            draw_text(draw, BASE64, 12),
            quote(f"how many of {draw.randrange(10**6)} are there? (100 %)"),
            _base64("what is it?"),
        )
    )


LOOKALIKES: dict[str, Maker] = {
    "tables of figures": _table,
    "code": _code,
    "pages": _page,
    "encoded": _encoded,
}
