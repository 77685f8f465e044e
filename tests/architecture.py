"""Sources as a graph: who imports whom, and whether that goes one way.

Everything here reads syntax and runs nothing. A check returns the offences it finds, as lines.
"""

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

Graph = Mapping[str, Collection[str]]
"""Modules by name, and the modules that importing each one imports."""


class Module(NamedTuple):
    """A source: its name, whether it is the face of a package, and its syntax."""

    name: str
    is_package: bool
    tree: ast.Module


class Import(NamedTuple):
    """`from source import name`, or `import source` where `name` is empty."""

    importer: str
    source: str
    name: str


Sources = dict[str, Module]
"""Modules by name."""


def parse(sources: Mapping[str, str]) -> Sources:
    """Modules by name; a package is one whose name others go on from."""
    packages = {name.rpartition(".")[0] for name in sources}
    return {name: Module(name, name in packages, ast.parse(text)) for name, text in sources.items()}


def read(packages: Mapping[str, Path]) -> Sources:
    """Every module of packages, each at a folder."""
    found = {}
    for package, folder in packages.items():
        for file in sorted(folder.rglob("*.py")):
            parts = [package, *file.relative_to(folder).with_suffix("").parts]
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            found[name] = Module(name, is_package, ast.parse(file.read_text(), str(file)))
    return found


# Imports


def imports(sources: Sources) -> Iterator[Import]:
    """All imports, also those in functions and under TYPE_CHECKING.

    What is needed for types alone is knowledge of another module all the same: a class that is
    named in an annotation cannot be changed without this module either.
    """
    for module in sources.values():
        for node in ast.walk(module.tree):
            match node:
                case ast.Import(names=names):
                    yield from (Import(module.name, alias.name, "") for alias in names)
                case ast.ImportFrom(module=source, level=level, names=names):
                    base = resolve(module, source or "", level)
                    yield from (Import(module.name, base, alias.name) for alias in names)


def resolve(module: Module, source: str, level: int) -> str:
    """What an import of `source` means in `module`, `level` dots before it."""
    if not level:
        return source
    around = module.name.split(".")
    around = around[: len(around) - level + module.is_package]
    return ".".join([*around, *filter(None, [source])])


def graph(sources: Sources, *, but: Collection[tuple[str, str]] = ()) -> dict[str, set[str]]:
    """Who imports whom, faces of packages on the way included, but for some (importer, imported).

    A module's own packages are left out where they are only on the way: they are being imported
    already.
    """
    found: dict[str, set[str]] = {name: set() for name in sources}
    for importer, source, name in imports(sources):
        target = f"{source}.{name}" if f"{source}.{name}" in sources else source
        own = ways(importer)
        on_the_way = {way for way in ways(target)[:-1] if way not in own}
        reached = {way for way in {target, *on_the_way} - {importer} if way in sources}
        found[importer] |= {way for way in reached if (importer, way) not in but}
    return found


def ways(name: str) -> list[str]:
    """`a`, `a.b` and `a.b.c`, for `a.b.c`."""
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def cycles(graph: Graph) -> list[str]:
    """The modules that reach themselves, each line a strongly connected component (Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    waiting: list[str] = []
    found = []

    def visit(module: str) -> None:
        order[module] = low[module] = len(order)
        waiting.append(module)
        for other in sorted(graph[module]):
            if other not in order:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in waiting:
                low[module] = min(low[module], order[other])
        if low[module] == order[module]:
            start = waiting.index(module)
            component = waiting[start:]
            del waiting[start:]
            if len(component) > 1 or module in graph[module]:
                found.append(" → ".join(sorted(component)))

    for module in sorted(graph):
        if module not in order:
            visit(module)
    return found


def upward(graph: Graph, order: Sequence[str]) -> list[str]:
    """Imports that do not point down in `order`, nor stay in their own part of it."""
    found = []
    places = {part: place for place, part in enumerate(order)}
    for importer, imported in graph.items():
        if part_of(importer) not in places:
            found.append(f"{importer} has no place in the order")
            continue
        found += [
            f"{importer} → {other}"
            for other in sorted(imported)
            if places.get(part_of(other), -1) > places[part_of(importer)]
        ]
    return found


def part_of(module: str) -> str:
    """The part of the order that a module belongs to: a package holds what is below it."""
    return ways(module)[:2][-1]
