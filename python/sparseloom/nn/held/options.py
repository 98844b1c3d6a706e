"""WithOptions: refuses to set an option that a layer does not have. torch.nn.Module takes any attribute, and
one that nothing reads would be dropped without a word."""

from __future__ import annotations

import inspect
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import (
    _global_backward_hooks,
    _global_backward_pre_hooks,
    _global_forward_hooks,
    _global_forward_pre_hooks,
)

from ... import ops
from ..._arguments import renamed, require_fitting
from ..._checks import require_bool
from ..._home import is_ours
from ...errors import Error
from .answers import Answer, density_of, of_layers_inside, plan_of, to_dense_of

_INSIDE = "set it on the sparse layers inside: for layer in module.modules()"
#: Option or attribute that only some sparse layers have -> the remedy for a layer that does not have it.
_REMEDIES = {
    "activation": "apply it behind the layer",
    "block": "to_dense() and make the layer anew in such blocks",
    "capacity": "reserve_() makes room in block-sparse linear layers",
    "density": "it follows from what is stored: choose anew from to_dense(), or call set_topology_",
    "dense_copy": f"block-sparse and 2:4 layers and convolutions keep one: {_INSIDE}",
    "fuse": _INSIDE,
    "fuse_wgrad_accumulation": "block-sparse linear layers have it",
    "kernel": "8-bit layers have it; elsewhere the plan chooses, and ops.linear(kernel=...) forces one",
    "layout": "choose anew from to_dense() in that layout",
    "multiply": "nn.MaskedLinear has it",
    "pattern": "set_topology_ moves the blocks; a file or state dict brings another pattern",
    "strict": _INSIDE,
    "use_fast_accum": "8-bit layers have it: quantize_ first",
    "weight": "the Parameter is values, here or in the layers inside: load a state dict",
    "x_scale": "8-bit layers have it: quantize_ first",
}


#: Methods whose arguments users write by name. forward is none of them: _call_impl looks after it.
_CALLED = (
    "__init__", "add_edges_", "from_dense", "from_sparse", "from_torch", "from_torch_bsr", "pack", "plan",
    "reserve_", "reset_parameters", "set_topology_",
)  # fmt: skip
_OLD_NAMES = {"generator": "seed"}


class WithOptions(nn.Module):
    """A module of this library, whose class declares the options that it reads. Subclasses from outside may
    have attributes of any name."""

    if not TYPE_CHECKING:  # classes that have one themselves declare its type
        activation = of_layers_inside("activation", None)
        dense_copy = of_layers_inside("dense_copy", False)
        density = Answer(density_of)
        kernel = of_layers_inside("kernel", None)
        plan = plan_of
        strict = of_layers_inside("strict", False)
        to_dense = to_dense_of

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Lets wrong arguments of what users call raise Error, and takes the old name of ``seed``."""
        super().__init_subclass__(**keywords)
        for name in _CALLED if is_ours(cls) else ():
            made = vars(cls).get(name)
            if isinstance(made, classmethod):
                setattr(cls, name, classmethod(renamed(**_OLD_NAMES)(made.__func__)))
            elif made is not None:
                setattr(cls, name, renamed(**_OLD_NAMES)(made))

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        """Does what nn.Module's does. Raises Error for arguments that forward does not take.

        The way without hooks is written out as nn.Module has it: a call of that method would add its frame
        to the host time of every layer. forward itself, called by name, gives Python's own TypeError, which
        comes before any line of ours.
        """
        if (
            self._backward_hooks or self._backward_pre_hooks or self._forward_hooks or self._forward_pre_hooks
            or _global_backward_pre_hooks or _global_backward_hooks
            or _global_forward_hooks or _global_forward_pre_hooks
        ):  # fmt: skip
            call = super()._call_impl
        else:
            call = self._slow_forward if torch._C._get_tracing_state() else self.forward
        try:
            return call(*args, **kwargs)
        except TypeError as error:
            require_fitting(type(self).__name__, self.forward, args, kwargs, error)
            raise

    def __setattr__(self, name: str, value: Any) -> None:
        """Does what nn.Module's does. Raises Error for an option that the layer does not have, and for a
        value that it cannot have."""
        if name in _REMEDIES:
            self._require_option(name, value)
        super().__setattr__(name, value)

    def _require_option(self, name: str, value: Any) -> None:
        cls = type(self)
        fixed = name == "block" and vars(self).get("block", value) != value
        if fixed or not _takes(cls, name):  # type: ignore[arg-type]
            expected, got = "an option of this layer", f"{name} = {_words(value)}"
            raise Error(f"{cls.__name__}.{name}", expected, got, _REMEDIES[name])
        if name == "activation" and (
            unknown := ops.unknown_activation(cls.__name__, value, _REMEDIES["activation"])
        ):
            raise unknown
        if name == "multiply" and value not in (takes := getattr(cls, "multiplies", (value,))):
            expected = f"one of {', '.join(map(repr, takes))}"
            raise Error(f"{cls.__name__}.{name}", expected, _words(value), "set one of them")
        if name in ("strict", "fuse"):
            require_bool(cls.__name__, name, value)


def takes(layer: nn.Module, name: str) -> bool:
    """Returns whether a layer has an option itself, and not by what it holds."""
    kind: Any = type(layer)  # mypy takes Module's __hash__ for one of another signature
    return hasattr(layer, name) and (not isinstance(layer, WithOptions) or _takes(kind, name))


@cache
def _takes(cls: type, name: str) -> bool:
    """Returns whether a class declares an attribute of that name, by an annotation, a value or a property
    that can be set."""
    if not is_ours(cls):
        return True
    for base in cls.__mro__:
        if name in vars(base):
            attribute = vars(base)[name]
            if isinstance(attribute, Answer):
                return False
            return not isinstance(attribute, property) or attribute.fset is not None
        if base is not nn.Module and name in inspect.get_annotations(base):
            return True
    return False


def _words(value: Any) -> str:
    return repr(value) if isinstance(value, (bool, int, float, str, type(None))) else type(value).__name__
