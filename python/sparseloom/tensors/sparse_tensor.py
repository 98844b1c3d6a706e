"""SparseTensor: a result or a gradient whose elements lie in a layout of sparseloom.layouts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from .. import layouts
from .._arguments import named_arguments
from ..errors import Error
from ..layouts import Dense, Layout
from ..ops.registry import Registry, current
from ..ops.transforms import transformed
from ..ops.verbs import Map, mapped
from .base import OP, as_matrix, checked, fits, require_registry, same_index


class SparseTensor(Tensor):
    """A tensor of any shape whose layout says which elements are stored: ``stored`` has the values, ``index``
    the layout. To torch it looks strided and dense. Operators without an implementation for it compute
    densely, and warn once (see ``sparseloom.ops.register``).

    Args:
        index: a Layout of [rows, cols], the tensor as a matrix.
        stored: the values, in the shape that the layout's ``pack`` gives them.
        shape: [rows, cols], or any other shape but that of another matrix with as many elements.
        registry: where its operators are looked up; None stands for the one in use at each call.

    Nothing is copied. The gradient of the SparseTensor reaches ``stored`` if it is made by ``of``. It
    supports torch.compile, which sees its plain tensors, pickling, and moves between devices and dtypes.
    Operators that write into it keep its format: stored values change, all other elements stay zero.
    ``copy_``, and with it ``load_state_dict``, raises Error for a SparseTensor with elements at other places;
    ``load_state_dict(assign=True)`` takes the index, too. torch.func hides subclasses from its functions: the
    gradient by ``torch.func.grad`` is dense, and ``from_dense(gradient, weight.layout_index)`` packs it.
    Raises Error if shape and layout do not fit, and for arguments of other types.
    """

    stored: Tensor
    registry: Registry | None
    keeps_format = False  # whether a hook packs its gradient
    _template: Layout
    _assign: Callable[[Any], None]
    _names: tuple[str, ...]

    @staticmethod
    def __new__(
        cls,
        index: Layout,
        stored: Tensor,
        shape: Sequence[int] | None = None,
        registry: Registry | None = None,
    ) -> SparseTensor:
        shape = checked(index, stored, shape, registry)
        return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, shape, dtype=stored.dtype, device=stored.device, requires_grad=False
        )

    def __init__(
        self,
        index: Layout,
        stored: Tensor,
        shape: Sequence[int] | None = None,
        registry: Registry | None = None,
    ) -> None:
        self.stored, self.registry = stored, registry
        self._template = index.with_tensors({}) if not index.tensors() else _without_tensors(index)
        self._names = tuple(index.tensors())
        for name, part in index.tensors().items():
            setattr(self, _PART + name, part)

    @classmethod
    def of(
        cls,
        index: Layout,
        stored: Tensor,
        shape: Sequence[int] | None = None,
        registry: Registry | None = None,
    ) -> SparseTensor:
        """Returns the SparseTensor of these values; its gradient reaches them. Raises Error if the layout,
        the values and the shape do not belong together."""
        _require_outside("the stored values")
        shape = checked(index, stored, shape, registry)
        index.require_consistent(OP, stored.detach())
        return mapped(stored, Made(index, shape, registry))

    @classmethod
    @named_arguments
    def from_dense(
        cls,
        dense: Tensor,
        layout: str | type[Layout] | Layout,
        registry: Registry | None = None,
        **options: Any,
    ) -> SparseTensor:
        """Returns the SparseTensor of the elements of ``dense`` that the layout stores, as a matrix [product
        of the others, last size]. If ``layout`` is a name or a class, the options are those of its
        ``from_dense``. The gradient reaches ``dense`` at the stored elements."""
        if not isinstance(dense, Tensor) or dense.layout != torch.strided:
            got = str(dense.layout) if isinstance(dense, Tensor) else type(dense).__name__
            raise Error(OP, "a dense tensor", got, "the layouts' from_torch takes torch's sparse tensors")
        _require_outside("a SparseTensor made of it")
        matrix = as_matrix(dense)
        require_registry(OP, registry)
        index = layouts.chosen(OP, layout, matrix.detach(), options)
        if not fits(index, dense.shape):
            got = f"a layout of [{index.rows}, {index.cols}]"
            raise Error(OP, f"a matrix of the elements of {list(dense.shape)}", got, "pass another index")
        kept = layouts.masked(index, matrix, options)
        return mapped(dense if kept is matrix else kept.view(dense.shape), FromDense(index, registry))

    @property
    def layout_index(self) -> Layout:
        """The layout with its index."""
        return self._template.with_tensors({name: getattr(self, _PART + name) for name in self._names})

    @property
    def format(self) -> type[Layout]:
        """The layout's class."""
        return type(self._template)

    def to_dense(self, *arguments: Any, **named: Any) -> Tensor:
        """Returns the dense tensor; its gradient comes back in this format."""
        _require_outside("to_dense()")
        dense: Tensor = mapped(self, Densified(self))
        return dense.to_dense(*arguments, **named) if arguments or named else dense

    @property
    def data(self) -> Tensor:
        """The tensor without its autograd history. Assigning another tensor changes the stored values: those
        of a SparseTensor with an equal index are taken without a copy, those of a dense tensor are copied at
        the stored elements. Raises Error for another shape, dtype or device, and where ``copy_`` does."""
        detached: Tensor = Tensor.data.__get__(self)  # type: ignore[attr-defined]
        return detached

    @data.setter
    def data(self, value: Tensor) -> None:
        self._assign(value)  # torch's own setter would change only the wrapper

    def share_memory_(self) -> SparseTensor:
        """Moves the stored values and the index to shared memory; returns self."""
        for tensor in self._tensors():
            tensor.share_memory_()
        return self

    def is_shared(self) -> bool:
        """Returns whether the stored values and the index are in shared memory."""
        return all(tensor.is_shared() for tensor in self._tensors())

    def __dlpack__(self, *arguments: Any, **named: Any) -> Any:
        """Raises Error: the stored values are not a dense tensor."""
        raise Error(OP, "a dense tensor, for DLPack", "a SparseTensor", "call to_dense(), or pass stored")

    def _tensors(self) -> list[Tensor]:
        return [self.stored, *(getattr(self, _PART + name) for name in self._names)]

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["stored", *(_PART + name for name in self._names)], _Meta(self._template, self.registry)

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], meta: _Meta, size: Any, stride: Any) -> SparseTensor:
        parts = {name.removeprefix(_PART): tensor for name, tensor in inner.items() if name != "stored"}
        return SparseTensor(meta.template.with_tensors(parts), inner["stored"], size, meta.registry)

    def _stable_hash_for_caching(self) -> str:
        """Returns the key that distinguishes graphs in torch's on-disk cache; implementations are part of the
        graph already."""
        return repr((self._template.describe(), self._names, tuple(self.shape)))

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        description = f"{list(self.shape)}, {self.format.name}, stored={self.stored.numel()}, {self.dtype}"
        description += f", {self.device}"
        grad = ", requires_grad=True" if self.requires_grad else ""
        return f"SparseTensor({description}{grad})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        index, *state = self._state()
        return _rebuilt, (_said(index), *state)

    def _state(self) -> tuple[Layout, Tensor, tuple[int, ...], bool, bool]:
        parameter, trains = bool(getattr(self, "_is_param", False)), self.requires_grad and self.is_leaf
        return self.layout_index, self.stored.detach(), tuple(self.shape), trains, parameter

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseTensor:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            remedy = "detach it first"
            raise Error(
                "deepcopy", "a SparseTensor without a graph behind it", "the result of operators", remedy
            )
        index, stored, shape, trains, parameter = self._state()
        copied = copy.deepcopy(index, memo)
        result = memo[id(self)] = _made(copied, stored.clone(), shape, trains, parameter)
        result.registry = self.registry
        return result


def bind(
    function: Callable[..., Any], operator: Callable[..., Any], assign: Callable[[SparseTensor, Any], None]
) -> None:
    """Sets the functions of torch's two hooks, called with (operator, arguments, named arguments), and of an
    assignment to ``data``. They depend on this class, so dispatch.py passes them in once."""

    def torch_function(
        cls: Any, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return function(func, args, kwargs or {})

    def torch_dispatch(
        cls: Any, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return operator(func, args, kwargs or {})

    SparseTensor.__torch_function__ = classmethod(torch_function)  # type: ignore[assignment]
    SparseTensor.__torch_dispatch__ = classmethod(torch_dispatch)  # type: ignore[assignment]
    SparseTensor._assign = assign  # type: ignore[assignment]


def refuse_script() -> None:
    """Raises Error; the ``__prepare_scriptable__`` of modules that hold a SparseTensor."""
    remedy = "use torch.export.export, or a SparseLinear"
    raise Error("torch.jit.script", "a module of dense tensors", "a SparseTensor in it", remedy)


def _watch_script(module: nn.Module, name: str, parameter: Any) -> None:
    """Lets torch.jit.script refuse a module while it holds a SparseTensor: torch asks the tensor nothing, and
    torch.jit.save of what it makes ends the process."""
    if is_sparse(parameter):
        module.__prepare_scriptable__ = refuse_script  # type: ignore[assignment]
    elif vars(module).get(_SCRIPT) is refuse_script and not any(
        is_sparse(held) for other, held in module._parameters.items() if other != name
    ):
        delattr(module, _SCRIPT)


_SCRIPT = "__prepare_scriptable__"
register_module_parameter_registration_hook(_watch_script)


def is_sparse(value: Any) -> bool:
    return isinstance(value, SparseTensor)


def format_of(tensor: Tensor) -> type[Layout]:
    """Returns the layout class of a tensor; Dense for a plain tensor."""
    return tensor.format if is_sparse(tensor) else Dense  # type: ignore[attr-defined]


def registry_of(tensors: Sequence[Tensor]) -> Registry:
    """Returns the registry of the first tensor that has one, else the one in use."""
    for tensor in tensors:
        if is_sparse(tensor) and tensor.registry is not None:  # type: ignore[attr-defined]
            return tensor.registry  # type: ignore[attr-defined]
    return current()


def densified(tensor: SparseTensor) -> Tensor:
    """Returns the elements as a plain tensor, without a gradient."""
    return tensor.layout_index.to_dense(tensor.stored).reshape(tensor.shape)


class Made(Map):
    """Maps a layout's values to the SparseTensor."""

    def __init__(self, index: Layout, shape: Sequence[int], registry: Registry | None) -> None:
        self.index, self.shape, self.registry = index, shape, registry

    def there(self, stored: Tensor) -> SparseTensor:
        return SparseTensor(self.index, stored, self.shape, self.registry)

    def back(self, gradient: Tensor) -> Tensor:
        return packed(gradient, self.index)


class FromDense(Map):
    """Maps a dense tensor to the SparseTensor of the elements that a layout stores."""

    def __init__(self, index: Layout, registry: Registry | None) -> None:
        self.index, self.registry = index, registry

    def there(self, dense: Tensor) -> SparseTensor:
        stored = self.index.pack(dense.detach().reshape(self.index.rows, self.index.cols))
        stored = stored.clone() if stored.data_ptr() == dense.data_ptr() else stored
        return SparseTensor(self.index, stored, dense.shape, self.registry)

    def back(self, gradient: Tensor) -> Tensor:
        return self.index.to_dense(packed(gradient, self.index)).reshape(gradient.shape)


class Densified(Map):
    """Maps a SparseTensor to the dense tensor; the gradient has the SparseTensor's format."""

    def __init__(self, tensor: SparseTensor) -> None:
        self.index, self.shape, self.registry = tensor.layout_index, tensor.shape, tensor.registry

    def there(self, tensor: SparseTensor) -> Tensor:  # type: ignore[override]
        dense = densified(tensor)
        return dense.clone() if dense is tensor.stored else dense

    def back(self, gradient: Tensor) -> SparseTensor:
        return SparseTensor(self.index, packed(gradient, self.index), self.shape, self.registry)


def packed(tensor: Tensor, index: Layout) -> Tensor:
    """Returns a tensor's values at the stored elements of a layout."""
    if isinstance(tensor, SparseTensor):
        if same_index(tensor.layout_index, index):
            return tensor.stored
        tensor = densified(tensor)
    matrix = tensor.reshape(index.rows, index.cols)
    return index.pack(matrix.float()) != 0 if matrix.dtype == torch.bool else index.pack(matrix)


class _Meta:
    """The parts of a SparseTensor that are not tensors. SparseTensors with equal ones share a graph."""

    def __init__(self, template: Layout, registry: Registry | None) -> None:
        self.template, self.registry = template, registry

    def _key(self) -> Any:
        return type(self.template), repr(self.template.describe()), self.registry

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Meta) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


#: The prefix of the index's tensors as attributes: without it, a name might collide with a Tensor method.
_PART = "part_"


def _without_tensors(index: Layout) -> Layout:
    return index.with_tensors(dict.fromkeys(index.tensors()))  # type: ignore[arg-type]


def _said(index: Layout) -> Any:
    """Returns a layout as plain data and tensors, which torch.load reads with weights_only=True. A layout
    that is not registered is returned itself, because its name would find no class."""
    if not layouts.is_registered(type(index)):
        return index
    return index.name, index.rows, index.cols, {**index.options(), **index.tensors()}, index.strict


def _rebuilt(index: Any, stored: Any, shape: Any, trains: bool, parameter: bool) -> SparseTensor:
    """Returns the SparseTensor of a file. Raises Error if its parts do not belong together."""
    try:
        if not isinstance(index, Layout):
            name, rows, cols, fields, strict = index
            index = layouts.get(name)(rows, cols, **fields)
            index.strict = strict
        checked(index, stored, shape, None)
        if all(
            type(tensor) in (Tensor, torch.nn.Parameter) for tensor in (stored, *index.tensors().values())
        ):
            index.require_consistent(OP, stored)
    except Error:
        raise
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        got, remedy = str(error).splitlines()[0], "save the tensor again, or take an undamaged copy"
        raise Error(OP, "a layout's name, rows, columns and fields", got, remedy) from error
    return _made(index, stored, shape, trains, parameter)


def _made(
    index: Layout, stored: Tensor, shape: tuple[int, ...], trains: bool, parameter: bool
) -> SparseTensor:
    tensor = SparseTensor(index, stored, shape).requires_grad_(trains)
    return torch.nn.Parameter(tensor, trains) if parameter else tensor  # type: ignore[return-value]


def _require_outside(what: str) -> None:
    """Raises Error under torch.func and forward mode, which hide subclasses from their functions."""
    if not torch.compiler.is_compiling() and transformed():
        remedy = "call it outside, and pass the result in"
        raise Error(OP, "a call outside of torch.func and forward mode", what, remedy)


# Files of torch.save refer to it; torch.load reads them with weights_only=True.
torch.serialization.add_safe_globals([_rebuilt])
