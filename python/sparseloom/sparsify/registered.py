"""register: adds a sparsifier's conversion between formats; DENSE: the formats of dense tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from .._arguments import named_arguments
from ..ops import registry
from .elements import KeepAll

Function = TypeVar("Function", bound=Callable[..., Any])

#: The Format that leaves a result or a gradient unchanged: inline sparsifier, temporary format, external
#: sparsifier, final format.
DENSE = (KeepAll(), "dense", KeepAll(), "dense")


@named_arguments
def register(sparsifier: type, *, source: type, target: type) -> Callable[[Function], Function]:
    """Makes ``function(sparsifier, context)`` the way of a sparsifier's class from layout ``source`` to
    layout ``target``; a decorator, which returns the function.

    ``context`` is a ``Context`` whose ``weight`` is the tensor as a dense matrix, [product of the others,
    last size] of a result and [first size, product of the others] of a weight, with ``gradient``,
    ``input_statistics`` and ``step`` where they are known. The function returns an instance of ``target``,
    which says what stays, or a SparseTensor in it, which brings values of its own. What stays has the
    derivative one.

    It lies in the registry in use (``ops.Registry``). Without one an ElementSparsifier's mask chooses, and
    ``target.from_mask`` stores. Raises Error for anything but classes, and where another function is
    registered for the same three.
    """
    return registry.current().register_sparsifier(sparsifier, source, target)
