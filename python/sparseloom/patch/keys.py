"""Key: what a layer's name or module has to be, as the mappings of sparsify_, prune_ and quantize_ say it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias, TypeVar

from torch import nn

from ..errors import Error
from .forms import Site

#: A name or regular expression, a compiled one, a class of modules, or EVERY.
Given: TypeAlias = "str | re.Pattern[str] | type[nn.Module] | Every"
Rule = TypeVar("Rule")


class Every:
    """The key of a recipe that came without one: all linear layers."""

    def __repr__(self) -> str:
        return "all linear layers"


EVERY = Every()


class Key:
    """Matches names whole, or modules by their class. A text that is a name of the model is that name alone,
    and a regular expression otherwise."""

    def __init__(self, op: str, given: Any, names: Collection[str]) -> None:
        self.given, self._regex = given, None
        self.is_name = isinstance(given, str) and given in names
        of_text = isinstance(given, str) or (isinstance(given, re.Pattern) and isinstance(given.pattern, str))
        if of_text and not self.is_name:
            try:
                self._regex = re.compile(given)
            except re.error as error:
                got, remedy = f"{given!r} ({error})", "escape dots and brackets"
                raise Error(op, "regular expressions as keys", got, remedy) from error
        elif not self.is_name and not self._is_class and given is not EVERY:
            expected = "names, regular expressions or classes of modules as keys"
            raise Error(op, expected, repr(given), 'pass {r".*mlp.*": BlockSparse(density=0.25)}')

    @property
    def _is_class(self) -> bool:
        return isinstance(self.given, type) and issubclass(self.given, nn.Module)

    def takes_name(self, name: str) -> bool:
        """Returns whether a module of that name matches by its name."""
        if self._regex is not None:
            return self._regex.fullmatch(name) is not None
        return self.is_name and name == self.given

    def takes_module(self, name: str, module: nn.Module) -> bool:
        """Returns whether a module matches by its name or its class."""
        return (self._is_class and isinstance(module, self.given)) or self.takes_name(name)

    def takes(self, site: Site) -> bool:
        """Returns whether a dense weight matches."""
        if self.given is EVERY:
            return site.form.is_linear
        if self._is_class:
            return isinstance(site.module, self.given)
        return any(map(self.takes_name, site.names + site.groups))


def keys_of(op: str, rules: Mapping[Any, Rule], names: Collection[str]) -> dict[Any, Key]:
    """Returns the Key of each key of a mapping."""
    return {given: Key(op, given, names) for given in rules}


def with_keys(rules: Any, kind: type) -> Any:
    """Returns the mapping of rules; one rule of that kind alone is for all linear layers."""
    return {EVERY: rules} if isinstance(rules, kind) else rules
