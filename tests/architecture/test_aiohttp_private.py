"""The private names of aiohttp that we use: each is listed here, and the installed version has it.

A release of aiohttp may change these without a word. ``pyproject.toml`` bounds the version. Run
this test before you raise the bound.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import TCPConnector, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.web_protocol import RequestHandler

ROOT = Path(__file__).parents[2]
SERVER = "gateway/server/http/http_server.py"
HOT = "gateway/server/http/hot_connection.py"
CONNECTION = "gateway/upstream/wire/connection.py"
CLIENT = "gateway/upstream/wire/http_client.py"
SOCKET = "gateway/upstream/wire/websocket.py"

USED: dict[str, tuple[tuple[type, ...], frozenset[str]]] = {
    SERVER: (
        (RequestHandler, web.Server, web.AppRunner),
        frozenset(
            {"_current_request", "_kwargs", "_loop", "_make_server", "_messages", "_reading_paused"}
            | {"_request_count", "_request_in_progress", "_upgraded", "_waiter"}
        ),
    ),
    HOT: (
        (RequestHandler,),
        frozenset(
            {
                "_drain_helper",
                "_keepalive_timeout",
                "_loop",
                "_next_keepalive_close_time",
                "_paused",
            }
            | {"_process_keepalive", "_request_count", "_waiter"}
        ),
    ),
    CONNECTION: (
        (BaseProtocol,),
        frozenset({"_drain_helper", "_loop", "_parser", "_reading_paused", "_upgraded"}),
    ),
    SOCKET: ((BaseProtocol,), frozenset({"_upgraded"})),
    CLIENT: (
        (TCPConnector,),
        frozenset(
            {"_create_direct_connection", "_create_proxy_connection", "_factory", "_loop"}
            | {"_start_tls_connection"}
        ),
    ),
}


def private_names(bases: tuple[type, ...]) -> set[str]:
    """Return the private names that the classes have: methods, slots, what ``self`` gets."""
    found = set[str]()
    for cls in {cls for base in bases for cls in base.__mro__ if cls.__module__[:7] == "aiohttp"}:
        found |= {*vars(cls), *getattr(cls, "__slots__", ())}
        found |= set(attributes_of_self(ast.parse(textwrap.dedent(inspect.getsource(cls)))))
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def attributes_of_self(tree: ast.AST, *, others: bool = False) -> Iterator[str]:
    """Yield the names that are read or set on ``self``, or with ``others`` on any object."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            is_self = isinstance(node.value, ast.Name) and node.value.id == "self"
            if is_self or others:
                yield node.attr


@pytest.mark.parametrize("file", USED)
def test_each_private_name_of_aiohttp_is_listed_and_there(file: str):
    bases, listed = USED[file]
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    theirs = private_names(bases)
    used = theirs & {*attributes_of_self(tree, others=True), *overridden(tree, theirs)}
    assert used == listed


def overridden(tree: ast.AST, theirs: set[str]) -> set[str]:
    """Return the methods that we put in place of aiohttp's."""
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in theirs
    }


def test_no_other_file_uses_private_names_of_aiohttp():
    """A file that subclasses one of aiohttp's protocols or connectors is on the list."""
    names = {"BaseProtocol", "RequestHandler", "TCPConnector", "AppRunner"}
    for path in sorted((ROOT / "gateway").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        bases = {
            base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            for base in node.bases
        }
        if names & bases:
            assert str(path.relative_to(ROOT)) in USED
