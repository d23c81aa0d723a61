"""What models cost: a table of prices, and which of its rows is a model's.

Law: what the table does not say is unknown, and never zero. A model is free only where a file says
so, or where every upstream that may serve it is the operator's own engine.

A file has a line for each model: ``model,input,output,cached_input``, in US dollars for a million
tokens. An empty cell is an unknown price. Lines that begin with ``#`` are comments.
"""

import csv
import math
import re
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

COLUMNS = ("model", "input", "output", "cached_input")
UNIT_TOKENS = 1_000_000
"""Prices in a file are for so many tokens."""

MOST_PROBLEMS = 20
"""Problems of one file that a message lists."""

_MOST_FOUND = 1_024
LONGEST_NAME = 256
"""Clients choose it: a longer one has no row, and is not kept."""
_MOST_DOLLARS = 1_000_000.0
_DATE = re.compile(r"[-@](?:20\d\d-?[01]\d-?[0-3]\d)$")


class PricesError(ValueError):
    """A price file cannot be used; each line of the message names file, line and column."""


class Price(NamedTuple):
    """Dollars for one token; None is unknown. ``cached`` is for a prompt's token in a cache."""

    input: float | None = None
    output: float | None = None
    cached: float | None = None

    def cost(self, prompt: int, completion: int, cached: int = 0) -> float | None:
        """Return the dollars of a call; None where a price that it needs is unknown.

        ``cached`` tokens are a part of ``prompt``. Where their price is unknown, there is no
        discount.
        """
        discount = self.discount(cached) or 0.0
        whole = _cost(prompt, self.input), _cost(completion, self.output)
        return None if whole[0] is None or whole[1] is None else whole[0] + whole[1] - discount

    def discount(self, cached: int) -> float | None:
        """Return by how many dollars ``cached`` tokens of a prompt were cheaper."""
        if not cached:
            return 0.0
        if self.input is None or self.cached is None:
            return None
        return max(0.0, cached * (self.input - self.cached))


_FREE = Price(0.0, 0.0, 0.0)


def _cost(tokens: int, price: float | None) -> float | None:
    if not tokens:
        return 0.0
    return None if price is None else tokens * price


@dataclass(slots=True)
class Prices:
    """The prices of models, by name. ``source`` says where they come from, and of which day."""

    rows: Mapping[str, Price]
    source: str = ""
    own: AbstractSet[str] = frozenset()
    """Names of the rows in the operator's file."""
    is_free: Callable[[str], bool] | None = None
    """Tells whether a model costs nothing unless the operator's file has a row for it."""
    _found: dict[str, Price | None] = field(default_factory=dict, init=False, repr=False)

    def find(self, model: str) -> Price | None:
        """Return the price of a model, None where it is unknown.

        The first of these names that has a row counts: the whole name; the name without a date at
        its end; the same without a provider in front, which ends at the first slash.
        """
        if len(model) > LONGEST_NAME:
            return _FREE if self.is_free is not None and self.is_free(model) else None
        if model not in self._found:
            if len(self._found) >= _MOST_FOUND:
                self._found.clear()
            name = next((name for name in _names(model) if name in self.rows), None)
            if name not in self.own and self.is_free is not None and self.is_free(model):
                self._found[model] = _FREE
            else:
                self._found[model] = None if name is None else self.rows[name]
        return self._found[model]

    def knows(self, model: str, *, writes: bool = True) -> bool:
        """Tell whether a call of a model has a price; ``writes`` if it generates tokens."""
        price = self.find(model)
        return price is not None and price.cost(1, int(writes)) is not None

    def updated(self, other: "Prices") -> "Prices":
        """Return these prices; a row of ``other`` replaces the row of the same name."""
        source = f"{other.source}; {self.source}" if self.source else other.source
        return Prices({**self.rows, **other.rows}, source, other.rows.keys())


def _names(model: str) -> Iterator[str]:
    name, slash = model, "/"
    while slash and name:
        yield name
        if (dateless := _DATE.sub("", name)) != name:
            yield dateless
        _, slash, name = name.partition("/")


def read_prices(text: str, source: str) -> Prices:
    """Return the prices of a file's ``text``. Raises PricesError with all that is wrong.

    ``source`` is the name of the file. The first comment says where the prices come from.
    """
    lines = text.splitlines()
    comments = [line.lstrip("# ") for line in lines if line.startswith("#")]
    table = [
        (f"{source}:{number}: ", [cell.strip() for cell in next(csv.reader([line]))])
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.startswith("#")
    ]
    where, header = table[0] if table else (f"{source}:1: ", ["none"])
    if sorted(header) != sorted(COLUMNS):
        got = ", ".join(header)[:200]
        raise PricesError(f"{where}expected the columns {', '.join(COLUMNS)}, got {got}")
    rows: dict[str, Price] = {}
    problems: list[str] = []
    for where, cells in table[1:]:
        row = dict(zip(header, cells, strict=False))
        missing = [f"expected {len(COLUMNS)} cells, got {len(cells)}"]
        wrong = _problems(row, rows) if len(cells) == len(header) else missing
        problems += [where + each for each in wrong]
        if not wrong:
            dollars = (row[name] for name in COLUMNS[1:])
            rows[row["model"]] = Price(*(float(x) / UNIT_TOKENS if x else None for x in dollars))
    if problems:
        more = len(problems) - MOST_PROBLEMS
        rest = [f"{source}: {more} more lines are wrong"] if more > 0 else []
        raise PricesError("\n".join([*problems[:MOST_PROBLEMS], *rest]))
    return Prices(rows, comments[0] if comments else source)


def _problems(row: Mapping[str, str], before: Mapping[str, Price]) -> list[str]:
    model, wrong = row["model"], []
    if not model:
        wrong.append("model: expected a name, got an empty cell")
    elif model in before:
        wrong.append(f"model: expected each model once, {model!r} is there twice")
    wrong += [problem for name in COLUMNS[1:] if (problem := _problem(name, row[name]))]
    return wrong


def _problem(name: str, cell: str) -> str | None:
    try:
        dollars = float(cell or 0)
    except ValueError:
        dollars = math.nan
    if 0 <= dollars <= _MOST_DOLLARS:
        return None
    return f"{name}: expected dollars for a million tokens, or an empty cell, got {cell[:40]!r}"
