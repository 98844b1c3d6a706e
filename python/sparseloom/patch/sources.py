"""What the source of a module's class says of the module's parts: how often its methods use them, in calls
that no trace of one forward shows."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torch import nn


@dataclass
class Source:
    """How the methods of a class use some attributes of their object, and of others."""

    uses: Counter[str] = field(default_factory=Counter)  # as values: not to look at a part of them
    calls: Counter[str] = field(default_factory=Counter)  # of these, those that call them
    methods: Counter[str] = field(default_factory=Counter)  # how many methods do
    inside: set[str] = field(default_factory=set)  # of other objects, and called


def mentioned(module: nn.Module) -> set[str]:
    """Returns all names that the methods of a module's class look up."""
    return set[str]().union(*(names for _, names in functions_of(type(module))))  # type: ignore[arg-type]


def read(cls: type, names: set[str]) -> Source | None:
    """Returns how the methods of a class, those of torch's own bases and __init__ left out, use attributes of
    these names. Returns None where there is no source."""
    found = Source()
    for function, mentions in functions_of(cls):  # type: ignore[arg-type]
        if names.isdisjoint(mentions):
            continue
        try:
            tree = tree_of(function)
        except (OSError, TypeError, SyntaxError):
            return None
        _count(tree, function, names, found)
    return found


def handed_on(module: nn.Module) -> set[str]:
    """Returns the arguments of a module's forward with which it does nothing but hand them to its children.
    Raises OSError where there is no source."""
    function = inspect.unwrap(type(module).forward)
    nodes, given = list(ast.walk(tree_of(function))), set[int]()
    own = next(iter(function.__code__.co_varnames), "")
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        child = call.func.attr if isinstance(call.func, ast.Attribute) and _root(call.func) == own else ""
        if module._modules.get(child) is not None and isinstance(call.func.value, ast.Name):  # type: ignore[attr-defined]
            handed = [*call.args, *(each.value for each in call.keywords)]
            given |= {id(each.value if isinstance(each, ast.Starred) else each) for each in handed}
    used = {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in given}
    return set(inspect.signature(module.forward).parameters) - used


@cache
def tree_of(function: Any) -> ast.AST:
    """Returns the syntax tree of a function. Raises OSError where there is no source."""
    return ast.parse(textwrap.dedent(inspect.getsource(function)))


@cache
def functions_of(cls: type) -> list[tuple[Any, set[str]]]:
    """Returns the functions of a class and of its bases, each with the names that it looks up; of overridden
    ones those alone that ``super`` can call."""
    hidden, found = {"__init__"}, list[tuple[Any, set[str]]]()
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] in ("torch", "builtins", "typing", "abc"):
            continue
        for name, each in vars(base).items():
            inner = each.fget if isinstance(each, property) else getattr(each, "__func__", each)
            inner = inspect.unwrap(inner) if callable(inner) else inner
            if inspect.isfunction(inner) and name not in hidden:
                names = {each for code in _codes(inner.__code__) for each in code.co_names}
                if "super" not in names:
                    hidden.add(name)
                found.append((inner, names))
    return found


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yields the code of a function and of those that it defines."""
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _codes(each)


def _count(tree: ast.AST, function: Any, names: set[str], found: Source) -> None:
    own = next(iter(function.__code__.co_varnames), "")
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    looked_at = {id(node.value) for node in attributes if node.attr not in ("forward", "__call__")}
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    mine = set[str]()
    for node in (node for node in attributes if node.attr in names):
        of_self = isinstance(node.value, ast.Name) and node.value.id == own
        if of_self and isinstance(node.ctx, ast.Load) and id(node) not in looked_at:
            found.uses[node.attr] += 1
            found.calls[node.attr] += id(node) in called
            mine.add(node.attr)
        # F.relu is a function, and no part of another module
        elif not (of_self or inspect.ismodule(function.__globals__.get(_root(node)))) and id(node) in called:
            found.inside.add(node.attr)
    found.methods.update(mine)


def _root(node: ast.expr) -> str:
    """Returns the name that an expression such as torch.nn.functional.relu begins with."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
