"""What is wrong with a policy file, told so that it can be put right without the manual."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to put right; ``line`` counts from 1 and ``key`` is empty for the whole file."""

    source: str
    line: int
    key: str
    expected: str
    got: str

    def __str__(self) -> str:
        where = f"{self.source}:{self.line}: " + (f"{self.key}: " if self.key else "")
        return f"{where}expected {self.expected}, got {self.got}"


class PolicyError(Exception):
    """The file is no policy; ``problems`` are all that were found, in order of line."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))
