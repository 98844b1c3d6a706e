"""SparseLinear: an nn.Linear whose weight lies in any registered layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .. import layouts
from .._numbers import whole
from ..errors import Error
from ..layouts import Layout, products
from .layout_weight import LayoutWeight
from .sparse_weight import SparseWeight

_OP = "SparseLinear"


class SparseLinear(nn.Module):
    """Computes y = x W^T + bias, where W [out_features, in_features] lies in a layout of
    ``sparseloom.layouts``.

    Parameters: ``values``, in the shape that the layout's ``pack`` gives them; ``bias`` [out_features].
    Buffers: the parts of the index, by the layout's names for them, saved with the parameters. Gradients of
    the values exist at the stored elements alone.

    Args:
        in_features, out_features: any number >= 0.
        bias: whether to add a learned bias.
        layout: the name of a registered layout, its class, or a Layout of [out_features, in_features].
        device, dtype: as in nn.Linear; a floating-point dtype that the layout's products take.
        options: what the layout's ``from_dense`` asks for beside the weight, such as ``keep=32``. It is given
            a random weight, so that magnitude selects a random pattern.

    For blocks use ``BlockSparseLinear``, which has kernels of its own. Raises Error for a layout that is not
    registered or whose methods do not agree.
    """

    in_features: int
    out_features: int
    values: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        layout: str | type[Layout] | Layout,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.in_features = whole(_OP, "in_features", in_features)
        self.out_features = whole(_OP, "out_features", out_features)
        where = torch.empty(0, device=device, dtype=dtype)
        drawn_on = torch.device("cpu") if where.is_meta else where.device  # a meta weight has no largest one
        weight = torch.rand(out_features, in_features, device=drawn_on, dtype=where.dtype)
        chosen = _chosen(layout, weight, options)
        if (chosen.rows, chosen.cols) != (out_features, in_features):
            got = f"one of [{chosen.rows}, {chosen.cols}]"
            raise Error(_OP, f"a layout of [{out_features}, {in_features}]", got, "make it with that shape")
        values = chosen.pack(weight)
        products.require_consistent(_OP, chosen, values)
        self._template = chosen.with_tensors({})
        self._parts = tuple(chosen.tensors())
        for name, part in chosen.tensors().items():
            self.register_buffer(name, part.to(where.device))
        self.values = nn.Parameter(values.to(where.device))
        self.register_parameter("bias", nn.Parameter(where.new_empty(out_features)) if bias else None)
        self.reset_parameters()

    @property
    def layout(self) -> Layout:
        """The layout with the module's own index, wherever that is now."""
        return self._template.with_tensors({name: self._buffers[name] for name in self._parts})  # type: ignore[misc]

    def reset_parameters(self) -> None:
        """Draws nn.Linear's initial distribution for the true fan-in: uniform within 1 / sqrt(stored inputs
        of the output feature); 0 for one that has none."""
        if self.values.is_meta:
            return
        with torch.no_grad():
            layout = self.layout
            fan_in = layout.to_dense(torch.ones_like(self.values)).count_nonzero(1)
            bound = torch.where(fan_in > 0, fan_in.clamp(min=1).rsqrt(), 0.0).to(self.values.dtype)
            weight = torch.empty(layout.rows, layout.cols, dtype=bound.dtype, device=bound.device)
            self.values.copy_(layout.pack(weight.uniform_(-1, 1) * bound[:, None]))
            if self.bias is not None:
                self.bias.uniform_(-1, 1).mul_(bound)

    def forward(self, x: Tensor) -> Tensor:
        """Maps x [..., in_features] to [..., out_features]. Autocast casts as it does for nn.Linear. Raises
        Error when x does not fit."""
        values: Tensor = self.values
        bias: Tensor | None = self.bias
        kind = x.device.type
        if kind != "meta" and torch.is_autocast_enabled(kind) and x.dtype != torch.float64:
            dtype = torch.get_autocast_dtype(kind)
            x, values, bias = x.to(dtype), values.to(dtype), None if bias is None else bias.to(dtype)
        if (
            x.dim() == 0
            or x.shape[-1] != self.in_features
            or x.dtype != values.dtype
            or x.device != values.device
        ):
            expected = f"x [..., {self.in_features}] of {values.dtype} on {values.device}"
            got = f"{list(x.shape)} of {x.dtype} on {x.device}"
            raise Error("linear", expected, got, "convert x or move it with .to()")
        return products.linear(x, values, bias, self.layout)

    @classmethod
    def from_dense(
        cls,
        dense: nn.Linear | Tensor,
        layout: str | type[Layout] | Layout,
        *,
        bias: Tensor | None = None,
        **options: Any,
    ) -> SparseLinear:
        """Returns a layer with what the layout stores of ``dense``, an nn.Linear or a weight [out_features,
        in_features] (then ``bias`` [out_features] may come with it), copied."""
        weight = dense.weight if isinstance(dense, nn.Linear) else dense
        bias = dense.bias if isinstance(dense, nn.Linear) else bias
        weight = weight.detach()
        chosen = _chosen(layout, weight, options)
        rows, cols = weight.shape
        layer = cls(cols, rows, bias is not None, layout=chosen, device=weight.device, dtype=weight.dtype)
        with torch.no_grad():
            layer.values.copy_(chosen.pack(weight))
            if layer.bias is not None and bias is not None:
                layer.bias.copy_(bias)
        return layer

    def sparse_weights(self) -> dict[str, SparseWeight]:
        """Returns the layer's one weight, under the name of its Parameter."""
        return {"values": LayoutWeight(self, layout=self._template.name)}

    def to_dense(self) -> nn.Linear:
        """Returns an nn.Linear with the same values in their places and zero elsewhere (copied)."""
        like = {"device": self.values.device, "dtype": self.values.dtype}
        with torch.no_grad():
            dense = nn.Linear(self.in_features, self.out_features, self.bias is not None, **like)
            dense.weight.copy_(self.layout.to_dense(self.values))
            if self.bias is not None:
                dense.bias.copy_(self.bias)
        return dense.train(self.training)

    def describe(self) -> dict[str, dict[str, Any]]:
        """Returns what builds the layer again without its values: see ``Layout.describe``."""
        return {"values": self._template.describe()}

    def plan(
        self, tokens: int, direction: str = "forward", dtype: torch.dtype | None = None
    ) -> dict[str, Any]:
        """Returns what would run for ``tokens`` rows of x, and why: see ``Layout.plan``. ``direction`` is
        forward, dx or dw. Raises Error for another."""
        if direction not in ("forward", "dx", "dw"):
            raise Error("plan", "a direction of forward, dx, dw", repr(direction), "choose one of them")
        with_bias = direction == "forward" and self.bias is not None
        tokens = whole("plan", "tokens", tokens)
        return self.layout.plan(tokens, direction, dtype or self.values.dtype, with_bias)

    def extra_repr(self) -> str:
        told = {"layout": self._template.name, **self._template.options()}
        size = self.in_features * self.out_features
        parts = [
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        ]
        parts += [f"{key}={value}" for key, value in told.items()]
        return ", ".join([*parts, f"density={self.values.numel() / size if size else 0:.4g}"])

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *arguments: Any, **named: Any
    ) -> None:
        """Takes the index and values of another pattern of the same layout, whatever their sizes; checked
        before anything is changed."""
        names = ("values", *self._parts)
        if any(prefix + name in state_dict for name in names):
            self.sparse_weights()["values"].require_readable(state_dict, prefix, None)
            for name in names:
                own, read = getattr(self, name), state_dict[prefix + name]
                if own.shape != read.shape:
                    own.data = own.new_empty(read.shape)
        super()._load_from_state_dict(state_dict, prefix, *arguments, **named)  # type: ignore[arg-type]


def _chosen(layout: str | type[Layout] | Layout, weight: Tensor, options: dict[str, Any]) -> Layout:
    """Returns the Layout that was given, or what the named class chooses of the weight."""
    if isinstance(layout, Layout):
        if options:
            got = f"{', '.join(options)} beside a Layout"
            raise Error(_OP, "options with a layout's name or class", got, "leave them out")
        return layout
    cls = layouts.get(layout) if isinstance(layout, str) else layout
    if not (isinstance(cls, type) and issubclass(cls, Layout)):
        raise Error(_OP, "a layout's name, its class or a Layout", repr(layout), "see sparseloom.layouts")
    try:
        return cls.from_dense(weight, **options)
    except TypeError as error:
        remedy = "pass what its from_dense asks for, by name"
        raise Error(_OP, f"the options of layout {cls.name}", str(error), remedy) from error
