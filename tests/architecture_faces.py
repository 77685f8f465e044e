"""The faces of packages: what they show, who reaches past them, and what is said of what they show.

As in `architecture`, a check reads syntax and returns the offences it finds, as lines.
"""

import ast
import contextlib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from architecture import Import, Module, Sources, imports, part_of, resolve, ways

ARRAYS = {"Array", "ndarray", "ArrayLike", "NDArray"}
SHAPED = {"Bool", "Float", "Inexact", "Int", "Integer", "Key", "Num", "Real", "Shaped", "UInt"}
"""What says the axes of an array: names of jaxtyping."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


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
        depth, top = len(ways(source)), ways(source)[0]
        if top not in tops or (importer in sources and part_of(importer) == part_of(source)):
            continue
        told = f"{importer}: {f'from {source} import {name}' if name else f'import {source}'}"
        face = sources.get(part_of(source))
        if depth > 2 or face is None or (not name and depth > 1):
            found.append(told)
        elif name and f"{source}.{name}" in sources and depth == 1:
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
            if package in ways(f"{each.source}.{each.name}")
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
            base = resolve(module, node.module or "", node.level)
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
    """What every face shows, as far as it was made in these sources.

    That is what `__all__` names; without it, functions and classes of `top` or `top.part`.
    """
    for module in sources.values():
        names = public_names(module)
        if names is None and module.name == part_of(module.name):
            names = [
                node.name
                for node in module.tree.body
                if isinstance(node, Function | ast.ClassDef) and node.name[0] != "_"
            ]
        for name in names or ():
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

    They are told by jaxtyping, or in words: `[state, action]`, or "the shape". What has no
    annotation could be an array.
    """
    found = set()
    for definition in definitions(sources):
        for function, words in _functions(sources, definition):
            parameters = _parameters(function)
            bare = [each for each in parameters if each.annotation is None]
            if not re.search(r"\[[^\]]*\]|shape", words):
                bare += [
                    each for each in parameters if each.annotation and _is_bare(each.annotation)
                ]
                bare += [each for each in [function.returns] if each and _is_bare(each)]
            if bare:
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


def _parameters(function: Function) -> list[ast.arg]:
    given = function.args
    found = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return [each for each in found if each is not None and each.arg not in ("self", "cls")]


def _is_bare(annotation: ast.AST) -> bool:
    """Whether it names an array outside jaxtyping's brackets."""
    match annotation:
        case ast.Subscript(value=ast.Name(id=name) | ast.Attribute(attr=name)) if name in SHAPED:
            return False
        case ast.Name(id=name) | ast.Attribute(ast.Name("jax" | "jnp" | "np" | "npt"), name) if (
            name in ARRAYS
        ):
            return True
        case ast.Constant(value=str(text)):
            with contextlib.suppress(SyntaxError):  # of a `Literal`
                return _is_bare(ast.parse(text, mode="eval"))
    return any(map(_is_bare, ast.iter_child_nodes(annotation)))
