"""Where prompts part: a radix tree over texts, in the order in which they came.

Compressed trie as in D. Morrison, "PATRICIA" (1968), over characters. It answers for an unbounded
prefix cache, so what it counts as found is a ceiling.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Node:
    """A stretch of text that all prompts below share; those in ``children`` begin differently."""

    text: str
    start: int
    """Characters of a prompt before ``text``."""
    prompt: int
    """The number of a prompt that has this text, the first one."""
    visits: int = 0
    children: "dict[str, Node]" = field(default_factory=dict)
    lost: int = 0
    """Characters behind this node that had to be read anew, because a prompt left the others."""

    @property
    def end(self) -> int:
        """Characters of a prompt up to where its children part."""
        return self.start + len(self.text)


class PrefixTree:
    """Prompts by their common beginnings. Memory grows with the text that is not shared."""

    def __init__(self) -> None:
        self.root = Node("", 0, 0)
        self.num_prompts = 0

    def add(self, text: str) -> int:
        """Add a prompt; return how many of its characters began an earlier one, too."""
        return self.grown(text)[0]

    def grown(self, text: str) -> tuple[int, Node | None]:
        """Add a prompt; return as ``add`` does, and the node where it left all others."""
        number = self.num_prompts
        self.num_prompts += 1
        node, at = self.root, 0
        node.visits += 1
        while at < len(text):
            child = node.children.get(text[at])
            if child is None:
                left = node if node.children else None
                if left is not None:
                    left.lost += len(text) - at
                node.children[text[at]] = Node(text[at:], at, number, visits=1)
                return at, left
            shared = _common(child.text, text, at)
            if shared < len(child.text):
                if at + shared == len(text):
                    return len(text), None
                child = _split(node, child, shared)
            child.visits += 1
            node, at = child, at + shared
        return at, None

    def partings(self) -> Iterator[Node]:
        """Yield the nodes where prompts part, in no order."""
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            if len(node.children) > 1:
                yield node
            waiting += node.children.values()


def _split(parent: Node, child: Node, at: int) -> Node:
    upper = Node(child.text[:at], child.start, child.prompt, visits=child.visits)
    upper.children[child.text[at]] = child
    parent.children[upper.text[0]] = upper
    child.start += at
    child.text = child.text[at:]
    return upper


def _common(one: str, other: str, at: int) -> int:
    """Return how many characters of ``one`` stand in ``other`` from ``at`` on."""
    low, high = 0, min(len(one), len(other) - at)
    if other.startswith(one[:high], at):
        return high
    while low < high - 1:
        middle = (low + high) // 2
        if other.startswith(one[low:middle], at + low):
            low = middle
        else:
            high = middle
    return low
