"""Layout: the base class of layouts, with dense products as defaults."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from .._arguments import named_arguments
from .._checks import whole
from ..errors import Error
from ..ops.devices import require_one_device
from ..ops.verbs import Weight

Self = TypeVar("Self", bound="Layout")

#: The remedy if an index and values do not belong together.
REPACK = "pack the weight again with from_dense, and take index and values from one file"


class Layout(Weight):
    """The index of one weight W [rows, cols] = [out features, in features], without its values: which
    elements are stored, and where.

    Your class annotates its fields, which become keyword arguments: each Tensor field is a part of the index,
    a buffer of the module and an entry of its state_dict; other fields are options (numbers, strings, bools),
    which the module prints and files describe. Three methods are required: ``from_dense``, ``pack`` and
    ``to_dense``. The default products are dense products made of these, slow but correct; override
    ``linear``, ``dx``, ``dw`` and ``plan`` with kernels of your own.

    Every value belongs to one element of W, each to another one, or is padding, which is zero. Instances are
    immutable.

    Raises Error when a field is missing or unknown.
    """

    #: The registered name: by default the class's name in snake_case.
    name: ClassVar[str] = ""

    #: The names of the tensors that ``derived`` returns.
    derived_names: ClassVar[tuple[str, ...]] = ()

    #: Whether ``plan`` names kernels and predicts their time: ``report`` then times a layer alone.
    planned: ClassVar[bool] = False

    #: The supported products; without "dw" the values do not train.
    directions: ClassVar[tuple[str, ...]] = ("forward", "dx", "dw")

    #: Whether it stands for a tensor that is not sparse: implementations for Layout do not apply to it.
    plain: ClassVar[bool] = False

    #: Whether ``from_mask`` stores exactly the elements in the mask.
    exact: ClassVar[bool] = False

    #: The options that follow from the index: another pattern of the same weight has others.
    counts: ClassVar[tuple[str, ...]] = ()

    #: Whether ``linear`` and ``plan`` also take ``activation`` and ``residual``, which the kernels fuse
    #: (``plan`` takes whether there is a residual).
    fuses: ClassVar[bool] = False

    #: Whether dense products are forbidden, set by a layer with ``strict = True`` on the layout that it
    #: returns: a product without a kernel of its own raises Error.
    strict: bool = False

    rows: int
    cols: int
    _names: tuple[str, ...]

    def __init__(self, rows: int, cols: int, **fields: Any) -> None:
        declared = self.fields()
        if fields.keys() != declared:
            raise Error(
                self.name or type(self).__name__,
                f"the fields {', '.join(sorted(declared)) or 'of a class without any'}",
                ", ".join(sorted(fields)) or "none",
                "annotate every field in the class, and pass each by name",
            )
        op = self.name or type(self).__name__
        for name in self._tensor_fields():
            if not isinstance(fields[name], Tensor):
                got, remedy = type(fields[name]).__name__, "convert it with torch.as_tensor"
                raise Error(op, f"{name} to be a tensor", got, remedy)
        self.rows, self.cols = whole(op, "rows", rows), whole(op, "cols", cols)
        self._fields = fields
        self._derived: dict[str, Tensor] = {}
        for name, value in fields.items():
            setattr(self, name, value)

    @classmethod
    def fields(cls) -> set[str]:
        """Returns the names of the fields that the class and those between it and Layout annotate."""
        return set(cls._annotated())

    @classmethod
    def _annotated(cls) -> dict[str, Any]:
        between = cls.__mro__[: cls.__mro__.index(Layout)]
        return {
            name: kind
            for base in reversed(between)
            for name, kind in inspect.get_annotations(base).items()
            if "ClassVar" not in str(kind)
        }

    @classmethod
    def _tensor_fields(cls) -> list[str]:
        return [name for name, kind in cls._annotated().items() if kind is Tensor or kind == "Tensor"]

    @classmethod
    @named_arguments
    def from_dense(cls: type[Self], weight: Tensor, **options: Any) -> Self:
        """Chooses what to store of ``weight`` [rows, cols]; the options are the class's own."""
        raise NotImplementedError

    @classmethod
    @named_arguments
    def from_mask(cls: type[Self], weight: Tensor, mask: Tensor) -> Self:
        """Returns the layout that stores the elements of ``weight`` in ``mask``, bool of its shape, as chosen
        by a sparsifier of single elements. By default this is ``from_dense`` of the weight with zeros
        elsewhere, for a layout that needs no options. Raises Error if it cannot store all of them."""
        masked = weight.masked_fill(~mask, 0)
        layout = cls.from_dense(masked)
        if not torch.equal(layout.to_dense(layout.pack(masked)), masked):
            got = f"{int(mask.count_nonzero())} of [{layout.rows}, {layout.cols}]"
            raise Error(cls.name, "elements that it can store", got, "take another layout for this mask")
        return layout

    def pack(self, dense: Tensor) -> Tensor:
        """Returns the values: the stored elements of ``dense`` [rows, cols], zero as padding, as one tensor
        of any shape that the index decides."""
        raise NotImplementedError

    def to_dense(self, values: Tensor) -> Tensor:
        """Returns W [rows, cols] in the dtype of ``values``: the stored elements in their places, and zero
        elsewhere."""
        raise NotImplementedError

    @property
    def padded(self) -> bool:
        """Whether some values may be padding. True unless a class overrides it: after a write into a
        SparseTensor, ``pack`` then tells which values are padding, and they are set to zero again."""
        return True

    def tensors(self) -> dict[str, Tensor]:
        """Returns the parts of the index by name."""
        return {name: value for name, value in self._fields.items() if isinstance(value, Tensor)}

    def options(self) -> dict[str, Any]:
        """Returns the other fields by name."""
        return {name: value for name, value in self._fields.items() if not isinstance(value, Tensor)}

    def describe(self) -> dict[str, Any]:
        """Returns the metadata that files have for the weight: the layout's name, the shape and the
        options."""
        shape = {"out_features": self.rows, "in_features": self.cols}
        return {"layout": self.name, **shape, **self.options()}

    def derived(self) -> dict[str, Tensor]:
        """Returns further tensors that products need, made from the index: a layer keeps them as buffers that
        are not saved, and recomputes them whenever it is made, moved or loaded. Names of ``derived_names``
        that are left out are not needed on this device."""
        return {}

    def with_tensors(
        self: Self, tensors: Mapping[str, Tensor], derived: Mapping[str, Tensor] | None = None
    ) -> Self:
        """Returns the same layout with other index tensors: at other addresses, on another device or of
        another pattern; ``derived``: the tensors derived from them, if they exist already."""
        layout = object.__new__(type(self))  # copy.copy takes several times as long, in every call of a layer
        # Up to torch 2.11 dynamo traces no update() of a __dict__. A layout without names was made while
        # something is compiled, but is not traced itself.
        if torch.compiler.is_compiling() and hasattr(self, "_names"):
            for name in self._names:
                setattr(layout, name, getattr(self, name))
            for name, tensor in tensors.items():
                setattr(layout, name, tensor)
        else:
            layout.__dict__.update(self.__dict__)
            layout.__dict__.update(tensors)
            if "_names" not in layout.__dict__:  # a layer's template was made here, before anything compiles
                layout._names = tuple(layout.__dict__)
        layout._fields = {**self._fields, **tensors}
        layout._derived = dict(derived or {})
        return layout

    def of_entries(self: Self, tensors: Mapping[str, Tensor]) -> Self:
        """Returns the layout with the index of another pattern, as a state_dict has it, before it is checked.
        A layout that has ``counts`` overrides it and derives them. May raise Error."""
        return self.with_tensors(tensors)

    def require_consistent(self, op: str, values: Tensor) -> None:
        """Raises Error unless ``pack`` undoes ``to_dense`` on ``values``, and every value that is not zero
        has an element of W of its own. With a duplicate or out-of-bounds index, some values do not come back.
        Makes W twice; does nothing on meta. A layout that can check its index alone overrides it."""
        if any(tensor.is_meta for tensor in (values, *self.tensors().values())):
            return
        try:
            with torch.no_grad():
                # The numbers must be distinct, and most dtypes hold too few distinct ones: we use fp64.
                numbers = torch.arange(1.0, values.numel() + 1, dtype=torch.float64, device=values.device)
                dense = self.to_dense(numbers.view(values.shape))
                back = self.pack(dense)
        except (RuntimeError, IndexError) as error:
            got = str(error).splitlines()[0]
            raise Error(op, f"values and an index of layout {self.name}", got, REPACK) from error
        shape = (self.rows, self.cols)
        if tuple(dense.shape) != shape or back.shape != values.shape:
            got = f"W {list(dense.shape)} and values {list(back.shape)} back from it"
            raise Error(op, f"W {list(shape)} and values {list(values.shape)}", got, REPACK)
        is_lost = (back.flatten() != numbers) & (values.flatten() != 0)
        if bool(is_lost.any()):
            got = f"{int(is_lost.sum())} values without one, the first at {int(is_lost.nonzero()[0])}"
            raise Error(op, "a place of its own in W for every value that is not zero", got, REPACK)

    def linear(self, x: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        """Returns y [m, rows] = x [m, cols] W^T + bias [rows], all of one dtype. Raises Error unless x
        and bias lie on one device."""
        if bias is not None and bias.device != x.device:
            require_one_device("linear", {"x": x, "bias": bias})
        self._require_dense_allowed("forward")
        return functional.linear(x, self.to_dense(values), bias)

    def linear_transformed(self, x: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        """Does what ``linear`` does, under torch.func, vmap and forward mode: with the dense weight, because
        torch has every derivative of dense operators."""
        self._require_dense_allowed("forward under torch.func")
        return functional.linear(x, self.to_dense(values), bias)

    def dx(self, dy: Tensor, values: Tensor) -> Tensor:
        """Returns dX [m, cols] = dY [m, rows] W."""
        self._require_dense_allowed("dx")
        return dy @ self.to_dense(values)

    def dw(self, dy: Tensor, x: Tensor) -> Tensor:
        """Returns dW = dY^T X at the stored elements, in the shape of the values; zero as padding."""
        self._require_dense_allowed("dw")
        return self.pack(dy.t() @ x)

    def plan(self, m: int, direction: str, dtype: torch.dtype, bias: bool) -> dict[str, Any]:
        """Returns the plan of a product of ``m`` tokens as a dict with the keys of ``ops.plan``.
        ``predicted_us`` is None without a prediction. ``direction`` is forward, dx or dw."""
        if getattr(type(self), _METHODS[direction]) is getattr(Layout, _METHODS[direction]):
            return self.dense_plan(m, direction, dtype, bias)
        return self._told(self.name, f"the layout's own {_METHODS[direction]}", m, direction, dtype, bias)

    def dense_plan(self, m: int, direction: str, dtype: torch.dtype, bias: bool) -> dict[str, Any]:
        """Returns the plan of a product by this class's method, for subclasses that call it for some
        operands."""
        self._require_dense_allowed(direction)
        reason = "a dense product over to_dense of the values"
        return self._told("dense", reason, m, direction, dtype, bias)

    def _require_dense_allowed(self, direction: str) -> None:
        """Raises Error if dense products are forbidden. Call it before a dense product of ``direction``."""
        if self.strict:
            expected = f"a kernel of layout {self.name} for {direction} (strict)"
            remedy = "set strict = False on the layer, or choose a layout with kernels: csr, or blocks"
            raise Error("plan", expected, "a dense product over to_dense alone", remedy)

    def _told(
        self, kernel: str, reason: str, m: int, direction: str, dtype: torch.dtype, bias: bool
    ) -> dict[str, Any]:
        problem = f"{direction} {str(dtype).removeprefix('torch.')} m={m} W=[{self.rows}, {self.cols}]"
        text = f"plan: {problem} layout={self.name}{' bias' if bias else ''}\n  runs {kernel}: {reason}\n"
        candidate = {"kernel": kernel, "refusal": "", "predicted_us": None}
        return {**candidate, "workspace_bytes": 0, "candidates": [candidate], "text": text}


#: Direction of a product, as plans name it -> the method that computes it.
_METHODS = {"forward": "linear", "dx": "dx", "dw": "dw"}
