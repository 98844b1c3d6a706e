"""SparseLinear: an nn.Linear whose weight lies in any registered layout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ... import layouts, ops
from ..._checks import whole
from ...errors import Error
from ...layouts import Layout, products
from ...layouts.entries import Entries
from ...layouts.torchs import is_sparse_matrix, strided
from .. import arguments
from ..held.convert import with_activation
from ..held.masked_by_torch import weight_of
from ..held.torch_blocks import trains
from ..held.weight import BlockSparseWeight, assigned
from .dense_entries import accept_matrix
from .with_layout import WithLayout

_OP = "SparseLinear"


class SparseLinear(WithLayout):
    """Computes y = activation(x W^T + bias), where W [out_features, in_features] lies in a layout of
    ``sparseloom.layouts``.

    Parameters: ``values``, in the shape that the layout's ``pack`` gives them; ``bias`` [out_features].
    Buffers: the parts of the index, by the layout's names for them, saved with the parameters. Gradients of
    the values exist at the stored elements alone.

    Args:
        in_features, out_features: any number >= 0.
        bias: whether to add a learned bias.
        layout: the name of a registered layout, its class, or a Layout of [out_features, in_features].
        activation: None or a name in ``sparseloom.ops.ACTIVATIONS``; fused into the products of "csr",
            "coo" and "bitmap" that need no gradient, behind the product elsewhere.
        device, dtype: as in nn.Linear; a floating-point dtype that the layout's products take.
        seed: an int or a torch.Generator, for the pattern and the initial values; torch's default one
            otherwise.
        options: what the layout's ``from_dense`` asks for beside the weight, such as ``keep=32``. It is given
            a random weight, so that magnitude selects a random pattern.

    ``strict = True`` forbids the dense and reference kernels, in backward passes too: where the layout has no
    kernel of its own for a product ("nm" has none, "nmg" none of dX and dW), the call raises Error. For
    blocks use ``BlockSparseLinear``, which has kernels of its own. Raises Error for a layout that is not
    registered or whose methods do not agree.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        layout: str | type[Layout] | Layout,
        activation: str | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        seed: torch.Generator | int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        in_features, out_features = (
            whole(_OP, "in_features", in_features),
            whole(_OP, "out_features", out_features),
        )
        like = arguments.like_of(_OP, device, dtype)
        drawn_on = torch.device("cpu") if like.is_meta else like.device  # a meta weight has no largest one
        with arguments.drawing(_OP, seed, like.device):
            weight = torch.rand(out_features, in_features, device=drawn_on, dtype=like.dtype)
            self._make(weight, layout, options, like.new_empty(out_features) if bias else None, like.device)
            self.activation = activation
            self.reset_parameters()

    def _make(
        self,
        weight: Tensor,
        layout: str | type[Layout] | Layout,
        options: dict[str, Any],
        bias: Tensor | None,
        device: torch.device,
    ) -> None:
        """Stores what the layout takes of a random weight."""
        out_features, in_features = weight.shape
        layout_of_weight = layouts.chosen(_OP, layout, weight, options)
        if (layout_of_weight.rows, layout_of_weight.cols) != (out_features, in_features):
            got = f"one of [{layout_of_weight.rows}, {layout_of_weight.cols}]"
            raise Error(_OP, f"a layout of [{out_features}, {in_features}]", got, "make it with that shape")
        values = layout_of_weight.pack(weight)
        layout_of_weight.require_consistent(_OP, values)
        self._hold(layout_of_weight, values.to(device), bias)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Maps x [..., in_features] to [..., out_features]. Autocast casts as it does for nn.Linear.

        ``residual`` [..., out_features], of the result's dtype, is added after the activation. Raises Error
        when x or ``residual`` does not fit."""
        if (
            x.__class__ is not Tensor
            and (node := arguments.recorded_by_fx(self, x, residual=residual)) is not None
        ):
            return node  # type: ignore[no-any-return]
        parameters = self._parameters  # nn.Module's own __getattr__ takes as long as a check of all operands
        values: Any
        bias: Tensor | None
        try:
            values, bias = parameters["values"], parameters["bias"]
        except KeyError:  # one of them is computed: parametrized, weight-normed or pruned
            values, bias = self.values, self.bias
        x, values, bias, residual = arguments.prologue(x, values, bias, residual)
        if (
            x.dim() == 0
            or x.shape[-1] != self.in_features
            or x.dtype != values.dtype
            or x.device != values.device
        ):
            expected = f"x [..., {self.in_features}] of {values.dtype} on {values.device}"
            got = f"{list(x.shape)} of {x.dtype} on {x.device}"
            raise Error("linear", expected, got, "convert x or move it with .to()")
        if self._emptied:
            self._require_written()
        y = products.linear(x, values, bias, self.layout, self.activation, residual)
        return y if self.fuse else ops.apart(y)

    @property
    def dense_shape(self) -> tuple[int, int]:
        """The shape of the weight in the dense module that this layer stands for."""
        return self.out_features, self.in_features

    def dense_matrix(self, weight: Tensor) -> Tensor:
        """Returns the weight of the dense module that this layer stands for as [out_features, in_features] (a
        view)."""
        return weight

    def placed(self, weight: Tensor) -> tuple[Layout, Tensor] | None:
        """Returns layout and values of a checkpoint's weight that brings its own places: one of torch's
        sparse layouts, for a layer of single elements. None for any other."""
        kind = type(self._template)
        if weight.layout == torch.strided or not issubclass(kind, Entries):
            return None
        return kind.from_torch(weight)

    @property
    def weight(self) -> BlockSparseWeight:
        """A stand-in for code that asks a dense layer's weight for dtype, device or shape, or initialises it,
        which acts on ``values``. It is not a Parameter, holds no dense tensor and refuses arithmetic: call
        the layer, or copy with ``to_dense().weight``."""
        return BlockSparseWeight.of(self, self.dense_shape)

    @weight.setter
    def weight(self, value: Any) -> None:
        raise assigned(self)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Does what nn.Module's does, but raises Error for ``weight``, which would be part of no product."""
        if name == "weight":
            raise assigned(self)
        super().register_parameter(name, param)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *arguments: Any, **named: Any) -> None:
        """Also takes a dense checkpoint's ``weight``, of which the elements at the layer's places are kept,
        and one of torch's sparse layouts, which brings its own places to single elements."""
        accept_matrix(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *arguments, **named)

    def extra_repr(self) -> str:
        parts = [f"activation={self.activation}"] if self.activation else []
        return ", ".join([super().extra_repr(), *parts, *(["strict=True"] if self.strict else [])])

    def to_dense(self) -> nn.Module:
        """Returns an nn.Linear with the same values in their places and zero elsewhere (copied); with an
        activation, a Sequential of both."""
        dense = super().to_dense()
        return with_activation(dense, self)

    def describe(self) -> dict[str, dict[str, Any]]:
        """Returns the data that rebuild the layer without its values; see SparseModule."""
        fused: dict[str, Any] = {} if self.activation is None else {"activation": self.activation}
        return {"values": {**self._template.describe(), **fused}}

    @classmethod
    def from_dense(
        cls,
        dense: nn.Linear | Tensor,
        layout: str | type[Layout] | Layout,
        *,
        bias: Tensor | None = None,
        activation: str | None = None,
        **options: Any,
    ) -> SparseLinear:
        """Returns a layer with what the layout stores of ``dense``, an nn.Linear or a weight [out_features,
        in_features] (then ``bias`` [out_features] may come with it), copied. Of a sparse matrix of torch a
        layout of single elements without options stores the same elements. A Parameter's ``requires_grad``
        becomes that of what is made of it; any other tensor trains."""
        weight = weight_of(_OP, dense) if isinstance(dense, nn.Linear) else dense
        bias = dense.bias if isinstance(dense, nn.Linear) else bias
        if not isinstance(weight, Tensor) or weight.dim() != 2:
            got = f"a tensor {list(weight.shape)}" if isinstance(weight, Tensor) else type(weight).__name__
            raise Error(_OP, "an nn.Linear or a weight [out_features, in_features]", got, "pass one of them")
        if not weight.is_floating_point():
            remedy = "convert it with .float()"
            raise Error(_OP, "a weight of a floating dtype", str(weight.dtype), remedy)
        kind = layouts.get(layout) if isinstance(layout, str) else layout
        own_bias = None if bias is None else bias.detach().clone()
        if isinstance(kind, type) and issubclass(kind, Entries) and not options and is_sparse_matrix(weight):
            index, values = kind.from_torch(weight)
            layer = cls.holding(index, values, own_bias)
        else:
            matrix = strided(weight.detach())
            layout_of_weight = layouts.chosen(_OP, layout, matrix, options)
            if (layout_of_weight.rows, layout_of_weight.cols) != tuple(matrix.shape):
                got, expected = (
                    f"one of [{layout_of_weight.rows}, {layout_of_weight.cols}]",
                    list(matrix.shape),
                )
                raise Error(_OP, f"a layout of {expected}", got, "make it with that shape")
            values = layout_of_weight.pack(layouts.masked(layout_of_weight, matrix, options))
            layer = cls.holding(layout_of_weight, values, own_bias)
        layer.activation = activation
        layer.values.requires_grad_("dw" in layer.layout.directions and trains(weight))
        if bias is not None:
            layer.get_parameter("bias").requires_grad_(trains(bias))
        return layer.train(dense.training) if isinstance(dense, nn.Linear) else layer

    @classmethod
    def holding(cls, layout: Layout, values: Tensor, bias: Tensor | None = None) -> SparseLinear:
        """Returns a layer that holds these tensors, without a copy. Raises Error where they do not belong
        together."""
        layout.require_consistent(_OP, values)
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer._hold(layout, values.detach(), None if bias is None else bias.detach())
        return layer
