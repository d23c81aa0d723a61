"""What the path of a request means: a cached endpoint, or another path of the API.

Laws:
- An upstream may take several spellings for one path. A spelling that it may take for a cached
  endpoint is served as this endpoint, or refused: none passes by the cache unread.
- No request leaves the upstream's base URL, wherever dots are resolved.
"""

import re
import unicodedata
from typing import NamedTuple
from urllib.parse import quote, unquote

from gateway.protocol.errors import ClientError
from policies.decision import Endpoint

LONGEST_MODEL = 256
"""Of a model's name: clients choose it, so what is remembered is bounded."""

_ENDPOINTS = frozenset(Endpoint)
_SLASHES = re.compile("//+")
_DEPLOYMENT = re.compile("/(?:openai/deployments|v1/engines)/([^/]+)(/.+)")
"""A path of Azure's clients, or of OpenAI's first ones, that names the model."""

_MODEL = re.compile("(/v1/models/)(.+?)((?::[A-Za-z]+)?)")
"""A model of the list; Google's clients put what is to be done behind a colon."""

_NOT_CACHED = (
    *("assistants", "audio", "batches", "classify", "containers", "conversations", "engines"),
    *("extensions", "files", "fine_tuning", "images", "models", "moderations", "pooling"),
    *("realtime", "score", "threads", "uploads", "vector_stores", "videos"),
)
_RESOURCES = frozenset(each.split("/")[2] for each in Endpoint).union(_NOT_CACHED)
"""First words of the API's paths."""
_MOST_ROUNDS = 3
_MOST_SHOWN = 200
_ENDS = re.compile(r"^[\W_]+|[\W_]+$")
"""What some servers leave out around a segment: spaces, dots, control and other characters."""


class ApiPath(NamedTuple):
    """A path below ``/v1`` as an upstream gets it; ``deployment`` is a model that it named."""

    path: str
    deployment: str = ""

    @property
    def model(self) -> str:
        found = _MODEL.fullmatch(self.path)
        return self.deployment if found is None else unquote(found[2] + _unless_verb(found[3]))

    def naming(self, model: str | None) -> str:
        """Return the path with another model, if it is given, in place of the one it names."""
        found = _MODEL.fullmatch(self.path)
        if found is None or model is None:
            return self.path
        verb = "" if _unless_verb(found[3]) else found[3]
        return f"{found[1]}{quote(model, safe='/:')}{verb}"


def read_path(raw: str) -> ApiPath:
    """Return what a path means that came with a request. Raises ClientError (404)."""
    path = _SLASHES.sub("/", raw)
    path = path.rstrip("/") or "/"
    deployment = ""
    if (named := _DEPLOYMENT.fullmatch(path)) is not None:
        deployment, path = unquote(named[1]), "/v1" + named[2]
        is_name = deployment.isprintable() and len(deployment) <= LONGEST_MODEL
        if not is_name or "deployments//" in raw or path.split("/")[2] not in _RESOURCES:
            raise _unknown(raw)
    elif path.startswith("/openai/"):
        path = "/v1" + path.removeprefix("/openai").removeprefix("/v1")
    if path in _ENDPOINTS:
        return ApiPath(path, deployment)
    if (hint := _base_url_hint(path)) is not None:
        raise _unknown(raw, hint)
    segments = _segments(path)
    if ".." in segments or "." in segments:
        raise _unknown(raw)
    folded = "/" + "/".join(filter(None, (_ENDS.sub("", each) for each in segments)))
    if folded in _ENDPOINTS:
        raise _unknown(raw, f"Is {folded} meant?")
    return ApiPath(path, deployment)


def _unless_verb(end: str) -> str:
    """Return the end of a model's name that is no method of Google's, such as ``llama3:latest``."""
    return "" if re.fullmatch(":[a-z]+[A-Z][A-Za-z]*|:predict", end) else end


def _base_url_hint(path: str) -> str | None:
    """Return a hint for a path without ``/v1``, or with two; empty if there is none to give.

    None is returned for a path with one ``/v1``.
    """
    first, _, rest = path[1:].partition("/")
    if first != "v1":
        if first in _RESOURCES:
            return f"Is /v1{path} meant? The base_url of OpenAI's clients ends in /v1."
        return ""
    if not rest:
        return "It is the base_url; a path such as /v1/chat/completions has to follow."
    second, _, behind = rest.partition("/")
    if second.lower() == "v1":
        if behind.partition("/")[0] == "messages":
            return "Is /v1/messages meant? The base_url of Anthropic's clients has no /v1."
        return f"Is /{rest} meant? The base_url ends in one /v1, and the client adds the rest."
    return None


def _segments(path: str) -> list[str]:
    """Return the segments as a lax server may read them: decoded, in one case, and cut."""
    for _ in range(_MOST_ROUNDS):
        path = unquote(path)
    path = unicodedata.normalize("NFKC", path).casefold()
    path = re.split("[?#\0]", path, maxsplit=1)[0]
    # A segment may carry parameters behind a semicolon, which some servers strip first.
    return [each.partition(";")[0] for each in re.split(r"[/\\]", path)]


def _unknown(raw: str, hint: str = "") -> ClientError:
    message = f"Unknown request URL: {raw[:_MOST_SHOWN]}. {hint}".rstrip()
    return ClientError(404, message, code="unknown_url")
