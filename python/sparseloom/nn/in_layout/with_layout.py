"""WithLayout: the base class of layers whose weight lies in a layout of sparseloom.layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import Error
from ...layouts import Layout
from ...ops.transforms import transformed
from .. import arguments
from ..held import moments, padding
from ..held.answers import tokens_of
from ..held.parametrized import Parametrizable, require_own_values, values_are_computed
from ..held.sparse_weight import SparseWeight
from ..held.written import Written
from .weight import LayoutWeight


def _nothing(part: Tensor) -> int | bool:
    """Returns what stands for an element of an index that was not written. No index is all of it: bytes are
    bits and positions, of which 255 may be a full bitmap, and 170 are two positions that do not ascend."""
    if part.dtype in (torch.bool, torch.uint8):
        return False if part.dtype == torch.bool else 170
    return torch.iinfo(part.dtype).max


def _same(part: Tensor, current: Tensor | None) -> bool:
    return current is not None and torch.equal(part, current)


class WithLayout(Parametrizable):
    """A layer with the Parameters ``values`` and ``bias`` [out_features] (or None), and the parts of its
    layout's index as buffers, under the layout's names for them; all of them are saved."""

    in_features: int
    out_features: int
    values: nn.Parameter
    bias: nn.Parameter | None
    # A class attribute, so that layers that an older version pickled have none.
    activation: str | None = None
    #: Whether a product that would be dense, or the reference kernel's, raises Error.
    strict: bool = False
    #: Whether torch.compile may move what follows the layer into its product.
    fuse: bool = True
    #: The buffers that are made from the index and not saved.
    derived: tuple[str, ...] = ()
    #: The layout that was returned last, with its buffers and their versions.
    _last: tuple[Layout, list[tuple[str, Tensor, int]]] | None = None
    _template: Layout
    _parts: tuple[str, ...]
    #: Whether the index may be what to_empty() left behind meta.
    _emptied: bool = False
    _derived_of: Written | None = None  # the index from which the derived buffers were made

    def _hold(self, layout: Layout, values: Tensor, bias: Tensor | None) -> None:
        """Registers these tensors, on the device of ``values``, without a copy."""
        self.out_features, self.in_features = layout.rows, layout.cols
        self._template = layout.with_tensors({})
        self._parts = tuple(layout.tensors())
        for name, part in layout.tensors().items():
            self.register_buffer(name, part.to(values.device))
        self.derived = (*self.derived, *layout.derived_names)
        for name in layout.derived_names:
            self.register_buffer(name, None, persistent=False)
        self._derive()
        self.values = nn.Parameter(values)
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias))

    @property
    def layout(self) -> Layout:
        """The layout with the module's own index, wherever that is now, and with its ``strict``."""
        if torch.compiler.is_compiling():
            layout = self._layout()
            layout.strict = self.strict
            return layout
        if self._last is not None:
            layout, parts = self._last
            buffers = self._buffers
            for name, part, version in parts:
                if buffers[name] is not part or part._version != version:
                    break
            else:
                layout.strict = self.strict
                return layout
        layout = self._layout()
        layout.strict = self.strict
        index = layout.tensors()
        cacheable = not transformed() and all(type(tensor) is Tensor for tensor in index.values())
        if cacheable and not any(tensor.is_inference() for tensor in index.values()):
            self._last = layout, [(name, tensor, tensor._version) for name, tensor in index.items()]
        return layout

    def _layout(self) -> Layout:
        index: dict[str, Any] = {name: self._buffers[name] for name in self._parts}
        if not self._template.derived_names:
            return self._template.with_tensors(index)
        made_of = self._derived_of
        if not torch.compiler.is_compiling() and not (made_of is not None and made_of.still(index.values())):
            return self._template.with_tensors(index)  # the index was written since: compiled code cannot see
        derived: Any = {name: self._buffers[name] for name in self._template.derived_names}
        return self._template.with_tensors(
            index, {name: tensor for name, tensor in derived.items() if tensor is not None}
        )

    @property
    def density(self) -> float:
        """The values over the elements of W; padding counts as stored."""
        size = self.in_features * self.out_features
        return self.values.numel() / size if size else 0.0

    def refresh_(self) -> None:
        """Recomputes the buffers that are derived from the index. The layer does so itself when it is moved
        or loaded. After a write to the index, eager calls ignore them; compiled code does not notice."""
        self._derive()

    def _derive(self) -> None:
        self._last = None
        if not self._template.derived_names:
            return
        if self._emptied:
            self._buffers.update(dict.fromkeys(self._template.derived_names))
            self._derived_of = None
            return
        index: dict[str, Any] = {name: self._buffers[name] for name in self._parts}
        derived = self._template.with_tensors(index).derived()
        for name in self._template.derived_names:
            self._buffers[name] = derived.get(name)
        self._derived_of = Written(index.values())

    def _apply(self, fn: Any, recurse: bool = True) -> WithLayout:
        """Applies .to(), .half(), .to_empty() and their like. Memory that came from meta holds nothing: the
        index is marked, so that a call before a state dict is loaded can say so."""
        index: Any = {name: self._buffers[name] for name in self._parts}
        super()._apply(arguments.exact(fn), recurse)
        for name, was in index.items():
            part: Any = self._buffers[name]
            if was.is_meta and not part.is_meta:
                part.fill_(_nothing(part))
                self._emptied = True
        self.refresh_()
        return self

    def _require_written(self) -> None:
        """Raises Error as long as nothing has been written to the index since to_empty(), be it by
        load_state_dict or in place, as process groups send it. Compiled code does not read the index."""
        if torch.compiler.is_compiling():
            return
        index: Any = [self._buffers[name] for name in self._parts]
        if all(bool((part == _nothing(part)).all()) for part in index):
            name = type(self).__name__
            expected, got = "values and an index", "what to_empty() left, which is uninitialised"
            raise Error(name, expected, got, "load a state dict or a file first: it brings both")
        self._emptied = False
        self.refresh_()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None, "_derived_of": None}

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        self.refresh_()

    def reset_parameters(self) -> None:
        """Draws nn.Linear's initial distribution for the true fan-in: uniform within 1 / sqrt(stored inputs
        of the output feature); 0 for one that has none. Raises Error where ``values`` are computed (by a
        parametrization, norm or pruning)."""
        require_own_values("reset_parameters", self)
        if self.values.is_meta:
            return
        if self._emptied:
            self._require_written()
        with torch.no_grad():
            layout = self.layout
            fan_in = layout.to_dense(torch.ones_like(self.values)).count_nonzero(1)
            bound = torch.where(fan_in > 0, fan_in.clamp(min=1).rsqrt(), 0.0).to(self.values.dtype)
            weight = torch.empty(layout.rows, layout.cols, dtype=bound.dtype, device=bound.device)
            self.values.copy_(layout.pack(weight.uniform_(-1, 1) * bound[:, None]))
            if self.bias is not None:
                self.bias.uniform_(-1, 1).mul_(bound)

    def sparse_weights(self) -> dict[str, SparseWeight]:
        """Returns the layer's one weight, under the name of its Parameter."""
        return {"values": LayoutWeight(self, layout=self._template.name)}

    def to_dense(self) -> nn.Module:
        """Returns an nn.Linear with the same values in their places and zero elsewhere (copied)."""
        if self._emptied:
            self._require_written()
        options = {"device": self.values.device, "dtype": self.values.dtype}
        with torch.no_grad():
            dense = nn.Linear(self.in_features, self.out_features, self.bias is not None, **options)
            dense.weight.copy_(self.layout.to_dense(self.values))
            if self.bias is not None:
                dense.bias.copy_(self.bias)
        dense.weight.requires_grad_(self.values.requires_grad)
        return dense.train(self.training)

    def describe(self) -> dict[str, dict[str, Any]]:
        """Returns the data that rebuild the layer without its values: see ``Layout.describe``."""
        return {"values": self._template.describe()}

    def plan(
        self,
        tokens: int | None = None,
        direction: str = "forward",
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | None = None,
        residual: bool = False,
        *,
        shape: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        """Returns what would run for ``tokens`` rows of x, or x of that ``shape``, and why: see
        ``Layout.plan``. ``direction`` is forward, dx or dw; ``residual`` says that forward is called with
        one. Raises Error for another direction, for a ``device`` that is not the layer's, and where
        ``strict`` forbids what would run."""
        if device is not None and torch.device(device).type != self.values.device.type:
            device_of_values = self.values.device
            raise Error(
                "plan", f"the layer's own device, {device_of_values}", str(device), "move the layer there"
            )
        if direction not in ("forward", "dx", "dw"):
            raise Error("plan", "a direction of forward, dx, dw", repr(direction), "choose one of them")
        forward = direction == "forward"
        call = tokens_of(tokens, shape, self.in_features), direction, dtype or self.values.dtype
        layout: Any = self.layout
        fused = (self.activation, residual) if forward and layout.fuses else ()
        return layout.plan(*call, forward and self.bias is not None, *fused)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        settings = {"layout": self._template.name, **self._template.options()}
        parts = [
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        ]
        parts += [f"{key}={value}" for key, value in settings.items()]
        return ", ".join([*parts, f"density={self.density:.4g}"])

    def _save_to_state_dict(self, *arguments: Any, **named: Any) -> None:
        padding.clear(self)
        super()._save_to_state_dict(*arguments, **named)

    def _follow(self, state_dict: Mapping[str, Any], prefix: str) -> None:
        """Moves the optimizer state of the values to the places of the loaded index."""
        parts = {name: state_dict[prefix + name].to(self.values.device) for name in self._parts}
        current: dict[str, Any] = {name: self._buffers[name] for name in self._parts}
        followed = moments.holding(self) or self.values.grad is not None
        if followed and not all(_same(parts[name], current[name]) for name in parts):
            old, new = self._template.with_tensors(current), self._template.of_entries(parts)
            shapes = self.values.shape, state_dict[prefix + "values"].shape
            moments.follow(self, lambda: moments.Way.of_layouts(old, new, *shapes))

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *arguments: Any, **named: Any
    ) -> None:
        """Takes the index and values of another pattern of the same layout, whatever their sizes; checked
        before anything is changed."""
        moments.called(self, prefix)
        computed = self.values.detach() if values_are_computed(self) else None
        names = self._parts if computed is not None else ("values", *self._parts)
        read = any(prefix + name in state_dict for name in names)
        if read:
            self.sparse_weights()["values"].require_readable(state_dict, prefix, computed)
            self._follow(state_dict, prefix)
            for name in names:
                current, entry = getattr(self, name), state_dict[prefix + name]
                if current.shape != entry.shape:
                    current.data, current.grad = current.new_empty(entry.shape), None
        super()._load_from_state_dict(state_dict, prefix, *arguments, **named)  # type: ignore[arg-type]
        if read:
            index: dict[str, Any] = {name: self._buffers[name] for name in self._parts}
            self._template = self._template.of_entries(index).with_tensors({})
            self._emptied = False
        self._derive()
