"""named_arguments and renamed: turn Python's TypeError about a call's arguments into our Error, with the
nearest name; and take the old names of arguments, with a DeprecationWarning."""

from __future__ import annotations

import difflib
import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from ._home import PACKAGE
from .errors import Error, WrongArguments

P = ParamSpec("P")
R = TypeVar("R")
Made = TypeVar("Made", bound=type)

#: What other libraries call an argument -> what it is here ("|" between two), and what to pass.
_FOREIGN = {
    "amount": ("density", "the share that stays, 1 - amount"),
    "sparsity": ("density", "the share that stays, 1 - sparsity"),
    "sparsity_ratio": ("density", "the share that stays, 1 - sparsity_ratio"),
    "block_size": ("block", "one side or (out, in)"),
    "blocksize": ("block", "one side or (out, in)"),
    "config": ("patterns", "{name: recipe}"),
    "batch": ("example_input", "what the model is called with"),
    "example_inputs": ("example_input", "what the model is called with"),
    "inputs": ("example_input|x", "what the model or layer is called with"),
    "input": ("example_input|x", "what the model or layer is called with"),
    "hidden_states": ("x", "the layer's input"),
    "skip": ("residual", "what is added to the result"),
    "query": ("q", "[batch, heads, tokens, head size]"),
    "key": ("k", "[batch, heads, tokens, head size]"),
    "value": ("v", "[batch, heads, tokens, head size]"),
    "attn_mask": ("pattern", "the kept blocks"),
    "block_mask": ("pattern", "the kept blocks, which torch's BlockMask says too"),
    "mask": ("pattern", "the kept blocks"),
    "is_causal": ("causal", "a bool, counted from the last query"),
    "softmax_scale": ("scale", "a number"),
    "sm_scale": ("scale", "a number"),
    "calibration_data": ("data", "batches"),
    "dataloader": ("data", "batches"),
    "dataset": ("data", "batches"),
    "file": ("path", "a file's name"),
    "filename": ("path", "a file's name"),
    "input_size": ("in_features", "a number"),
    "output_size": ("out_features", "a number"),
    "generator": ("seed", "an int or a torch.Generator"),
    "random_state": ("seed", "an int or a torch.Generator"),
    "frequency": ("every", "steps between two changes"),
    "interval": ("every", "steps between two changes"),
}
#: Modules whose functions users write with the module's name.
_ROOMS = {
    "attention.merge": "attention",
    "attention.patterns": "attention.patterns",
    "attention.plans": "attention",
    "attention.serving": "attention",
    "layouts.registry": "layouts",
    "ops": "ops",
    "ops.index": "ops",
    "ops.plans": "ops",
    "ops.registry": "ops",
    "pattern.measures": "pattern",
    "sparsify.registered": "sparsify",
    "pattern.generators": "pattern",
    "pattern.graphs": "pattern",
    "pattern.scored": "pattern",
    "sparsify.methods": "methods",
}


#: The modules of the functions that call forward.
_CALLING = (f"{PACKAGE}.nn.held.options", "torch.nn.modules.module")


def named_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function that users call: a misspelt, missing or surplus argument raises Error with the
    nearest name. It costs nothing but one call as long as the arguments fit."""
    return renamed()(function)


def renamed(**old_names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Returns a decorator like named_arguments that also takes ``{old name: new name}``, with a
    DeprecationWarning."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except TypeError:
                fitting = _fitting(function, args, kwargs, old_names)
                if fitting is None:  # the call fits: the body raised it
                    raise
            return checked(*args, **fitting)  # type: ignore[arg-type]

        return checked

    return decorate


def named_init(cls: Made) -> Made:
    """Decorates a class: named_arguments for its constructor."""
    cls.__init__ = named_arguments(cls.__init__)  # type: ignore[misc]
    return cls


def renamed_init(**old_names: str) -> Callable[[Made], Made]:
    """Returns a decorator of classes: ``renamed`` for the constructor, and properties of the old names."""

    def decorate(cls: Made) -> Made:
        cls.__init__ = renamed(**old_names)(cls.__init__)  # type: ignore[misc]
        for old, new in old_names.items():
            setattr(cls, old, property(_reader(old, new)))
        return cls

    return decorate


def _reader(old: str, new: str) -> Callable[[Any], Any]:
    def read(self: Any) -> Any:
        _tell(f"{type(self).__name__}.{old}", new, 3)
        return getattr(self, new)

    return read


def _tell(old: str, new: str, level: int) -> None:
    warnings.warn(f"{old} is called {new} now; the old name will go", DeprecationWarning, stacklevel=level)


def _fitting(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], old_names: dict[str, str]
) -> dict[str, Any] | None:
    """Returns the keywords under their new names; None where the call fits the signature. Raises Error where
    it fits by no name."""
    signature = _signature(function)
    if _binds(signature, args, kwargs):
        return None
    op = _op_of(function, args)
    new_kwargs = {old_names.get(name, name): value for name, value in kwargs.items()}
    if len(new_kwargs) < len(kwargs):
        twice = [f"{old} and {new}" for old, new in old_names.items() if old in kwargs and new in kwargs]
        raise Error(op, "one name of an argument", twice[0], "the first is the old name: leave it out")
    if not _binds(signature, args, new_kwargs):
        raise _misfit(op, signature, args, new_kwargs)
    for old in old_names.keys() & kwargs.keys():
        _tell(f"{op}'s argument {old}", old_names[old], 4)
    return new_kwargs


def require_fitting(
    op: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], error: TypeError
) -> None:
    """Raises Error, in the name of ``op``, if a module's call raised ``error`` because its arguments do not
    fit the function's signature. One that comes out of forward or a hook is of the user's own."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or last.tb_frame.f_globals.get("__name__") not in _CALLING:
        return
    signature = _signature(function)
    if not _binds(signature, args, kwargs):
        raise _misfit(op, signature, args, kwargs) from None


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """Returns the signature; that of a class without a constructor of its own takes nothing but itself."""
    return inspect.signature(_takes_nothing if function is object.__init__ else function)


def _takes_nothing(self: Any) -> None: ...


def _binds(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _op_of(function: Callable[..., Any], args: tuple[Any, ...]) -> str:
    if function.__name__ == "__init__":
        return type(args[0]).__name__
    room = _ROOMS.get(function.__module__.removeprefix(f"{PACKAGE}."))
    name = function.__qualname__.rpartition("<locals>.")[2]
    return f"{room}.{name}" if room else name


def _misfit(
    op: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> WrongArguments:
    """Returns the error that says which argument does not fit, and how to call."""
    parameters = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    itself = len(signature.parameters) - len(parameters)
    names = [each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    placed = [
        each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    required = [each.name for each in parameters if each.default is each.empty and each.name in names]
    given = args[itself:]
    if foreign := [name for name in kwargs if name not in names]:
        name = foreign[0]
        got = f"{name}={_short(kwargs[name])}"
        return WrongArguments(op, f"arguments of {', '.join(names) or 'no name'}", got, nearest(name, names))
    if len(given) > len(placed):
        behind = [name for name in names if name not in placed]
        remedy = (
            f"pass {', '.join(f'{each}=' for each in behind)} by name" if behind else "leave the rest out"
        )
        expected = f"{len(placed)} arguments without a name ({', '.join(placed) or 'none'})"
        return WrongArguments(op, expected, f"{len(given)}: {', '.join(map(_short, given))}", remedy)
    if twice := [name for name in placed[: len(given)] if name in kwargs]:
        got = f"it at its place and as {twice[0]}="
        return WrongArguments(op, f"one value of {twice[0]}", got, "pass it once")
    there = {*placed[: len(given)], *kwargs}
    missing = [name for name in required if name not in there]
    return WrongArguments(op, f"an argument {missing[0]}", "none", f"call {op}({', '.join(required)})")


def nearest(name: str, names: list[str]) -> str:
    """Returns a remedy: the argument that was probably meant, or how to find it."""
    heres, value = _FOREIGN.get(name, ("", ""))
    for here in heres.split("|"):
        if here in names:
            return f"pass {here}=, {value}"
    if name == "residual":
        return "add it to the layer's result, which this layer does not do itself"
    close = difflib.get_close_matches(name, names, 1, 0.5)
    return f"did you mean {close[0]}=?" if close else "leave it out"


def _short(value: Any) -> str:
    shown = (bool, int, float, str, type(None))
    return repr(value)[:40] if isinstance(value, shown) else f"a {type(value).__name__}"
