"""The laws of the source tree as functions over a folder, so that they can be shown to fail.

Nothing is imported: modules are read as text, and an import counts wherever it stands.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGES = ("policies", "gateway", "embeddings", "backend")

IMPURE = frozenset({"asyncio", "aiohttp", "redis", "torch", "os", "time", "random", "logging"})
"""What the laws name; the rest of what acts on the world follows."""
IMPURE_TOO = frozenset(
    {"socket", "threading", "subprocess", "multiprocessing", "concurrent", "pathlib", "tempfile"}
    | {"shutil", "sqlite3", "lmdb", "secrets", "uuid", "importlib", "httpx", "requests", "uvloop"}
    | {"fcntl", "filelock", "signal"}
)
IMPURE_CALLS = frozenset({"open", "print", "input", "__import__", "exec", "eval"})

GATEWAY_ORDER = (
    *(
        "background",
        "protocol",
        "semantic",
        "prompts",
        "cache",
        "telemetry",
        "upstream",
        "server",
        "app",
        "cli",
    ),
)
"""The gateway's packages: each imports only itself and those named before it."""

GATEWAY_LEAVES = frozenset({"settings"})
"""Imports only protocol and settings of parts. Those who start things read it: server, app, cli."""

SETTINGS_OF_PARTS = frozenset({"gateway.upstream.settings"})
"""The settings of one part each, which stand beside it. They import only protocol."""

IO_MODULES = frozenset(
    {
        "gateway.app",
        "gateway.background",
        "gateway.cli",
        "gateway.settings",
        "gateway.upstream.settings",
        "gateway.semantic.calibrations",
        "gateway.semantic.verifier",
        "gateway.cache.append_files",
        "gateway.cache.folder_watch",
        "gateway.cache.pii_scan",
        "gateway.cache.quality.quarantine",
        "gateway.cache.single_flight",
        "gateway.cache.writer",
        "gateway.cache.quality.comparison_journal",
        "gateway.cache.stores.encrypted",
        "gateway.cache.stores.conformance",
        "gateway.cache.stores.guarded",
        "gateway.cache.stores.redis",
        "gateway.cache.stores.sqlite",
        "gateway.cache.stores.tiered",
        "gateway.telemetry.decision_log",
        "gateway.telemetry.events",
        "gateway.telemetry.metrics",
        "gateway.telemetry.prefix_metrics",
        "gateway.telemetry.request_id",
        "gateway.telemetry.otel",
        "gateway.telemetry.usage",
        "gateway.upstream.answer",
        "gateway.upstream.call",
        "gateway.upstream.sharing.coalescer",
        "gateway.upstream.sharing.follower",
        "gateway.upstream.sharing.shared_response",
        "gateway.upstream.wire.coding",
        "gateway.upstream.wire.failure_log",
        "gateway.upstream.wire.connection",
        "gateway.upstream.pool.watch.discovery",
        "gateway.upstream.wire.http_client",
        "gateway.upstream.wire.websocket",
        "gateway.upstream.one_try",
        "gateway.upstream.pool.affinity",
        "gateway.upstream.pool.watch.membership",
        "gateway.upstream.pool.metrics",
        "gateway.upstream.pool.pass_through",
        "gateway.upstream.pool.pool",
        "gateway.upstream.pool.watch.probes",
        "gateway.upstream.pool.waiting_queue",
        "gateway.upstream.pool.watch.warm_up",
        "gateway.cache.quality.comparisons",
        "gateway.server",
    }
)
"""Modules and packages of the gateway that may touch clock, loop, network, file or log. All other
modules are pure: they import none of that, and none of these."""

PURE_IN_SERVER = frozenset(
    {"gateway.server.admin.access", "gateway.server.admin.recorded_request"}
    | {"gateway.server.admin.session", "gateway.server.keys.key_line", "gateway.server.keys.limits"}
)

IO_IN_VERIFY = frozenset(
    {
        "embeddings.verify.verifier",
        "embeddings.verify.directories",
        "embeddings.verify.files",
        "embeddings.verify.vocabulary",
    }
)
"""The network and its files; all else that verifies is pure."""

HTTP_MODULES = frozenset(
    {
        "gateway.app",
        "gateway.cli",
        "gateway.server.admin.api",
        "gateway.server.http",
        "gateway.server.ui",
        "gateway.upstream.wire.connection",
        "gateway.upstream.wire.http_client",
        "gateway.upstream.wire.websocket",
        "gateway.upstream.pool.pass_through",
        "gateway.upstream.pool.watch.probes",
    }
)
"""Modules and packages of the gateway that speak HTTP."""

CROSSINGS = {
    "gateway.cli.offline.calibrate": ("embeddings.client", "embeddings.verify"),
    "gateway.cache.quality.shadow_eval": ("embeddings.verify.binomial",),
    "gateway.semantic.calibrations": ("embeddings.verify",),
    "gateway.semantic.ports": ("embeddings.messages", "embeddings.verify.resemblance"),
    "gateway.semantic.verifier": ("embeddings.verify",),
    "gateway.server.open.semantic": ("embeddings.client",),
    "gateway.cli.commands": ("backend.__main__",),
}
"""Which modules may import other packages, and what of them; the command only lazily."""
LAZY_ONLY = frozenset({"gateway.cli.commands"})

HTTP_LIBRARIES = frozenset({"aiohttp", "uvloop", "multidict", "yarl"})

SHAPELESS = frozenset({"utils", "util", "base", "common", "helpers", "helper", "misc"})
MOST_LINES = 600
MOST_ENTRIES = 12
MARKS = frozenset({"__pycache__", "__init__.py", "py.typed"})
"""Not counted: what tools write, and what makes a folder a typed package."""


@dataclass(frozen=True, slots=True)
class Import:
    """An import of ``target`` (a module, or a name in one); ``lazy`` inside a function."""

    target: str
    lazy: bool
    line: int


@dataclass(frozen=True)
class Module:
    """One source file."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @cached_property
    def imports(self) -> list[Import]:
        """Every import, relative ones resolved."""
        return list(self._imports(self.tree, lazy=False))

    def _imports(self, node: ast.AST, *, lazy: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.Import(names=names):
                    for alias in names:
                        yield Import(alias.name, lazy, child.lineno)
                case ast.ImportFrom(module=source, names=names, level=level):
                    source = self._absolute(source, level)
                    for alias in names:
                        yield Import(f"{source}.{alias.name}", lazy, child.lineno)
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                    yield from self._imports(child, lazy=True)
                case _:
                    yield from self._imports(child, lazy=lazy)

    def _absolute(self, source: str | None, level: int) -> str:
        if level == 0:
            return source or ""
        parts = self.name.split(".")
        parts = parts[: len(parts) - level + self.is_package]
        return ".".join([*parts, *([source] if source else [])])

    def calls(self) -> Iterator[tuple[str, int]]:
        """Yield the builtins called by their own name, and the lines."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                yield node.func.id, node.lineno


@cache
def modules(root: Path) -> list[Module]:
    """Read all modules of the packages in ``root``, once."""
    found = []
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            text = path.read_text(encoding="utf-8")
            found.append(Module(name, path, text, ast.parse(text)))
    return found


Law = Callable[[Path], list[str]]


def within(target: str, package: str) -> bool:
    return target == package or target.startswith(f"{package}.")


def in_any(name: str, parts: Iterable[str]) -> bool:
    return any(within(name, part) for part in parts)


def core_of(name: str) -> str | None:
    """Return the pure core that a module is part of: ``policies``, ``backend.scheduler`` …"""
    if name in IO_IN_VERIFY:
        return None
    for core in ("policies", "backend.scheduler", "embeddings.verify"):
        if within(name, core):
            return core
    return None


def is_pure(module: Module) -> bool:
    """Tell whether a module must be pure."""
    if within(module.name, "gateway"):
        pure = module.is_package or module.name in PURE_IN_SERVER
        return pure or not in_any(module.name, IO_MODULES)
    return core_of(module.name) is not None


def pure_modules_are_pure(root: Path) -> list[str]:
    """Whatever is not on the list of I/O modules touches no clock, loop, network, file or log."""
    broken = []
    for module in modules(root):
        if not is_pure(module):
            continue
        broken += [
            f"{module.name}:{used.line}: imports {used.target}"
            for used in module.imports
            if used.target.partition(".")[0] in IMPURE | IMPURE_TOO
        ]
        broken += [
            f"{module.name}:{line}: calls {name}"
            for name, line in module.calls()
            if name in IMPURE_CALLS
        ]
    return broken


def pure_modules_import_pure_modules(root: Path) -> list[str]:
    """No pure module of the gateway reaches an I/O module by another one."""
    return [
        f"{module.name}:{used.line}: imports {used.target}"
        for module in modules(root)
        if within(module.name, "gateway") and is_pure(module)
        for used in module.imports
        if in_any(used.target, IO_MODULES) and not in_any(used.target, PURE_IN_SERVER)
    ]


def cores_are_leaves(root: Path) -> list[str]:
    """A core imports itself; of our packages, nothing else."""
    broken = []
    for module in modules(root):
        core = core_of(module.name)
        if core is None:
            continue
        broken += [
            f"{module.name}:{used.line}: imports {used.target}"
            for used in module.imports
            if in_any(used.target, PACKAGES) and not within(used.target, core)
        ]
    return broken


def imports_run_one_way(root: Path) -> list[str]:
    """A package of the gateway imports only those named before it."""
    broken = []
    for module in modules(root):
        home = module.name.split(".")[1:2]
        if not within(module.name, "gateway") or not home:
            continue
        [package] = home
        if module.name in SETTINGS_OF_PARTS:
            allowed: frozenset[str] = frozenset({"protocol"})
        elif package in GATEWAY_LEAVES:
            allowed = GATEWAY_LEAVES | {"protocol"}
        elif package in GATEWAY_ORDER:
            allowed = frozenset(GATEWAY_ORDER[: GATEWAY_ORDER.index(package) + 1])
            if package in ("server", "app", "cli"):
                allowed |= GATEWAY_LEAVES
        else:
            broken.append(f"{module.name}: is in no package of the order")
            continue
        broken += [
            f"{module.name}:{used.line}: imports {used.target}"
            for used in module.imports
            if within(used.target, "gateway")
            and used.target.split(".")[1] not in allowed
            and not (package in GATEWAY_LEAVES and in_any(used.target, SETTINGS_OF_PARTS))
        ]
    return broken


def imports_run_in_no_circle(root: Path) -> list[str]:
    """Neither two modules nor two folders of backend, embeddings and policies need each other.

    gateway is not covered yet.
    """
    covered = [module for module in modules(root) if not within(module.name, "gateway")]
    names = {module.name for module in covered}
    for depth in (None, 2):
        graph: dict[str, set[str]] = defaultdict(set)
        for module in covered:
            place = _cut(module.name, depth)
            for used in module.imports:
                target = used.target if used.target in names else used.target.rpartition(".")[0]
                if target in names and _cut(target, depth) != place:
                    graph[place].add(_cut(target, depth))
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            circle = error.args[1][1:]
            last = circle.index(max(circle))
            return [" - ".join(circle[last:] + circle[:last])]
    return []


def _cut(name: str, depth: int | None) -> str:
    return ".".join(name.split(".")[:depth])


def packages_do_not_import_one_another(root: Path) -> list[str]:
    """gateway, embeddings and backend meet in the composition root and the command only."""
    broken = []
    apart = ("gateway", "embeddings", "backend")
    for module in modules(root):
        home = module.name.partition(".")[0]
        for used in module.imports:
            if not any(within(used.target, other) for other in apart if other != home):
                continue
            allowed = any(within(used.target, part) for part in CROSSINGS.get(module.name, ()))
            if not allowed or (module.name in LAZY_ONLY and not used.lazy):
                broken.append(f"{module.name}:{used.line}: imports {used.target}")
    return broken


def ports_import_only_values(root: Path) -> list[str]:
    """A port names values, and no library's."""
    broken = []
    for module in modules(root):
        package, _, last = module.name.rpartition(".")
        if last != "ports":
            continue
        leaves = (
            ("gateway", "policies") if within(package, "gateway") else (f"{package}.scheduler",)
        )
        broken += [
            f"{module.name}:{used.line}: imports {used.target}"
            for used in module.imports
            if not in_any(used.target, (*leaves, *CROSSINGS.get(module.name, ())))
            and used.target.partition(".")[0] not in {"collections", "contextlib", "dataclasses"}
            and used.target.partition(".")[0] not in {"enum", "typing"}
        ]
    return broken


def few_modules_know_http_libraries(root: Path) -> list[str]:
    """Between the two edges of the gateway no library of HTTP is known."""
    return [
        f"{module.name}:{used.line}: imports {used.target}"
        for module in modules(root)
        if within(module.name, "gateway") and not in_any(module.name, HTTP_MODULES)
        for used in module.imports
        if used.target.partition(".")[0] in HTTP_LIBRARIES
    ]


def folders_have_few_entries(root: Path) -> list[str]:
    """Every folder of gateway and policies shows at most a dozen entries, besides MARKS.

    backend and embeddings are not covered yet.
    """
    entries: Counter[Path] = Counter()
    for package in ("gateway", "policies"):
        for path in (root / package).rglob("*"):
            if path.name not in MARKS and "__pycache__" not in path.parts:
                entries[path.parent.relative_to(root)] += 1
    return [f"{name}: {n} entries" for name, n in entries.items() if n > MOST_ENTRIES]


def files_are_small(root: Path) -> list[str]:
    """A file of one responsibility fits in MOST_LINES lines."""
    return [
        f"{module.name}: {lines} lines"
        for module in modules(root)
        if (lines := module.text.count("\n")) > MOST_LINES
    ]


def names_say_what_is_inside(root: Path) -> list[str]:
    """No room for everything: a module is named for what it does."""
    return [
        module.name
        for module in modules(root)
        if any(part.strip("_") in SHAPELESS for part in module.name.split("."))
    ]


def files_say_what_they_are_for(root: Path) -> list[str]:
    """Each file states its purpose or law at its top."""
    return [module.name for module in modules(root) if not ast.get_docstring(module.tree)]


def observations_have_two_writers(root: Path) -> list[str]:
    """Telemetry is no way to hand a value on: only the pipeline and methods set what was seen."""
    return [
        f"{module.name}:{node.lineno}: sets {node.value.id}.{node.attr}"
        for module in modules(root)
        if within(module.name, "gateway") and module.name != "gateway.server.pipeline"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id in {"seen", "observation"}
    ]


def every_draw_has_an_owner(root: Path) -> list[str]:
    """Nobody draws from the global generator: who seeds it would feel every thread."""
    owned = {"Random", "SystemRandom"}
    found = []
    for module in modules(root):
        names = {f"random.{name}" for name in owned} | {"random"}
        imports = [one for one in module.imports if one.target.split(".")[0] == "random"]
        lines = [one.line for one in imports if one.target not in names]
        if imports:
            lines += [
                node.lineno
                for node in ast.walk(module.tree)
                if isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "random"
                and node.attr not in owned
            ]
        found += [f"{module.name}: line {line}" for line in lines]
    return found


LAWS: tuple[Law, ...] = (
    pure_modules_are_pure,
    pure_modules_import_pure_modules,
    cores_are_leaves,
    imports_run_one_way,
    imports_run_in_no_circle,
    packages_do_not_import_one_another,
    ports_import_only_values,
    few_modules_know_http_libraries,
    folders_have_few_entries,
    files_are_small,
    names_say_what_is_inside,
    every_draw_has_an_owner,
    observations_have_two_writers,
    files_say_what_they_are_for,
)
