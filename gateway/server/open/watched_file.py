"""A file that an operator edits: read at start, watched, and replaced whole by each good edit."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from gateway.cache.append_files import read_bytes
from policies.format.yaml_document import PolicyError

log = logging.getLogger(__name__)

T = TypeVar("T")


class WatchedFile(Generic[T]):
    """Holds the last good value of ``path``; ``read`` makes it of the file's bytes and name.

    Raises OSError, and what ``read`` raises, on construction: PolicyError or ValueError.
    """

    def __init__(self, path: Path, read: Callable[[bytes, str], T], in_force: str) -> None:
        """``in_force`` is the log's text for the value that stays in force; it begins "policy:"."""
        self.path = path
        self._read = read
        self._in_force = in_force
        self._seen = self._accepted = read_bytes(path)
        self.active = read(self._accepted, str(path))
        """The value in force."""
        self._wrong: str | None = None
        self._unreadable: str | None = None

    @property
    def problem(self) -> str | None:
        """The reason why the file on disk is not in force, or None."""
        return self._unreadable or self._wrong

    def has_in_force(self, data: bytes) -> bool:
        """Tell whether the value in force was read from these bytes."""
        return self.problem is None and data == self._accepted

    def reload(self) -> bool:
        """Read the file again; return whether a new value took effect.

        An edit counts once two readings agree: an editor may not have finished writing. After a
        fault the old value stays in force, and ``problem`` is the fault.
        """
        before, changed = self.problem, False
        try:
            data = read_bytes(self.path)
            self._unreadable = None
            settled, self._seen = data == self._seen, data
            if settled and data != self._accepted:
                self._accepted = data
                self.active = self._read(data, str(self.path))
                self._wrong, changed = None, True
        except OSError as error:
            self._unreadable = f"{self.path}: cannot be read: {error.strerror or error}"
        except (PolicyError, ValueError) as error:
            self._wrong = str(error)
        except MemoryError:
            # Another time the same bytes may be fine.
            self._accepted = b""
            self._wrong = f"{self.path}: cannot be read: out of memory"
        except Exception as error:  # a watch that ends would never take a good edit
            log.exception("%s: %s", self._in_force, self.path)
            self._wrong = f"{self.path}: cannot be read: {type(error).__name__}: {error}"
        if self.problem not in (None, before):
            event = {"event": self._in_force.partition(":")[0]}
            log.error("%s: %s", self._in_force, self.problem, extra={"fields": event})
        return changed
