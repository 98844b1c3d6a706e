"""Reads from the source of a module's class how often its methods use the module's parts, also in calls that
a trace of one forward does not show."""

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
    """How the methods of a class use some attributes of ``self``, and of other objects."""

    uses: Counter[str] = field(default_factory=Counter)  # uses as a value, not to look up an attribute of it
    calls: Counter[str] = field(default_factory=Counter)  # those of the uses that are calls
    methods: Counter[str] = field(default_factory=Counter)  # the number of methods with such a use
    inside: set[str] = field(default_factory=set)  # attributes of other objects that are called


def mentioned(module: nn.Module) -> set[str]:
    """Returns all names that the methods of a module's class look up."""
    return set[str]().union(*(names for _, names in functions_of(type(module))))  # type: ignore[arg-type]


def read(cls: type, names: set[str]) -> Source | None:
    """Returns how the methods of a class use attributes of these names, without __init__ and the methods of
    torch's base classes. Returns None if there is no source."""
    source = Source()
    for function, mentions in functions_of(cls):  # type: ignore[arg-type]
        if names.isdisjoint(mentions):
            continue
        try:
            tree = tree_of(function)
        except (OSError, TypeError, SyntaxError):
            return None
        _count(tree, function, names, source)
    return source


def handed_on(module: nn.Module) -> set[str]:
    """Returns the arguments that a module's forward only hands to its children. Raises OSError if there is no
    source."""
    function = inspect.unwrap(type(module).forward)
    nodes, handed_ids = list(ast.walk(tree_of(function))), set[int]()
    self_name = next(iter(function.__code__.co_varnames), "")
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        child = (
            call.func.attr if isinstance(call.func, ast.Attribute) and _root(call.func) == self_name else ""
        )
        if module._modules.get(child) is not None and isinstance(call.func.value, ast.Name):  # type: ignore[attr-defined]
            handed = [*call.args, *(argument.value for argument in call.keywords)]
            handed_ids |= {
                id(argument.value if isinstance(argument, ast.Starred) else argument) for argument in handed
            }
    used = {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in handed_ids}
    return set(inspect.signature(module.forward).parameters) - used


@cache
def tree_of(function: Any) -> ast.AST:
    """Returns the syntax tree of a function. Raises OSError if there is no source."""
    return ast.parse(textwrap.dedent(inspect.getsource(function)))


@cache
def functions_of(cls: type) -> list[tuple[Any, set[str]]]:
    """Returns the functions of a class and of its bases, each with the names that it looks up; overridden
    functions only if ``super`` can call them."""
    hidden, functions = {"__init__"}, list[tuple[Any, set[str]]]()
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] in ("torch", "builtins", "typing", "abc"):
            continue
        for name, member in vars(base).items():
            inner = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            inner = inspect.unwrap(inner) if callable(inner) else inner
            if inspect.isfunction(inner) and name not in hidden:
                names = {used for code in _codes(inner.__code__) for used in code.co_names}
                if "super" not in names:
                    hidden.add(name)
                functions.append((inner, names))
    return functions


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yields the code of a function and of those that it defines."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _count(tree: ast.AST, function: Any, names: set[str], source: Source) -> None:
    self_name = next(iter(function.__code__.co_varnames), "")
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    looked_at = {id(node.value) for node in attributes if node.attr not in ("forward", "__call__")}
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    own_uses = set[str]()
    for node in (node for node in attributes if node.attr in names):
        of_self = isinstance(node.value, ast.Name) and node.value.id == self_name
        if of_self and isinstance(node.ctx, ast.Load) and id(node) not in looked_at:
            source.uses[node.attr] += 1
            source.calls[node.attr] += id(node) in called
            own_uses.add(node.attr)
        # F.relu is a function, not a part of another module
        elif not (of_self or inspect.ismodule(function.__globals__.get(_root(node)))) and id(node) in called:
            source.inside.add(node.attr)
    source.methods.update(own_uses)


def _root(node: ast.expr) -> str:
    """Returns the name that an expression such as torch.nn.functional.relu begins with."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
