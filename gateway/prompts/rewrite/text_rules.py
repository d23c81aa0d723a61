"""The texts of a request that may change, and two rules on them: documents, and white space.

Laws: the last user turn and what follows it are not among the texts; nor are calls of tools and
what they returned, where every byte may matter. No document is lost, added or changed, and only
documents move: neighbours, with only white space between, change places among themselves. White
space with a meaning stays: in a fenced block of code, at the ends of lines of an indented one, and
the two spaces of a line break in Markdown.

Documents that several requests share go first, in an order that never changes while they are
remembered: a document keeps the rank of its second use. The memory is bounded.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Any, NamedTuple

from gateway.prompts.json_splice import Path, Text
from gateway.prompts.outcome import NotRewritten, NotRewrittenError
from gateway.protocol.endpoints.registry import SPECS
from gateway.semantic.code import code_blocks
from policies.decision import DocumentOrder, DocumentSettings, Endpoint

INSTRUCTING = frozenset({"system", "developer"})
_SPOKEN = frozenset({"system", "developer", "user", "assistant"})
_PROSE = frozenset({"text", "input_text", "output_text"})
_RESULTS = frozenset({"tool", "function"})

BLOCK = "Values of the placeholders in the messages above:"
"""The beginning of a block of moved values."""


class Conversation(NamedTuple):
    """The texts that may be rewritten, and the index of the turn before which a block goes."""

    texts: list[Text]
    place: int
    has_block: bool


def conversation(
    endpoint: Endpoint, body: dict[str, Any], *, earlier_turns: bool
) -> Conversation | None:
    """Return the parts of a request that may be rewritten, or None without a last user turn.

    That is what system and developer say before the last user turn and, before the first one,
    anybody; with ``earlier_turns`` all turns before the last one.
    """
    spec, field = SPECS[endpoint], SPECS[endpoint].question_field
    texts: list[Text] = []
    if spec.instructions is not None and isinstance(body.get(spec.instructions), str):
        texts.append(Text((spec.instructions,), body[spec.instructions]))
    turns = body.get(field)
    if isinstance(turns, str):
        return Conversation(texts, 0, has_block=False)
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        return None
    roles = [turn.get("role") for turn in turns]
    users = [index for index, role in enumerate(roles) if role == "user"]
    questions = [index for index in users if not is_block(turns[index])]
    if not questions:
        return None
    for index, role in enumerate(roles[: questions[-1]]):
        if role in INSTRUCTING or (role in _SPOKEN and (earlier_turns or index < questions[0])):
            texts += texts_of((field, index, "content"), turns[index].get("content"))
    place = len(turns) if is_result(turns[-1]) else questions[-1]
    return Conversation(texts, place, has_block=len(questions) < len(users))


def is_block(turn: dict[str, Any]) -> bool:
    """Tell whether a turn is a block of values that were moved before."""
    content = turn.get("content")
    return isinstance(content, str) and content.startswith(BLOCK)


def is_result(turn: dict[str, Any]) -> bool:
    """Tell whether a turn is the result of a tool."""
    kind = turn.get("type")
    return turn.get("role") in _RESULTS or (isinstance(kind, str) and kind.endswith("_output"))


def texts_of(path: Path, content: Any) -> Iterator[Text]:
    """Yield the texts of a turn's content, which is one text or a list of parts."""
    if isinstance(content, str):
        yield Text(path, content)
    for index, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part, dict) and part.get("type") in _PROSE:
            text = part.get("text")
            if isinstance(text, str):
                yield Text((*path, index, "text"), text)


MAX_DOCUMENTS = 1024
"""Documents of one request."""
MAX_REMEMBERED = 65_536
"""Documents; the least recently used one is forgotten."""
_DIGEST_BYTES = 16


class Memory(NamedTuple):
    """The owner of the documents, and the rank of each that its requests share."""

    owner: bytes
    ranks: Mapping[bytes, int]


NOTHING_KNOWN = Memory(b"", {})


def cut_at_documents(text: str, settings: DocumentSettings) -> list[str]:
    """Cut a text at its documents: each second piece is a document with its markers.

    Raises NotRewrittenError where the markers do not pair up, or too many do.
    """
    begin, end = settings.begin, settings.end
    if begin not in text and end not in text:
        return [text]
    pieces: list[str] = []
    at = 0
    while (start := text.find(begin, at)) >= 0:
        inside = start + len(begin)
        stop = text.find(end, inside)
        if stop < 0 or text.find(end, at, start) >= 0:
            raise NotRewrittenError(NotRewritten.UNBALANCED_MARKERS)
        if text.find(begin, inside, stop) >= 0:
            raise NotRewrittenError(NotRewritten.NESTED_MARKERS)
        if len(pieces) >= 2 * MAX_DOCUMENTS:
            raise NotRewrittenError(NotRewritten.TOO_MANY)
        pieces += (text[at:start], text[start : stop + len(end)])
        at = stop + len(end)
    if text.find(end, at) >= 0:
        raise NotRewrittenError(NotRewritten.UNBALANCED_MARKERS)
    return [*pieces, text[at:]]


def order_documents(
    texts: Sequence[str], settings: DocumentSettings, memory: Memory
) -> tuple[list[list[str]], list[list[str]], list[bytes]]:
    """Return the texts cut, the same with the documents of each run in order, and their digests.

    Shared documents go first, the oldest before the others; the rest are sorted by content.
    Raises NotRewrittenError.
    """
    ranks = memory.ranks if settings.order is DocumentOrder.SHARED else {}
    cut = [cut_at_documents(text, settings) for text in texts]
    if sum(len(pieces) // 2 for pieces in cut) > MAX_DOCUMENTS:
        raise NotRewrittenError(NotRewritten.TOO_MANY)
    ordered = [list(pieces) for pieces in cut]
    digests: list[bytes] = []
    for pieces, result in zip(cut, ordered, strict=True):
        for run in _runs(pieces):
            known = []
            for index in run:
                text = pieces[index].encode()
                digest = blake2b(text, digest_size=_DIGEST_BYTES, key=memory.owner).digest()
                rank = ranks.get(digest)
                known.append((rank is None, rank or 0, digest, index))
            for place, (_, _, digest, index) in zip(run, sorted(known), strict=True):
                result[place] = pieces[index]
                digests.append(digest)
    return cut, ordered, digests


def _runs(pieces: list[str]) -> Iterator[list[int]]:
    run: list[int] = []
    for index in range(1, len(pieces), 2):
        run.append(index)
        behind = pieces[index + 1]
        if behind and not behind.isspace():
            yield run
            run = []
    if run:
        yield run


class SharedDocuments:
    """Digests of the documents that were sent. Not thread-safe."""

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        self._most = most
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._next = 1
        self.ranks: dict[bytes, int] = {}
        """Of each document that was sent more than once; lower is older."""

    def note(self, digests: Iterable[bytes]) -> None:
        """Remember the documents of one request, in the order in which they were sent."""
        for digest in dict.fromkeys(digests):
            if digest in self._seen:
                self._seen.move_to_end(digest)
                if digest not in self.ranks:
                    self.ranks[digest] = self._next
                    self._next += 1
            else:
                self._seen[digest] = None
        while len(self._seen) > self._most:
            forgotten, _ = self._seen.popitem(last=False)
            self.ranks.pop(forgotten, None)


_BREAK = "  "
_ENDS = frozenset(" \t\r")


def normalise(texts: Sequence[list[str]], turns: Sequence[Path]) -> list[list[str]]:
    """Return texts that were cut at their documents with the white space between in normal form.

    ``turns`` are the turns that they stand in.
    """
    result = []
    for pieces, turn, following in zip(texts, turns, (*turns[1:], None), strict=True):
        last = len(pieces) - 1
        result.append(
            [
                piece if index % 2 else normal(piece, ends=index == last and turn != following)
                for index, piece in enumerate(pieces)
            ]
        )
    return result


def normal(text: str, *, ends: bool) -> str:
    """Return the text in normal form; ``ends``: no other text follows in its message."""
    lines_end = "\n" in text and (" \n" in text or "\t\n" in text or "\r\n" in text)
    if not (lines_end or (ends and text[-1:].isspace())) or text.isspace():
        return text
    blocks = deque(code_blocks(text))
    # The end of a code block ends one of its lines: that line stays unchanged.
    ends = ends and not (blocks and blocks[-1].end >= len(text.rstrip(" \t\r\n")))
    lines = text.split("\n")
    at = 0
    for index, (line, following) in enumerate(pairwise(lines)):
        end = at + len(line)
        while blocks and blocks[0].end < at:
            blocks.popleft()
        if line[-1:] in _ENDS and not (blocks and blocks[0].start <= end):
            lines[index] = _normal_line(line, following)
        at = end + 1
    normalised = "\n".join(lines)
    return (ends and normalised.rstrip(" \t\r\n")) or normalised


def _normal_line(line: str, following: str) -> str:
    line = line.rstrip("\r")
    bare = line.rstrip(" \t\r")
    if bare and line.startswith(("    ", "\t")):
        return line
    breaks = bare and line.endswith(_BREAK) and following.strip()
    return bare + _BREAK if breaks else bare
