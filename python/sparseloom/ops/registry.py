"""Registry: implementations of operators and of sparsifiers, found by the formats of their tensors.

A registry knows formats and sparsifiers only as classes; the packages above define them.
"""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import torch

from .._arguments import named_arguments, named_init
from ..errors import Error

Class = TypeVar("Class", bound=type)
Function = TypeVar("Function", bound=Callable[..., Any])
Output = tuple[type, type]


class DenseFallback(UserWarning):
    """No implementation of an operator supports the formats of its tensors: they became dense for it."""


class Implementation(NamedTuple):
    """A class with static ``forward`` and ``backward``, and the formats of its inputs and outputs."""

    inputs: tuple[type, ...]
    outputs: tuple[Output, ...]
    operator: Any
    matrices: bool  # whether it is only for matrices, as mm is for matmul
    run: type[torch.autograd.Function]
    sparsifies: bool  # whether it is given the outputs' sparsifiers, after all other arguments
    origin: tuple[str, str]

    def takes(
        self, formats: Sequence[type], outputs: Sequence[Output] | None, tensors: Sequence[torch.Tensor]
    ) -> bool:
        """Returns whether it supports these formats; ``outputs`` None asks for one without a sparsifier."""
        if self.matrices and any(tensor.dim() != 2 for tensor in tensors):
            return False
        if len(formats) != len(self.inputs) or not all(map(_stands_for, formats, self.inputs)):
            return False
        if outputs is None:
            return not self.sparsifies
        return len(outputs) == len(self.outputs) and all(
            issubclass(given[0], expected[0]) and expected[1] is given[1]
            for given, expected in zip(outputs, self.outputs, strict=True)
        )


@named_init
class Registry:
    """Implementations of operators and sparsifiers. Look-ups that fail here continue in the default registry,
    which ``ops.register`` and ``sparsify.register`` fill, and then in the library's own.

    Args:
        strict: raises Error where an implementation is missing, instead of computing densely.

    It is in use within ``with registry.active():``, only in that thread or task, and for the tensors,
    operators and models that were made with it.
    """

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self._operators: dict[Any, tuple[Implementation, ...]] = {}
        self._sparsifiers: dict[tuple[type, type, type], Callable[..., Any]] = {}
        self._warned: set[tuple[str, ...]] = set()
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: Any) -> Registry:
        return self  # a copy of a model uses the same registry

    def __reduce__(self) -> Any:
        return _default, ()  # the program that reads a file has registries of its own

    def register(
        self, operator: Callable[..., Any], inputs: Sequence[type], outputs: Sequence[Output]
    ) -> Callable[[Class], Class]:
        """Makes a class the implementation of a torch function: see ``ops.register``."""
        remedy = "pass inputs=(Csr, Dense), outputs=[(KeepAll, Dense)]"
        for argument, formats in (("inputs", inputs), ("outputs", outputs)):
            if not isinstance(formats, (tuple, list)):
                raise Error("ops.register", f"a tuple or list as {argument}", repr(formats), remedy)
        inputs, pairs = tuple(inputs), tuple(outputs)
        if not callable(operator) or not all(isinstance(cls, type) for cls in inputs):
            got = repr((operator, inputs))
            raise Error("ops.register", "a torch function and layouts as classes", got, remedy)
        if not all(_is_pair(pair) for pair in pairs):
            raise Error("ops.register", "pairs of classes (sparsifier, layout)", repr(outputs), remedy)
        output_pairs = tuple((sparsifier, layout) for sparsifier, layout in pairs)

        def add(cls: Class) -> Class:
            if not callable(getattr(cls, "forward", None)):
                raise Error(
                    "ops.register", "a class with forward and backward", repr(cls), "define static forward"
                )
            origin = cls.__module__, cls.__qualname__
            sparsifies = not all(getattr(pair[0], "keeps_all", False) for pair in output_pairs)
            run = _function(cls, operator, sparsifies)
            with self._lock:
                entries = {}
                for name, matrices in _names(operator):
                    new = Implementation(inputs, output_pairs, operator, matrices, run, sparsifies, origin)
                    existing = self._operators.get(name, ())
                    twins = [old for old in existing if old[:4] == new[:4] and old.origin != origin]
                    if twins:
                        expected = f"no other implementation of {name_of(operator)}"
                        got = f"{'.'.join(twins[0].origin)} for the same formats"
                        remedy = "register it in a sparseloom.ops.Registry of your own"
                        raise Error("ops.register", expected, got, remedy)
                    entries[name] = new, *(old for old in existing if old[:4] != new[:4])
                self._operators.update(entries)
            return cls

        return add

    def register_sparsifier(
        self, sparsifier: type, source: type, target: type
    ) -> Callable[[Function], Function]:
        """Registers a sparsifier's conversion from one format to another: see ``sparsify.register``."""
        key = sparsifier, source, target
        if not all(isinstance(each, type) for each in key):
            raise Error(
                "sparsify.register",
                "a sparsifier's class and two layouts",
                repr(key),
                "pass classes, not instances",
            )

        def add(function: Function) -> Function:
            if not callable(function):
                remedy = "decorate a function of (sparsifier, context)"
                raise Error("sparsify.register", "a function", repr(function), remedy)
            with self._lock:
                old = self._sparsifiers.get(key)
                if old is not None and _origin(old) != _origin(function):
                    got = f"{'.'.join(_origin(old))} for {sparsifier.__name__}"
                    remedy = "register it in a sparseloom.ops.Registry of your own"
                    raise Error("sparsify.register", "no other implementation", got, remedy)
                self._sparsifiers = {**self._sparsifiers, key: function}
            return function

        return add

    def operator(
        self,
        operator: Any,
        formats: Sequence[type],
        outputs: Sequence[Output] | None,
        tensors: Sequence[torch.Tensor],
    ) -> Implementation | None:
        """Returns the implementation for these formats, its own before the default registry's."""
        for registry in (self, DEFAULT, OURS):
            for each in registry._operators.get(operator, ()):
                if each.takes(formats, outputs, tensors):
                    return each
        return None

    def sparsifier(self, sparsifier: type, source: type, target: type) -> Callable[..., Any] | None:
        """Returns the function that was registered for a sparsifier, or for a class that it derives from."""
        for registry in (self, DEFAULT, OURS):
            exact = registry._sparsifiers.get((sparsifier, source, target))
            if exact is not None:
                return exact
            for (cls, one, other), found in registry._sparsifiers.items():
                if one is source and other is target and issubclass(sparsifier, cls):
                    return found
        return None

    @contextmanager
    def active(self) -> Iterator[Registry]:
        """Makes it the registry in use within the body."""
        token = _CURRENT.set(self)
        try:
            yield self
        finally:
            _CURRENT.reset(token)

    def fall_back(self, operator: str, formats: Sequence[str]) -> None:
        """Warns once that an operator computes densely. Raises Error if that is forbidden."""
        listed = ", ".join(formats)
        if self.strict or _STRICT.get():
            remedy = "register one with sparseloom.ops.register, or leave strict out"
            raise Error(operator, f"an implementation for ({listed})", "none", remedy)
        key = operator, *formats
        with self._lock:
            if key in self._warned:
                return
            self._warned.add(key)
        text = f"{operator} has no implementation for ({listed}): the tensors become dense for it"
        warnings.warn(text, DenseFallback, stacklevel=6)  # where the operator is written


def _default() -> Registry:
    return DEFAULT


def current() -> Registry:
    """Returns the registry in use: that of the innermost ``active()``, else the default one."""
    if not _scoped():
        return DEFAULT
    if torch.compiler.is_compiling():
        got = "a plain tensor within registry.active()"
        raise Error("torch.compile", "a registry that the code names", got, "pass registry= where it is made")
    return _CURRENT.get()  # type: ignore[return-value]


def _scoped() -> bool:
    return _CURRENT.get() is not None


_scoped._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as in ops/operators.py


@contextmanager
@named_arguments
def strict() -> Iterator[None]:
    """Within the body an operator without an implementation for its formats raises Error."""
    token = _STRICT.set(True)
    try:
        yield
    finally:
        _STRICT.reset(token)


def name_of(operator: Any) -> str:
    """Returns an operator's name for messages."""
    return str(getattr(operator, "__name__", operator))


DEFAULT = Registry()
#: The library's own implementations. They are looked up last, whenever their modules are imported.
OURS = Registry()
_CURRENT: ContextVar[Registry | None] = ContextVar("sparseloom registry", default=None)
_STRICT: ContextVar[bool] = ContextVar("sparseloom strict", default=False)


def _is_pair(value: Any) -> bool:
    is_pair = isinstance(value, (tuple, list)) and len(value) == 2
    return is_pair and all(isinstance(part, type) for part in value)


def _stands_for(got: type, want: type) -> bool:
    """Returns whether a layout stands for another: itself, or what it derives from; but a dense tensor for no
    sparse one."""
    return got is want or (issubclass(got, want) and not getattr(got, "plain", False))


class _Forward(torch.autograd.Function):
    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise Error(
            type(ctx).__name__,
            "an implementation with a backward",
            "one without",
            "write the method backward",
        )


def _function(cls: Any, operator: Any, sparsifies: bool) -> type[torch.autograd.Function]:
    methods: dict[str, Any] = {"__doc__": f"{name_of(operator)} by {cls.__qualname__}"}
    if sparsifies:

        def forward(ctx: Any, *arguments: Any) -> Any:
            ctx.sparsifiers = arguments[-1]
            return cls.forward(ctx, *arguments[:-1])

        def backward(ctx: Any, *gradients: Any) -> Any:
            made = cls.backward(ctx, *gradients)
            return (*made, None) if isinstance(made, tuple) else (made, None)

        methods |= {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        return type(cls.__name__, (_Forward,), methods)
    if issubclass(cls, torch.autograd.Function):
        return cls
    return type(cls.__name__, (cls, _Forward), methods)


def _names(operator: Any) -> list[tuple[Any, bool]]:
    """Returns the names under which torch calls an operator: function, methods, and @ for matrices."""
    name = name_of(operator)
    found = [(operator, False)]
    if getattr(torch, name, None) is operator:
        methods = (getattr(torch.Tensor, each, None) for each in (name, f"__{name}__"))
        found += [(each, False) for each in methods if each is not None]
    if operator is torch.mm:
        found += [(each, True) for each in (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)]
    return found


@lru_cache
def parameters(operator: Any) -> tuple[tuple[str, Any], ...]:
    """Returns names and defaults of an operator's arguments; empty if they are unknown."""
    testing = torch.overrides.get_testing_overrides()  # has the signatures of what C++ defines
    try:
        signature = inspect.signature(testing.get(operator, operator))
    except (TypeError, ValueError):
        return ()
    return tuple((each.name, each.default) for each in signature.parameters.values())


parameters._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as in ops/operators.py


def _origin(function: Callable[..., Any]) -> tuple[str, str]:
    return function.__module__, function.__qualname__
