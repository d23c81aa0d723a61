"""Imports every module of some packages and prints what any of them did while it was imported.

    python watch_imports.py ROOT PACKAGE...

Prints one line of JSON, a list of [module, line, action]. An action counts if code of the packages
took it at import; what an imported library does, and reading the modules themselves, does not.
"""

import importlib
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from types import FrameType
from typing import Any

EVENTS = ("socket.", "subprocess.", "shutil.", "tempfile.", "sqlite3.", "urllib.", "glob.")
ONE_EVENTS = {"open", "_thread.start_new_thread", "os.system", "os.fork", "os.exec", "os.spawn"}
ONE_EVENTS |= {"os.posix_spawn", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.chdir"}
ONE_EVENTS |= {"os.listdir", "os.scandir", "os.kill", "os.chmod", "os.putenv", "os.unsetenv"}
ONE_EVENTS |= {"time.sleep", "fcntl.flock", "builtins.input", "mmap.__new__"}


class Watch:
    """Traps what acts on the world: files, network, processes, threads, environment, logging."""

    def __init__(self, root: Path) -> None:
        self._root = f"{root}{os.sep}"
        self.found: set[tuple[str, int, str]] = set()

    def install(self) -> None:
        """Put the traps up; they stay."""
        os.environ = Environment(self, os.environ)  # type: ignore[assignment]  # noqa: B003 - a trap
        self._trap(logging, "basicConfig", "configures logging")
        self._trap(logging.Logger, "addHandler", "configures logging")
        self._trap(logging.Logger, "setLevel", "configures logging")
        self._trap(signal, "signal", "handles a signal")
        self._trap(threading.Thread, "start", "starts a thread")
        self._trap(sys.stdout, "write", "prints")
        self._trap(sys.stderr, "write", "prints")
        sys.addaudithook(self._audit)

    def blame(self, action: str) -> None:
        """Note the action if the packages' own code takes it."""
        frame = self._culprit()
        if frame is not None:
            self.found.add((frame.f_globals["__name__"], frame.f_lineno, action))

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in ONE_EVENTS or event.startswith(EVENTS):
            self.blame(f"open {arguments[0]}" if event == "open" else event)

    def _trap(self, owner: Any, name: str, action: str) -> None:
        real = getattr(owner, name)

        def act(*arguments: Any, **options: Any) -> Any:
            self.blame(action)
            return real(*arguments, **options)

        setattr(owner, name, act)

    def _culprit(self) -> FrameType | None:
        """Return the innermost frame of the packages, if no library's is nearer."""
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            file = frame.f_code.co_filename
            if file.startswith("<frozen importlib") or "site-packages" in file:
                return None  # reading a module is what importing is
            if file.startswith(self._root) and file != __file__:
                return frame
            frame = frame.f_back
        return None


class Environment(MutableMapping[str, str]):
    """The environment, which tells the watch who looks at it."""

    def __init__(self, watch: Watch, real: MutableMapping[str, str]) -> None:
        self._watch = watch
        self._real = real

    def __getitem__(self, name: str) -> str:
        self._watch.blame(f"reads environment {name}")
        return self._real[name]

    def __setitem__(self, name: str, value: str) -> None:
        self._watch.blame(f"sets environment {name}")
        self._real[name] = value

    def __delitem__(self, name: str) -> None:
        self._watch.blame(f"deletes environment {name}")
        del self._real[name]

    def __iter__(self) -> Iterator[str]:
        self._watch.blame("lists environment")
        return iter(self._real)

    def __len__(self) -> int:
        return len(self._real)

    def copy(self) -> dict[str, str]:
        """Return a plain copy, as the real one does."""
        self._watch.blame("copies environment")
        return dict(self._real)


def names(root: Path, package: str) -> Iterator[str]:
    """Yield the names of a package's modules."""
    for path in sorted((root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def main(root: Path, packages: list[str]) -> None:
    """Import all modules under watch and print what they did."""
    modules = [name for package in packages for name in names(root, package)]
    sys.path.insert(0, str(root))
    watch = Watch(root)
    watch.install()
    for name in modules:
        importlib.import_module(name)
    os.write(1, (json.dumps(sorted(watch.found)) + "\n").encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
