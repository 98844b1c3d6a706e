"""Layout: what a class must say of the weights that it stores, and the products that follow from that."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import Error
from ..ops.devices import require_one_device
from ..ops.verbs import Weight

Self = TypeVar("Self", bound="Layout")

#: What helps where an index and values do not belong together.
REPACK = "pack the weight again with from_dense, and take index and values from one file"


class Layout(Weight):
    """Which elements of a weight W [rows, cols] = [out features, in features] are stored, and where: the
    index of one weight, without its values.

    A class of yours annotates its fields, which become keyword arguments: each Tensor among them is a part of
    the index, a buffer of the module and an entry of its state_dict; the others are options (numbers,
    strings, bools), which the module prints and files describe. Three methods say the rest: ``from_dense``,
    ``pack`` and ``to_dense``. The products follow from those by dense ones, slow and right; ``linear``,
    ``dx``, ``dw`` and ``plan`` are there to be overridden with kernels of your own.

    Every element of the values lies at one place of W and none at the place of another, or is padding, which
    is zero. An instance is never changed.

    Raises Error when a field is missing or unknown.
    """

    #: What ``register`` knows the class by: the class's own name in snake_case unless it says another.
    name: ClassVar[str] = ""

    #: The names of what ``derived`` returns.
    derived_names: ClassVar[tuple[str, ...]] = ()

    #: Whether ``plan`` names kernels and predicts their time: ``report`` then times a layer alone.
    planned: ClassVar[bool] = False

    #: The products that there are; without "dw" the values do not train.
    directions: ClassVar[tuple[str, ...]] = ("forward", "dx", "dw")

    #: Whether it stands for a tensor that is not sparse: an implementation for Layout is none for it.
    plain: ClassVar[bool] = False

    #: Whether what ``from_mask`` makes stores what the mask names and nothing else.
    exact: ClassVar[bool] = False

    #: Whether ``linear`` and ``plan`` also take ``activation`` and ``residual``, which the kernels add
    #: before they store: of plan, whether there is one.
    fuses: ClassVar[bool] = False

    #: Whether dense products are forbidden, as a layer with ``strict = True`` says of the layout that it
    #: hands out: a product without a kernel of its own raises Error.
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
        self.rows, self.cols, self._fields = rows, cols, fields
        self._derived: dict[str, Tensor] = {}
        for name, value in fields.items():
            setattr(self, name, value)

    @classmethod
    def fields(cls) -> set[str]:
        """Returns the names of the fields that the class and those between it and Layout annotate."""
        between = cls.__mro__[: cls.__mro__.index(Layout)]
        return {
            name
            for each in between
            for name, kind in inspect.get_annotations(each).items()
            if "ClassVar" not in str(kind)
        }

    @classmethod
    def from_dense(cls: type[Self], weight: Tensor, **options: Any) -> Self:
        """Chooses what to store of ``weight`` [rows, cols]; the options are the class's own."""
        raise NotImplementedError

    @classmethod
    def from_mask(cls: type[Self], weight: Tensor, mask: Tensor) -> Self:
        """Returns the layout that stores the elements of ``weight`` that ``mask``, bool of its shape, names:
        what a sparsifier of single elements leaves. By default ``from_dense`` of the weight with zeros
        elsewhere, for a layout that needs no option to find them. Raises Error where that cannot store all of
        them."""
        kept = weight.masked_fill(~mask, 0)
        made = cls.from_dense(kept)
        if not torch.equal(made.to_dense(made.pack(kept)), kept):
            got = f"{int(mask.count_nonzero())} of [{made.rows}, {made.cols}]"
            raise Error(cls.name, "elements that it can store", got, "take another layout for this mask")
        return made

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
        """Whether some values may be padding. True unless a class knows better: what writes into a
        SparseTensor then asks ``pack`` which ones, and sets them to zero again."""
        return True

    def tensors(self) -> dict[str, Tensor]:
        """Returns the parts of the index by name."""
        return {name: value for name, value in self._fields.items() if isinstance(value, Tensor)}

    def options(self) -> dict[str, Any]:
        """Returns the other fields by name."""
        return {name: value for name, value in self._fields.items() if not isinstance(value, Tensor)}

    def describe(self) -> dict[str, Any]:
        """Returns what a file says of the weight beside its tensors: the layout's name, the shape and the
        options."""
        shape = {"out_features": self.rows, "in_features": self.cols}
        return {"layout": self.name, **shape, **self.options()}

    def derived(self) -> dict[str, Tensor]:
        """Returns tensors that products need beside the index, made of it: a layer keeps them as buffers that
        are not saved, and makes them again whenever it is made, moved or loaded. A name of ``derived_names``
        that is left out is not needed on this device."""
        return {}

    def with_tensors(
        self: Self, tensors: Mapping[str, Tensor], derived: Mapping[str, Tensor] | None = None
    ) -> Self:
        """Returns the same layout with other index tensors: elsewhere in memory, on another device or of
        another pattern; with what was ``derived`` of those, if it is there already."""
        other = object.__new__(type(self))  # copy.copy takes several times as long, in every call of a layer
        # Up to torch 2.11 dynamo traces no update() of a __dict__. A layout without names was made while
        # something is compiled, but is not traced itself.
        if torch.compiler.is_compiling() and hasattr(self, "_names"):
            for name in self._names:
                setattr(other, name, getattr(self, name))
            for name, tensor in tensors.items():
                setattr(other, name, tensor)
        else:
            other.__dict__.update(self.__dict__)
            other.__dict__.update(tensors)
            if "_names" not in other.__dict__:  # a layer's template was made here, before anything compiles
                other._names = tuple(other.__dict__)
        other._fields = {**self._fields, **tensors}
        other._derived = dict(derived or {})
        return other

    def require_consistent(self, op: str, values: Tensor) -> None:
        """Raises Error unless ``pack`` undoes ``to_dense`` on ``values``, and every one of them that is not
        zero has a place of its own in W: of an index that names one place twice, or one outside of the
        matrix, some values do not come back. Makes W twice; does nothing on meta. A layout that can look at
        its index alone overrides it."""
        if any(each.is_meta for each in (values, *self.tensors().values())):
            return
        try:
            with torch.no_grad():
                # Numbers that differ and that every dtype holds exactly would be too few: the check is in
                # fp64.
                told_apart = torch.arange(1.0, values.numel() + 1, dtype=torch.float64, device=values.device)
                dense = self.to_dense(told_apart.view(values.shape))
                back = self.pack(dense)
        except (RuntimeError, IndexError) as error:
            got = str(error).splitlines()[0]
            raise Error(op, f"values and an index of layout {self.name}", got, REPACK) from error
        shape = (self.rows, self.cols)
        if tuple(dense.shape) != shape or back.shape != values.shape:
            got = f"W {list(dense.shape)} and values {list(back.shape)} back from it"
            raise Error(op, f"W {list(shape)} and values {list(values.shape)}", got, REPACK)
        lost = (back.flatten() != told_apart) & (values.flatten() != 0)
        if bool(lost.any()):
            got = f"{int(lost.sum())} values without one, the first at {int(lost.nonzero()[0])}"
            raise Error(op, "a place of its own in W for every value that is not zero", got, REPACK)

    def linear(self, x: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        """Returns y [m, rows] = x [m, cols] W^T + bias [rows], all of one dtype. Raises Error unless x
        and bias lie on one device."""
        if bias is not None and bias.device != x.device:
            require_one_device("linear", {"x": x, "bias": bias})
        self._require_dense_allowed("forward")
        return functional.linear(x, self.to_dense(values), bias)

    def linear_transformed(self, x: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        """Returns what ``linear`` returns, under torch.func, vmap and forward mode: by the dense weight, of
        whose operators torch has every derivative."""
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
        """Returns what a product of ``m`` tokens runs, and why, as a dict with the keys of ``ops.plan``.
        ``predicted_us`` is None where nothing predicts it. ``direction`` is forward, dx or dw."""
        if getattr(type(self), _METHODS[direction]) is getattr(Layout, _METHODS[direction]):
            return self.dense_plan(m, direction, dtype, bias)
        return self._told(self.name, f"the layout's own {_METHODS[direction]}", m, direction, dtype, bias)

    def dense_plan(self, m: int, direction: str, dtype: torch.dtype, bias: bool) -> dict[str, Any]:
        """Returns the plan of a product by this class's method: for a class of yours that calls it for some
        operands."""
        self._require_dense_allowed(direction)
        about = "a dense product over to_dense of the values"
        return self._told("dense", about, m, direction, dtype, bias)

    def _require_dense_allowed(self, direction: str) -> None:
        """Raises Error where dense products are forbidden: to be called before one, by its direction."""
        if self.strict:
            expected = f"a kernel of layout {self.name} for {direction} (strict)"
            remedy = "set strict = False on the layer, or choose a layout with kernels: csr, or blocks"
            raise Error("plan", expected, "a dense product over to_dense alone", remedy)

    def _told(
        self, kernel: str, about: str, m: int, direction: str, dtype: torch.dtype, bias: bool
    ) -> dict[str, Any]:
        what = f"{direction} {str(dtype).removeprefix('torch.')} m={m} W=[{self.rows}, {self.cols}]"
        text = f"plan: {what} layout={self.name}{' bias' if bias else ''}\n  runs {kernel}: {about}\n"
        candidate = {"kernel": kernel, "refusal": "", "predicted_us": None}
        return {**candidate, "workspace_bytes": 0, "candidates": [candidate], "text": text}


#: Direction of a product, as plans name it -> the method that computes it.
_METHODS = {"forward": "linear", "dx": "dx", "dw": "dw"}
