"""However a body is written, its values are found where a walk through it finds them."""

import json
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gateway.prompts.json_splice import Places
from gateway.protocol.exact_json import parse_body

PIECES = [
    '"',
    "\\",
    "{",
    "}",
    "[",
    "]",
    "}]",
    ":",
    ",",
    "tools",
    '"tools":[',
    "é",
    "世",
    "😀",
    "\n",
]
PIECES += ["a", " ", "\x7f", "\0", "/"]
KEYS = ["tools", "role", "content", "}", "]", '"', "é", ""]
SCALARS = [None, True, 0, -1, 1.5, 1e300, 2**63, 2**64, 2**70]
NUMBERS = {1.5: ["1.5", "15e-1", "1.50"], 0: ["0", "0.0", "-0", "0E9"]}


class Writer:
    """Writes JSON in odd ways, and tells where it wrote each value."""

    def __init__(self, random):
        self._choice = random.choice
        self.text = ""
        self.places = {}

    def write(self, value, path=()):
        start = len(self.text.encode())
        if isinstance(value, dict):
            self._members("{}", [(key, (*path, key), each) for key, each in value.items()])
        elif isinstance(value, list):
            self._members("[]", [(None, (*path, n), each) for n, each in enumerate(value)])
        elif isinstance(value, str):
            self._string(value)
        elif not isinstance(value, bool) and value in NUMBERS:
            self.text += self._choice(NUMBERS[value])
        else:
            self.text += json.dumps(value)
        self.places[path] = (start, len(self.text.encode()))

    def _members(self, brackets, members):
        self.text += brackets[0] + self._space()
        for index, (key, path, value) in enumerate(members):
            self.text += ("," + self._space()) if index else ""
            if key is not None:
                self._string(key)
                self.text += self._space() + ":" + self._space()
            self.write(value, path)
            self.text += self._space()
        self.text += brackets[1]

    def _space(self):
        return self._choice(["", "", " ", "\n  ", "\t\r\n"])

    def _string(self, text):
        how = self._choice(["plain", "plain", "ascii", "all", "some"])
        if how in ("plain", "ascii"):
            self.text += json.dumps(text, ensure_ascii=how == "ascii")
            return
        self.text += '"'
        for character in text:
            units = character.encode("utf-16-be").hex()
            escaped = "".join("\\u" + units[at : at + 4] for at in range(0, len(units), 4))
            if how == "all" or self._choice([True, False]):
                self.text += escaped.upper().replace("\\U", "\\u")
            else:
                self.text += json.dumps(character, ensure_ascii=False)[1:-1]
        self.text += '"'


def value(random, depth):
    match random.randrange(2 + 2 * (depth > 0)):
        case 0:
            return random.choice(SCALARS)
        case 1:
            return "".join(random.choices(PIECES, k=random.randrange(5)))
        case 2:
            return [value(random, depth - 1) for _ in range(random.randrange(4))]
        case _:
            return members(random, depth)


def members(random, depth):
    keys = [random.choice([*KEYS, value(random, 0)]) for _ in range(random.randrange(5))]
    return {str(key): value(random, depth - 1) for key in keys}


@given(st.integers(0, 2**64))
def test_every_value_is_found_where_it_was_written_in_whatever_order_one_asks(seed):
    random = Random(seed)  # a strategy would take most of the time
    writer = Writer(random)
    writer.write(members(random, 4))
    raw = writer.text.encode()
    paths = list(writer.places)
    random.shuffle(paths)
    places = Places(raw, parse_body(raw))
    for path in paths:
        assert places.start(path) == writer.places[path][0]
        assert places.span(path) == writer.places[path]


def test_a_place_behind_many_quotes_and_escapes_is_found():
    for unit in ('\\"', "\\u0022", "\\\\u0022", "a\\\\", "\\u005D]\\u007d}", "b"):
        for count in (1, 700, 3_001, 20_000):
            text = f'{{"x" : ["{unit * count}"], "y":"{unit * count}" , "model" : "m"}}'
            raw = text.encode()
            start, end = Places(raw, parse_body(raw)).span(("model",))
            assert raw[start:end] == b'"m"'
            assert start == len(raw) - 4
