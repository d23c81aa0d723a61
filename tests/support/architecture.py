"""The laws of the source tree as functions over a folder, so that they can be shown to fail.

Nothing is imported: modules are read as text, and an import counts wherever it stands.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

PACKAGES = ("policies", "gateway", "embeddings", "backend")

IMPURE = frozenset({"asyncio", "aiohttp", "redis", "torch", "os", "time", "random", "logging"})
"""What the laws name; the rest of what acts on the world follows."""
IMPURE_TOO = frozenset(
    {"socket", "threading", "subprocess", "multiprocessing", "concurrent", "pathlib", "tempfile"}
    | {"shutil", "sqlite3", "lmdb", "secrets", "uuid", "importlib", "httpx", "requests", "uvloop"}
)
IMPURE_CALLS = frozenset({"open", "print", "input", "__import__", "exec", "eval"})

COMMANDS = frozenset({"policies.cli"})
"""Pure but for reading the file they are given and printing."""

ROOTS = frozenset(
    {
        "gateway.app",
        "gateway.calibrating",
        "gateway.stores",
        "gateway.upstream_keys",
        "gateway.upstreams",
        "gateway.worker",
        "gateway.operator_commands",
        "gateway.policy_commands",
    }
)
"""Where adapters are chosen: the composition root, the process around it, commands of their own."""

CROSSINGS = {
    "gateway.app": ("embeddings.client",),
    "gateway.calibrating": ("embeddings.verify",),
    "gateway.calibrations": ("embeddings.verify",),
    "gateway.semantics": ("embeddings.client",),
    "gateway.verifying": ("embeddings.verify",),
    "gateway.cli": ("backend.__main__",),
}
"""Which modules may import other packages, and what of them; the command only lazily."""
LAZY_ONLY = frozenset({"gateway.cli"})

HTTP_LIBRARIES = frozenset({"aiohttp", "uvloop", "multidict", "yarl"})

SHAPELESS = frozenset({"utils", "util", "base", "common", "helpers", "helper", "misc"})
MOST_LINES = 400


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


def core_of(name: str) -> str | None:
    """Return the pure core that a module is part of: ``gateway.core``, ``policies`` …"""
    for core in ("policies", "gateway.core", "backend.core", "embeddings.core"):
        if within(name, core):
            return core
    return "embeddings.verify" if within(name, "embeddings.verify") else None


def cores_are_pure(root: Path) -> list[str]:
    """Policies, every core and the verifier touch no clock, loop, network, file or device."""
    broken = []
    for module in modules(root):
        if core_of(module.name) is None:
            continue
        forbidden = IMPURE if module.name in COMMANDS else IMPURE | IMPURE_TOO
        broken += [
            f"{module.name}:{used.line}: imports {used.target}"
            for used in module.imports
            if used.target.partition(".")[0] in forbidden
        ]
        if module.name not in COMMANDS:
            broken += [
                f"{module.name}:{line}: calls {name}"
                for name, line in module.calls()
                if name in IMPURE_CALLS
            ]
    return broken


def cores_are_leaves(root: Path) -> list[str]:
    """A core imports itself and policies; of our packages, nothing else."""
    broken = []
    for module in modules(root):
        core = core_of(module.name)
        if core is None:
            continue
        allowed = {core} | ({"policies"} if core == "gateway.core" else set())
        broken += [
            f"{module.name}:{used.line}: imports {used.target}"
            for used in module.imports
            if any(within(used.target, package) for package in PACKAGES)
            and not any(within(used.target, leaf) for leaf in allowed)
        ]
    return broken


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


def ports_import_only_cores(root: Path) -> list[str]:
    """A port names values, so it knows the core's and the policies', and no library's."""
    broken = []
    for module in modules(root):
        package, _, last = module.name.rpartition(".")
        if last != "ports":
            continue
        broken += [
            f"{module.name}:{used.line}: imports {used.target}"
            for used in module.imports
            if not any(within(used.target, leaf) for leaf in (f"{package}.core", "policies"))
            and used.target.partition(".")[0] not in {"collections", "contextlib", "dataclasses"}
            and used.target.partition(".")[0] not in {"enum", "typing"}
        ]
    return broken


def adapters_are_imported_by_roots_only(root: Path) -> list[str]:
    """The pipeline knows ports; which adapter stands behind one is the root's to choose."""
    return [
        f"{module.name}:{used.line}: imports {used.target}"
        for module in modules(root)
        if module.name not in ROOTS and not within(module.name, "gateway.adapters")
        for used in module.imports
        if within(used.target, "gateway.adapters")
    ]


def the_pipeline_knows_no_http_library(root: Path) -> list[str]:
    """HTTP is spoken by adapters and roots."""
    return [
        f"{module.name}:{used.line}: imports {used.target}"
        for module in modules(root)
        if within(module.name, "gateway")
        and module.name not in ROOTS
        and not within(module.name, "gateway.adapters")
        for used in module.imports
        if used.target.partition(".")[0] in HTTP_LIBRARIES
    ]


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


LAWS: tuple[Law, ...] = (
    cores_are_pure,
    cores_are_leaves,
    packages_do_not_import_one_another,
    ports_import_only_cores,
    adapters_are_imported_by_roots_only,
    the_pipeline_knows_no_http_library,
    files_are_small,
    names_say_what_is_inside,
    files_say_what_they_are_for,
)
