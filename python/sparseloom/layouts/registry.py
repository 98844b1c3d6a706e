"""The registry of layouts by name."""

from __future__ import annotations

import inspect
import re
from typing import Any, TypeVar

import torch
from torch import Tensor

from .._arguments import named_arguments, nearest
from .._checks import share
from ..errors import Error
from .layout import Layout

Class = TypeVar("Class", bound=type[Layout])

_REGISTERED: dict[str, type[Layout]] = {}
_REQUIRED = ("from_dense", "pack", "to_dense")


@named_arguments
def register(cls: Class) -> Class:
    """Registers a subclass of Layout by its ``name``; a decorator, which returns the class.

    A class that is defined again, as by a notebook cell that runs twice, replaces itself. Raises Error when
    the class lacks a method or when another class has the name.
    """
    if not (isinstance(cls, type) and issubclass(cls, Layout)):
        raise Error("register", "a subclass of layouts.Layout", repr(cls), "derive the class from it")
    lacking = [name for name in _REQUIRED if _function(cls, name) is _function(Layout, name)]
    if lacking:
        raise Error(
            "register",
            f"a class with {', '.join(_REQUIRED)}",
            f"{cls.__name__} without {', '.join(lacking)}",
            "define them: docs/add_a_layout.md",
        )
    if "name" not in vars(cls):
        cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
    holder = _REGISTERED.get(cls.name)
    if holder is not None and _origin(holder) != _origin(cls):
        got = f"{cls.name!r}, the name of {'.'.join(_origin(holder))}"
        raise Error("register", "a name that is free", got, "give the class another `name`")
    _REGISTERED[cls.name] = cls
    return cls


def is_registered(cls: type[Layout]) -> bool:
    """Returns whether the class is the one registered by its name."""
    return _REGISTERED.get(cls.name) is cls


@named_arguments
def get(name: str) -> type[Layout]:
    """Returns the layout registered by that name. Raises Error, which lists the names, for any other."""
    if name not in _REGISTERED:
        registered = ", ".join(names()) or "nothing, since none is registered"
        raise Error(
            "layouts", f"one of {registered}", repr(name), "import the module that registers it first"
        )
    return _REGISTERED[name]


def chosen(op: str, layout: str | type[Layout] | Layout, weight: Tensor, options: dict[str, Any]) -> Layout:
    """Returns the given Layout, or the one that the class, given or named, makes from a weight [rows, cols].
    Raises Error for anything that is not a layout, and for options that its ``from_dense`` does not take."""
    if isinstance(layout, Layout):
        if options:
            got = f"{', '.join(options)} beside a Layout"
            raise Error(op, "options with a layout's name or class", got, "leave them out")
        return layout
    cls = get(layout) if isinstance(layout, str) else layout
    if not (isinstance(cls, type) and issubclass(cls, Layout)):
        raise Error(op, "a layout's name, its class or a Layout", repr(layout), "see sparseloom.layouts")
    require_options(op, cls, options)
    try:
        return cls.from_dense(weight, **options)
    except TypeError as error:
        remedy = "pass what its from_dense asks for, by name"
        raise Error(op, f"the options of layout {cls.name}", str(error), remedy) from error


def require_options(op: str, cls: type[Layout], options: dict[str, Any], whole: bool = True) -> None:
    """Raises Error for options that the layout's ``from_dense`` does not take, for those that it lacks, where
    they have to be ``whole``, and for a density that is no share."""
    takes = {n: each for n, each in inspect.signature(cls.from_dense).parameters.items() if n != "weight"}
    known = [name for name, each in takes.items() if each.kind is not each.VAR_KEYWORD]
    if len(known) == len(takes) and (foreign := [name for name in options if name not in known]):
        expected = f"options of layout {cls.name}: {', '.join(known) or 'none'}"
        raise Error(op, expected, f"{foreign[0]}={options[foreign[0]]!r}", nearest(foreign[0], known))
    needed = [name for name in known if takes[name].default is inspect.Parameter.empty]
    if whole and (missing := [name for name in needed if name not in options]):
        remedy = f"pass {', '.join(f'{name}=' for name in needed)}"
        expected = f"the options {', '.join(needed)} of layout {cls.name}"
        raise Error(op, expected, f"none for {missing[0]}", remedy)
    if (density := options.get("density")) is not None and not 0 <= share(op, density) <= 1:
        remedy = "pass the share of elements that stay: density=0.1"
        raise Error(op, "density in [0, 1]", repr(density), remedy)


def masked(layout: Layout, weight: Tensor, options: dict[str, Any]) -> Tensor:
    """Returns what ``layout``, made from the weight [rows, cols] with these options, packs: elements that a
    ``mask`` among them excludes are zero where the layout stores them nevertheless."""
    mask = options.get("mask")
    if layout.exact or not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != weight.shape:
        return weight
    return weight.masked_fill(~mask.to(weight.device), 0)


@named_arguments
def names() -> list[str]:
    """Returns the names of all registered layouts, sorted."""
    return sorted(_REGISTERED)


def _function(cls: type[Layout], name: str) -> object:
    method = getattr(cls, name)
    return getattr(method, "__func__", method)  # a class method is bound anew for each class


def _origin(cls: type[Layout]) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__
