"""The price table on disk: the one that is shipped, and the operator's file in front of it."""

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache, partial
from importlib.resources import files
from pathlib import Path

from gateway.settings import Settings
from gateway.telemetry.prices import Prices, PricesError, read_prices
from gateway.upstream.settings import UpstreamSettings

MOST_BYTES = 8 * 2**20


def load_prices(file: Path | None = None) -> Prices:
    """Return the shipped prices; a row of ``file`` replaces the row of the same model.

    Raises PricesError for a file with faults, and OSError where it cannot be read.
    """
    prices = _shipped_prices()
    return prices if file is None else prices.updated(read_price_file(file.read_bytes(), str(file)))


@cache
def _shipped_prices() -> Prices:
    shipped = files("gateway.telemetry") / "prices.csv"
    return read_prices(shipped.read_text("utf-8"), "prices.csv")


def priced(settings: Settings) -> Prices:
    """Return the prices that hold here: of models on the operator's own engines, too.

    Raises as ``load_prices``.
    """
    of_engines = partial(is_free, settings.all_upstreams)
    return replace(load_prices(settings.prices), is_free=of_engines)


def is_free(upstreams: Sequence[UpstreamSettings], model: str) -> bool:
    """Tell whether every upstream that may get a model is free."""
    serving = [
        one
        for one in upstreams
        if model in one.rename
        or model in one.rename.values()
        or any(fnmatchcase(model, glob) for glob in one.models)
    ]
    return bool(serving) and all(one.is_free for one in serving)


def read_price_file(data: bytes, source: str) -> Prices:
    """Return the prices of an operator's file. Raises PricesError."""
    if len(data) > MOST_BYTES:
        raise PricesError(f"{source}: expected at most {MOST_BYTES} bytes, got {len(data)}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        got = f"the byte 0x{data[error.start]:02x}"
        raise PricesError(f"{source}:{line}: expected UTF-8 text, got {got}") from None
    return read_prices(text, source)
