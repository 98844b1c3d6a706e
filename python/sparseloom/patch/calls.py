"""Finds the parts of a module that the source of its class calls with the same argument, one after the
other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from .sources import functions_of, tree_of

#: Statements whose own blocks may not run, or run often. What they hold is a block of its own.
_NESTED = ("body", "orelse", "finalbody", "handlers", "cases")
#: Expressions that need not be evaluated, or are more than once.
_MAYBE = (
    ast.Lambda, ast.IfExp, ast.BoolOp, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
)  # fmt: skip


def called_alike(cls: type, names: set[str]) -> list[tuple[str, ...]]:
    """Returns the groups of two or more of these attributes that some method calls one after the other. Each
    is called with the same variable alone. All calls are in one block of statements, so that all run where
    one does. Nothing in between assigns the variable, or writes into it by name. Returns [] without a
    source."""
    found = list[tuple[str, ...]]()
    for function, mentions in functions_of(cls):
        if len(names & mentions) < 2:
            continue
        try:
            tree = tree_of(function)
        except (OSError, TypeError, SyntaxError):
            continue
        own = next(iter(function.__code__.co_varnames), "")
        definition = next((node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)), None)
        if definition is not None:
            search = _Search(own, names)
            search.block(definition.body)
            found += search.groups
    taken, groups = set[str](), list[tuple[str, ...]]()
    for group in found:
        left = tuple(name for name in dict.fromkeys(group) if name not in taken)
        if len(left) == len(group):  # one that is called in two places stays alone
            groups.append(group)
            taken.update(group)
    return groups


@dataclass
class _Search:
    own: str  # what the method calls its object
    names: set[str]
    groups: list[tuple[str, ...]] = field(default_factory=list)

    def block(self, statements: list[ast.stmt]) -> None:
        """Finds the groups of one block, and those of the blocks in it."""
        open_ = dict[str, list[str]]()  # by the variable that they read
        for statement in statements:
            for name, variable in self._calls(statement):
                open_.setdefault(variable, []).append(name)
            for variable in _written(statement):
                self._close(open_.pop(variable, []))
            for inner in _NESTED:
                self._inside(getattr(statement, inner, []))
        for names in open_.values():
            self._close(names)

    def _inside(self, blocks: list[ast.AST]) -> None:
        statements = [each for each in blocks if isinstance(each, ast.stmt)]
        if statements:
            self.block(statements)
        for each in blocks:
            if isinstance(each, (ast.ExceptHandler, ast.match_case)):
                self.block(each.body)

    def _close(self, names: list[str]) -> None:
        if len(names) > 1:
            self.groups.append(tuple(names))

    def _calls(self, statement: ast.stmt) -> Iterator[tuple[str, str]]:
        """Yields the calls that a statement makes in any case, as pairs of attribute and variable, in their
        order."""
        for node in _evaluated(statement):
            if not isinstance(node, ast.Call) or node.keywords or len(node.args) != 1:
                continue
            called, (argument,) = node.func, node.args
            if (
                isinstance(called, ast.Attribute)
                and called.attr in self.names
                and isinstance(called.value, ast.Name)
                and called.value.id == self.own
                and isinstance(argument, ast.Name)
            ):
                yield called.attr, argument.id


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """Yields what is evaluated whenever a statement runs, inner expressions first."""
    for name, value in ast.iter_fields(node):
        if name in _NESTED and isinstance(node, ast.stmt):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, _MAYBE):
                yield from _evaluated(child)
    yield node


def _written(statement: ast.stmt) -> set[str]:
    """Returns the variables that a statement, with its blocks, assigns or writes into by name."""
    written = set[str]()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            written.add(node.id)
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            written |= _variables(node.value)
        if isinstance(node, ast.Call):  # torch's names of what writes in place end so
            called = node.func
            name = getattr(called, "attr", getattr(called, "id", ""))
            if name.endswith("_") and not name.endswith("__"):
                written |= _variables(called) | {v for each in node.args for v in _variables(each)}
    return written


def _variables(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
