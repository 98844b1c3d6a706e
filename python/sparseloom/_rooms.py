"""Room: modules whose names are also those of functions, and can be called as these; and the Error for a call
of any other, and for a name that the package does not have."""

from __future__ import annotations

import difflib
import importlib
import inspect
import types
from collections.abc import Sequence
from typing import Any

from .errors import Error, MissingAttribute


class Room(types.ModuleType):
    """A module that is called as its function of the same name, so that ``import sparseloom.report`` and
    ``sparseloom.report`` are one object. Without a function a call raises Error, which names the one with an
    underscore: it changes its argument in place, as torch's do."""

    @classmethod
    def of(cls, name: str, function: str = "") -> types.ModuleType:
        """Returns the module of that name, imported, and made a Room."""
        module = importlib.import_module(name)
        module.__class__ = cls
        if function:
            called = getattr(module, function)
            vars(module)["_called_as"] = function
            module.__doc__ = called.__doc__
            module.__signature__ = inspect.signature(called)  # type: ignore[attr-defined]
        return module

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if (function := vars(self).get("_called_as")) is not None:
            return getattr(self, function)(*arguments, **keywords)  # at the call: tests may have patched it
        name = self.__name__.rpartition(".")[2]
        in_place = next((each for each in dir(self) if each.startswith(name) and each[-1] == "_"), f"{name}_")
        got = f"one of the module {self.__name__}"
        raise Error(name, f"a call of {in_place}", got, f"write {in_place}(model, ...)")

    def __reduce__(self) -> tuple[Any, ...]:
        """Lets what holds it as a callable be pickled and copied, as a function could be."""
        return importlib.import_module, (self.__name__,)


def missing(package: str, name: str, names: Sequence[str]) -> AttributeError:
    """Returns the error for a name that the package does not have, with the nearest one that it has."""
    if name.startswith("__"):
        return AttributeError(f"module {package!r} has no attribute {name!r}")
    close = difflib.get_close_matches(name, names, 1, 0.7)
    remedy = f"did you mean {package}.{close[0]}?" if close else f"dir({package}) lists the names"
    return MissingAttribute(package, "a name of the package", repr(name), remedy)
