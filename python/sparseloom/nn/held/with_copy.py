"""WithCopy: the base class of layers that may keep a dense copy of their weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from torch import Tensor, nn

from . import dense_copy as copies

Self = TypeVar("Self", bound="WithCopy")


class WithCopy(nn.Module):
    """A layer with ``values`` and the attribute ``dense_copy``. It comes before the class that holds the
    tensors in a layer's bases, so that a copy follows what that class does to them."""

    in_features: int
    out_features: int
    values: nn.Parameter
    activation: str | None
    plan: Callable[..., dict[str, Any]]
    # Class attributes: layers of other classes have none.
    _dense_copy: bool | Literal["auto"] = False
    _copy: copies.DenseCopy | None = None  # where _dense_copy is not False

    @property
    def dense_copy(self) -> bool | Literal["auto"]:
        """Whether calls in which the values need no gradient multiply with a dense copy of the weight, and
        their backward passes compute dX with it: for inference, and below adapters. The first such call makes
        the copy, beside the values, in the dtype of x. False (default) makes none, True always one. "auto"
        makes one where the plan for that product expects the copy to be faster than its own choice. Such a
        product rounds as torch's does, and a NaN in x spreads to every output.

        Only eager calls and backward passes read the copy. Captured CUDA graphs, compiled and traced
        programs, and gradients that are differentiated again use the stored values. A gradient that arrives
        at the values, or a write to them, invalidates the copy, and calls use the stored values again:
        assign ``dense_copy`` anew once the values stay as they are, also under graphs that were captured
        before. What the layer itself does (``load_state_dict``, ``to``) needs no such assignment, unless the
        values were written before. Writes that torch does not count (through ``.data`` or NumPy) are not
        seen: assign after them. ``plan`` says whether the copy is used, or why not. Raises Error for another
        value, and for True or "auto" together with ``strict``.
        """
        return self._dense_copy

    @dense_copy.setter
    def dense_copy(self, setting: bool | Literal["auto"]) -> None:
        copies.require_setting("dense_copy", setting, getattr(self, "strict", False))
        self._require_copyable(setting)
        self._dense_copy = setting
        copies.begin(self, setting)

    @property
    def dense_shape(self) -> tuple[int, ...]:
        """The shape of the weight in the dense module that this layer stands for."""
        raise NotImplementedError

    def _require_copyable(self, setting: bool | Literal["auto"]) -> None:
        """Raises Error where the layer may have no copy at all."""

    def _no_copy(self) -> str:
        """Returns why no call reads a copy, whatever is assigned; "" if calls may."""
        return ""

    def _unpacked(self, values: Tensor) -> Tensor:
        """Returns the dense weight with these values in their places."""
        raise NotImplementedError

    def _stored(self) -> tuple[copies.Stored, copies.Stored]:
        """Returns the functions that compute x W^T + bias and dY W from the values with the present index."""
        raise NotImplementedError

    def _copied_index(self) -> tuple[Tensor, ...]:
        """Returns the tensors that say where the values lie and that others may write to."""
        return ()

    def _copy_key(self) -> tuple[Any, ...]:
        """Returns all that a plan depends on except the call and the layer's activation."""
        raise NotImplementedError

    def train(self: Self, mode: bool = True) -> Self:
        """Does what nn.Module.train does."""
        super().train(mode)
        if self._copy is not None:
            self._copy.forget()  # a write through .data is not seen, and evaluation often begins here
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the dense copy."""
        state: Any = super().__getstate__() if hasattr(super(), "__getstate__") else self.__dict__
        return {**state, "_copy": None}

    def __setstate__(self, state_of_copy: dict[str, Any]) -> None:
        super().__setstate__(state_of_copy)
        copies.begin(self, self._dense_copy)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Does what nn.Module's does; the copy is made anew."""
        with copies.own_writes(self):
            super().register_parameter(name, param)

    def _apply(self: Self, fn: Any, recurse: bool = True) -> Self:
        with copies.own_writes(self):
            super()._apply(fn, recurse)
        return self

    def _load_from_state_dict(self, *arguments: Any, **named: Any) -> None:
        with copies.own_writes(self):
            super()._load_from_state_dict(*arguments, **named)
