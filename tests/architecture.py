"""Sources as a graph: who imports whom, who names what, and what faces show of it.

Everything here reads syntax and runs nothing. A check returns the offences it finds, as lines.
"""

import ast
import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ARRAYS = {"Array", "ndarray", "ArrayLike", "NDArray"}
SHAPED = {"Bool", "Float", "Inexact", "Int", "Integer", "Key", "Num", "Real", "Shaped", "UInt"}
"""What says the axes of an array: names of jaxtyping."""

Graph = Mapping[str, Collection[str]]
"""Modules by name, and the modules that importing each one imports."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


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


Sources = Mapping[str, Module]
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
                    base = _resolve(module, source or "", level)
                    yield from (Import(module.name, base, alias.name) for alias in names)


def _resolve(module: Module, source: str, level: int) -> str:
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
        own = _ways(importer)
        on_the_way = {way for way in _ways(target)[:-1] if way not in own}
        reached = {way for way in {target, *on_the_way} - {importer} if way in sources}
        found[importer] |= {way for way in reached if (importer, way) not in but}
    return found


def _ways(name: str) -> list[str]:
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
    return _ways(module)[:2][-1]


# Faces


def public_names(module: Module) -> list[str] | None:
    """`__all__`, where a module has one."""
    for node in module.tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return list(ast.literal_eval(value))
    return None


def reaching_past(users: Sources, sources: Sources) -> list[str]:
    """Where `users` reach past the face of a package of `sources` which they are no part of.

    A face is the `__init__` of `top.package`, or of `top`, and shows what its `__all__` names.
    """
    tops = {name.partition(".")[0] for name in sources}
    found = []
    for importer, source, name in imports(users):
        ways = _ways(source)
        if ways[0] not in tops or (importer in sources and part_of(importer) == part_of(source)):
            continue
        told = f"{importer}: {f'from {source} import {name}' if name else f'import {source}'}"
        face = sources.get(part_of(source))
        if len(ways) > 2 or face is None or (not name and len(ways) > 1):
            found.append(told)
        elif name and f"{source}.{name}" in sources and len(ways) == 1:
            continue  # `from top import package`
        elif name and name not in (public_names(face) or _defined(face)):
            found.append(f"{told}, which it does not show")
    return found


def naming(
    sources: Sources, package: str, name: str, doors: Mapping[str, Collection[str] | None]
) -> list[str]:
    """Where what `package` shows is named outside it, but by doors that may name it (None: all).

    `name` is named nowhere else in any way, also not as an attribute of another's face.
    """
    found = []
    for module in sources.values():
        own = part_of(module.name)
        allowed = doors.get(own, ())
        if own == package or allowed is None:
            continue
        taken = {
            each.name or each.source
            for each in imports({module.name: module})
            if package in _ways(f"{each.source}.{each.name}")
        }
        nodes = list(ast.walk(module.tree))
        taken |= {node.id for node in nodes if isinstance(node, ast.Name)} & {name}
        taken |= {node.attr for node in nodes if isinstance(node, ast.Attribute)} & {name}
        found += [f"{module.name} names {each}" for each in sorted(taken - set(allowed))]
    return found


def _defined(module: Module) -> set[str]:
    """What a module without `__all__` shows: public names that it defines itself."""
    found: set[str] = set()
    for node in module.tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Assign(targets=targets):
                found |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    return {name for name in found if not name.startswith("_")}


def _bound(module: Module) -> dict[str, Import]:
    """What a module imports at its head, by the name that it gets there."""
    found = {}
    for node in module.tree.body:
        if isinstance(node, ast.ImportFrom):
            base = _resolve(module, node.module or "", node.level)
            for alias in node.names:
                found[alias.asname or alias.name] = Import(module.name, base, alias.name)
    return found


def incomplete(sources: Sources) -> list[str]:
    """Faces that show what they have not, or have what they do not show.

    Where a face does nothing but import, all that it imports is for others.
    """
    found = []
    for module in sources.values():
        shown = public_names(module)
        if shown is None:
            continue
        bound, own = set(_bound(module)), _defined(module) - {"__all__"}
        found += [
            f"{module.name} shows {name}, but has none" for name in shown if name not in bound | own
        ]
        rest = (own or bound) if module.is_package else set()
        found += [f"{module.name} does not show {name}" for name in sorted(rest - set(shown))]
    return found


# Words and shapes


class Definition(NamedTuple):
    """A public name: its name in full, where it was made, its syntax, and what is said of it."""

    name: str
    module: str
    node: ast.AST
    words: str


def definitions(sources: Sources) -> Iterator[Definition]:
    """What every `__all__` names, as far as it was made in these sources."""
    for module in sources.values():
        for name in public_names(module) or ():
            found = _find(sources, module.name, name)
            if found is not None:
                yield found


def _find(sources: Sources, module: str, name: str) -> Definition | None:
    full = f"{module}.{name}"
    if module not in sources:
        return None
    body = sources[module].tree.body
    # From the end: what comes before a function can be its overloads.
    for node, after in zip(reversed(body), [None, *reversed(body[1:])], strict=True):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() if node.name == name:
                return Definition(full, module, node, ast.get_docstring(node) or "")
            case (
                ast.Assign(targets=[ast.Name(id=target)])
                | ast.AnnAssign(target=ast.Name(id=target))
            ) if target == name:
                return Definition(full, module, node, _text(after))
    bound = _bound(sources[module]).get(name)
    if bound is not None and bound.source != module:
        if found := _find(sources, bound.source, bound.name):
            return found
    if full in sources:
        return Definition(full, full, sources[full].tree, _text(sources[full].tree.body[0]))
    return None


def _text(node: ast.stmt | None) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str(words))):
            return words
    return ""


def undocumented(sources: Sources) -> list[str]:
    """Public names of which nothing is said."""
    return sorted({found.name for found in definitions(sources) if not found.words.strip()})


def shapeless(sources: Sources) -> list[str]:
    """Public functions and methods with arrays whose axes nobody tells.

    They are told by jaxtyping, or in words: `[state, action]`, or "the shape".
    """
    found = set()
    for definition in definitions(sources):
        for function, words in _functions(sources, definition):
            bare = [told for told in _annotations(function) if _is_bare(told)]
            if bare and not re.search(r"\[[^\]]*\]|shape", words):
                told = ", ".join(map(ast.unparse, bare))
                found.add(f"{definition.name}: {function.name}({told})")
    return sorted(found)


def _functions(sources: Sources, definition: Definition) -> Iterator[tuple[Function, str]]:
    """A function, or the public methods of a class, each with what is said of it."""
    node, words = definition.node, definition.words
    if isinstance(node, Function):
        yield node, words
    elif isinstance(node, ast.ClassDef):
        inherited = _inherited(sources, definition)
        fields = {ast.unparse(p.target): p for p in node.body if isinstance(p, ast.AnnAssign)}
        for part in node.body:
            if not isinstance(part, Function):
                continue
            if part.name == "__init__":  # what becomes a field is told there
                part.args.args = [
                    given
                    for given in part.args.args
                    if given.arg not in fields or _is_bare(fields[given.arg].annotation)
                ]
            if part.name == "__init__" or part.name[0] != "_":
                yield part, f"{words} {ast.get_docstring(part) or inherited.get(part.name)}"


def _inherited(sources: Sources, definition: Definition) -> dict[str, str]:
    """What bases say of their methods."""
    told: dict[str, str] = {}
    for base in getattr(definition.node, "bases", ()):
        found = _find(sources, definition.module, base.id) if isinstance(base, ast.Name) else None
        if found is not None and isinstance(found.node, ast.ClassDef):
            told |= _inherited(sources, found)
            for part in found.node.body:
                if isinstance(part, Function) and (words := ast.get_docstring(part)):
                    told[part.name] = words
    return told


def _annotations(function: Function) -> list[ast.expr]:
    given = function.args
    everything = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    told = [each.annotation for each in everything if each is not None]
    return [each for each in [*told, function.returns] if each is not None]


def _is_bare(annotation: ast.AST) -> bool:
    """Whether it names an array outside jaxtyping's brackets."""
    match annotation:
        case ast.Subscript(value=ast.Name(id=name) | ast.Attribute(attr=name)) if name in SHAPED:
            return False
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in ARRAYS:
            return True
        case ast.Constant(value=str(text)):
            with contextlib.suppress(SyntaxError):  # of a `Literal`
                return _is_bare(ast.parse(text, mode="eval"))
    return any(map(_is_bare, ast.iter_child_nodes(annotation)))
